"""The best items of some queries by sums of int8 products: score = s_q s_i Σ_d c_qd c_id + b_i.

Where the machine multiplies and adds four bytes at once (VNNI), a tile of several queries × several vectors of items
keeps its sums in registers, and gives a bit for each item that beats the worst one of its query's heap: scores of all
items are never looked at again. These instructions want one side without a sign: items are stored as c + 128, and the
sums begin at −128 Σ_d c_qd. Elsewhere a plain loop, the definition, has the same scores to the bit.
"""

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numpy.typing import NDArray

from prism.ops.cpu.compiling import intrinsic, loop
from prism.ops.cpu.tile import FEATURES, address, subroutine

# Items of a vector (0: no such instructions); queries and vectors of a tile: its sums, a vector of items for each
# column and a broadcast fit the registers.
LANES = 16 if "+avx512vnni" in FEATURES else 8 if "+avxvnni" in FEATURES else 0
QUERIES, VECTORS = (8, 3) if LANES == 16 else (4, 2)
# Vectors of a tile of a single query: enough sums to hide the latency of an addition.
ALONE = 2 * VECTORS
# Items of a block of the plain loop: their rows stay in the first-level cache while queries take turns.
BLOCK = 256
_I16, _I32, _I64 = (ir.IntType(bits) for bits in (16, 32, 64))
_INTS, _FLOATS = ir.VectorType(_I32, LANES), ir.VectorType(ir.FloatType(), LANES)


def packed(codes: NDArray[np.int8]) -> NDArray[np.uint8]:
    """[vectors, groups, LANES, 4]: four dimensions of LANES items at a time, each code + 128; padded with zeros."""
    items, dim = codes.shape
    step = LANES * ALONE
    room = np.full((-(-items // step) * step, -(-dim // 4) * 4), 128, dtype=np.uint8)
    room[:items, :dim] = (codes.astype(np.int16) + 128).astype(np.uint8)
    return np.ascontiguousarray(room.reshape(-1, LANES, room.shape[1] // 4, 4).transpose(0, 2, 1, 3))


def scan(
    codes: NDArray[np.uint8] | NDArray[np.int8],
    scales: NDArray[np.float32],
    offsets: NDArray[np.float32],
    queries: NDArray[np.int8],
    sizes: NDArray[np.float32],
    kept: int,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """(scores, items) [Q, kept] in no order; there must be `kept` items.

    Codes as `packed` makes them go by tiles; codes [I, D] as they are by the plain loop, on any machine.
    """
    tall = 1 if codes.ndim == 2 or len(queries) < QUERIES // 2 else QUERIES
    count = -(-len(queries) // tall) * tall
    best = np.full((count, kept), -np.inf, dtype=np.float32)
    items = np.zeros((count, kept), dtype=np.int64)
    if codes.ndim == 2:
        _scan_rows(codes, scales, offsets, queries.astype(np.int16), sizes, best, items)
        return best, items
    rows, factors = np.zeros((count, 4 * codes.shape[1]), dtype=np.int8), np.zeros(count, dtype=np.float32)
    rows[: len(queries), : queries.shape[1]], factors[: len(queries)] = queries, sizes
    best[len(queries) :] = np.inf  # nothing beats it
    begin = -128 * rows.sum(1, dtype=np.int32)
    _scan_tiles(codes, scales, offsets, rows.view(np.int32), factors, begin, best, items, tall == 1)
    return best[: len(queries)], items[: len(queries)]


def _tile(queries: int, vectors: int) -> Any:
    """The intrinsic for `queries` rows × `vectors` vectors: fills scores, and a bit for each that beats its `worst`."""

    def emit(builder: Any, element: Any, *args: Any) -> None:
        codes, scales, offsets, rows, sizes, begin, worst, groups, scores, bits = args
        sums = _emit_sums(builder, queries, vectors, codes, rows, begin, groups)
        factors = [_vector(builder, scales, _I64(v * LANES), _FLOATS) for v in range(vectors)]
        added = [_vector(builder, offsets, _I64(v * LANES), _FLOATS) for v in range(vectors)]
        for r in range(queries):
            size, least = _splat(builder, sizes, _I64(r), _FLOATS), _splat(builder, worst, _I64(r), _FLOATS)
            for v in range(vectors):
                score = builder.fmul(builder.fmul(builder.sitofp(sums[r, v], _FLOATS), factors[v]), size)
                score = builder.fadd(score, added[v])
                place = builder.gep(scores, [_I64((r * vectors + v) * LANES)])
                builder.store(score, builder.bitcast(place, _FLOATS.as_pointer()), align=4)
                better = builder.bitcast(builder.fcmp_ordered(">", score, least), ir.IntType(LANES))
                better = better if LANES == 16 else builder.zext(better, _I16)
                builder.store(better, builder.gep(bits, [_I64(r * vectors + v)]))

    @intrinsic
    def tile(_context, codes, scales, offsets, rows, sizes, begin, worst, groups, scores, bits):  # type: ignore[no-untyped-def]
        signature = types.void(codes, scales, offsets, rows, sizes, begin, worst, types.int64, scores, bits)
        return signature, subroutine(f"int8_{queries}_{vectors}", emit)

    return tile


def _emit_sums(
    builder: Any, queries: int, vectors: int, codes: Any, rows: Any, begin: Any, groups: Any
) -> dict[tuple[int, int], Any]:
    """Vectors of sums for each query and each vector of items, by a loop over groups of four dimensions."""
    multiply = builder.module.globals.get(name := f"llvm.x86.avx512.vpdpbusd.{32 * LANES}")
    if multiply is None:
        multiply = ir.Function(builder.module, ir.FunctionType(_INTS, [_INTS] * 3), name)
    first = [_splat(builder, begin, _I64(r), _INTS) for r in range(queries)]
    entry, body, end = builder.block, builder.append_basic_block(), builder.append_basic_block()
    builder.branch(body)
    builder.position_at_end(body)
    g, sums = builder.phi(_I64), {(r, v): builder.phi(_INTS) for r in range(queries) for v in range(vectors)}
    at = [builder.add(g, builder.mul(groups, _I64(n))) for n in range(max(queries, vectors))]
    own = [_vector(builder, codes, builder.mul(at[v], _I64(4 * LANES)), _INTS) for v in range(vectors)]
    four = [_splat(builder, rows, at[r], _INTS) for r in range(queries)]
    totals = {(r, v): builder.call(multiply, [x, own[v], four[r]]) for (r, v), x in sums.items()}
    after = builder.add(g, _I64(1))
    builder.cbranch(builder.icmp_signed("<", after, groups), body, end)
    for phi, start, then in [(g, _I64(0), after)] + [(sums[cell], first[cell[0]], totals[cell]) for cell in sums]:
        phi.add_incoming(start, entry)
        phi.add_incoming(then, body)
    builder.position_at_end(end)
    return totals


def _vector(builder: Any, base: Any, at: Any, kind: Any) -> Any:
    return builder.load(builder.bitcast(builder.gep(base, [at]), kind.as_pointer()), align=1)


def _splat(builder: Any, base: Any, at: Any, kind: Any) -> Any:
    """The number at a place, in every lane."""
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), builder.load(builder.gep(base, [at])), _I32(0))
    return builder.shuffle_vector(first, first, ir.Constant(_INTS, [0] * LANES))


_many, _alone = _tile(QUERIES, VECTORS), _tile(1, ALONE)


@loop
def _scan_tiles(codes, scales, offsets, queries, sizes, begin, best, items, alone):  # type: ignore[no-untyped-def]
    """best, items [Q, kept]: a heap for each query, its worst first; `queries` has four codes in each number."""
    groups, count = codes.shape[1], len(scales)
    tall, wide = (1, ALONE) if alone else (QUERIES, VECTORS)
    worst = best[:, 0].copy()
    scores, bits = np.empty(tall * wide * LANES, dtype=np.float32), np.zeros(tall * wide, dtype=np.uint16)
    # the last vectors' factors and offsets lie in an array of their own, padded: −∞ beats nothing
    last = (count // (wide * LANES)) * wide
    some, more = np.zeros(wide * LANES, dtype=np.float32), np.full(wide * LANES, -np.inf, dtype=np.float32)
    some[: count - last * LANES], more[: count - last * LANES] = scales[last * LANES :], offsets[last * LANES :]
    for v in range(0, -(-count // LANES), wide):
        factors = address(some, 0) if v == last else address(scales, v * LANES)
        added = address(more, 0) if v == last else address(offsets, v * LANES)
        for q in range(0, len(queries), tall):
            at = (
                address(codes, v * groups * LANES * 4), factors, added, address(queries, q * groups),
                address(sizes, q), address(begin, q), address(worst, q), groups, address(scores, 0), address(bits, 0),
            )  # fmt: skip
            if alone:
                _alone(*at)
            else:
                _many(*at)
            for cell in range(tall * wide):
                if bits[cell]:
                    row, column = cell // wide, cell % wide
                    for lane in range(LANES):
                        score = scores[cell * LANES + lane]
                        if score > best[q + row, 0]:
                            _replace_worst(best[q + row], items[q + row], score, (v + column) * LANES + lane)
                    worst[q + row] = best[q + row, 0]


@loop
def _scan_rows(codes, scales, offsets, queries, sizes, best, items):  # type: ignore[no-untyped-def]
    """The same heaps from codes [I, D]."""
    sums, scores = np.empty(BLOCK, dtype=np.int32), np.empty(BLOCK, dtype=np.float32)
    for first in range(0, codes.shape[0], BLOCK):
        count = min(BLOCK, codes.shape[0] - first)
        for q in range(queries.shape[0]):
            for n in range(count):
                total = np.int32(0)
                for c in range(codes.shape[1]):
                    total = np.int32(total + np.int32(np.int32(codes[first + n, c]) * np.int32(queries[q, c])))
                sums[n] = total
            better, worst = 0, best[q, 0]
            for n in range(count):  # without a branch, so that it runs sixteen at a time
                scores[n] = np.float32(sums[n]) * scales[first + n] * sizes[q] + offsets[first + n]
                better += scores[n] > worst
            if better:
                for n in range(count):
                    if scores[n] > best[q, 0]:
                        _replace_worst(best[q], items[q], scores[n], first + n)


@loop
def _replace_worst(best, items, score, item):  # type: ignore[no-untyped-def]
    """Puts a better one in the place of the heap's worst."""
    at, size = 0, best.shape[0]
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and best[child + 1] < best[child]:
            child += 1
        if best[child] >= score:
            break
        best[at], items[at] = best[child], items[child]
        at = child
    best[at], items[at] = score, item
