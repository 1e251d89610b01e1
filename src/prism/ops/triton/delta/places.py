"""Where things lie: rows of tokens, chunks and spans of sequences; loads and stores.

A row is one erasure: one token or, where each direction erases (R rows per token), one direction of one token, which
decays if it is the token's first and reads if it is its last. Rows beyond the sequence are zeros, with log α = 0, so
that they neither decay, erase nor write.
"""

# mypy: ignore-errors
import triton.language as tl

from prism.ops.triton.compiling import kernel


@kernel
def own_work(width: tl.constexpr, B: tl.constexpr):
    """The sequence, span or chunk that a program works on, the head, and the first of its B channels of so many.

    y and z of CUDA's grid end at 65,535: what grows with tokens or users is in x. Programs that differ in channels
    alone are neighbours there, as they read the same.
    """
    blocks: tl.constexpr = (width + B - 1) // B
    at = tl.program_id(0)
    n = at // blocks
    # with at % blocks Triton 3.7.1 spills 24 bytes on sm_90; what overflows here does so on both sides
    return n, tl.program_id(1), at * B - n * (blocks * B)


@kernel
def tile(pointer, at, real, width, B: tl.constexpr):
    """[·, B] of which row i begins at[i] places on; zeros where it is not real and from column `width` on."""
    j = tl.arange(0, B)
    return tl.load(pointer + (at[:, None] + j[None, :]), mask=real[:, None] & (j < width)[None, :], other=0.0)


@kernel
def put(pointer, at, real, width, B: tl.constexpr, value):
    """The inverse of `tile`."""
    j = tl.arange(0, B)
    mask = real[:, None] & (j < width)[None, :]
    tl.store(pointer + (at[:, None] + j[None, :]), value.to(pointer.dtype.element_ty), mask=mask)


@kernel
def matrix(pointer, height, A: tl.constexpr, width: tl.constexpr, B: tl.constexpr):
    """[A, B], the top left corner of rows that lie one after the other; zeros beyond its height and width."""
    i = tl.arange(0, A)
    return tile(pointer, i * width, i < height, width, B)


@kernel
def put_matrix(pointer, height, A: tl.constexpr, width: tl.constexpr, B: tl.constexpr, value):
    """The inverse of `matrix`."""
    i = tl.arange(0, A)
    put(pointer, i * width, i < height, width, B, value)


@kernel
def half(pointer, j: tl.constexpr, height, A: tl.constexpr, width: tl.constexpr, B: tl.constexpr):
    """[A, B] of a matrix, from column j on."""
    i = tl.arange(0, A)
    return tile(pointer + j, i * width, i < height, width - j, B)


@kernel
def put_half(pointer, j: tl.constexpr, height, A: tl.constexpr, width: tl.constexpr, B: tl.constexpr, value):
    """The inverse of `half`."""
    i = tl.arange(0, A)
    put(pointer + j, i * width, i < height, width - j, B, value)


@kernel
def gate(pointer, at, real):
    """One number per row, in float32."""
    return tl.load(pointer + at, mask=real, other=0.0).to(tl.float32)


@kernel
def put_gate(pointer, at, real, value):
    """The inverse of `gate`."""
    tl.store(pointer + at, value.to(pointer.dtype.element_ty), mask=real)


@kernel
def sequence(n, T, limits, first, C: tl.constexpr, PACKED: tl.constexpr):
    """First row, count of rows and first chunk (of C rows) of sequence n."""
    if PACKED:
        start = tl.load(limits + n).to(tl.int64)
        length = (tl.load(limits + n + 1) - start).to(tl.int32)
        chunk = tl.load(first + n).to(tl.int64)
    else:
        start = n.to(tl.int64) * T
        length = T
        chunk = n.to(tl.int64) * ((T + C - 1) // C)
    return start, length, chunk


@kernel
def sequence_of(chunk, T, first, owner, N, C: tl.constexpr, PACKED: tl.constexpr):
    """The sequence of a chunk (of C rows) and the chunk's place in it; sequence N where there is no such chunk."""
    if PACKED:
        n = tl.load(owner + chunk).to(tl.int32)
        place = chunk - tl.load(first + tl.minimum(n, N - 1)).to(tl.int32)
    else:
        chunks = (T + C - 1) // C
        n = chunk // chunks
        place = chunk % chunks
    return n, place


@kernel
def rows(start, begin, length, h, H: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """Rows begin, …, begin + C − 1 of a sequence that starts at row `start`: where their first token's head h lies; and
    for each its token after that one, its turn among its token's rows, whether it is there, decays, reads."""
    i = tl.arange(0, C)
    real = begin + i < length
    base = begin // R
    within = begin - base * R + i
    token = within // R
    turn = within - token * R
    return (start // R + base) * H + h, token, turn, real, real & (turn == 0), real & (turn == R - 1)
