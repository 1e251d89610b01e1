"""What the kernels share: the size of a chunk, copies of padded states, dot products of rows."""

from prism.ops.cpu.compiling import inner, inner_sum

C = 16
KEEP = 64  # tokens between two states kept for the backward
PARTS = KEEP // C


@inner
def copy_state(to, a):  # type: ignore[no-untyped-def]
    """A state into a larger or a smaller one, the common part."""
    for i in range(min(to.shape[0], a.shape[0])):
        for j in range(min(to.shape[1], a.shape[1])):
            to[i, j] = a[i, j]


@inner
def copy_state_t(to, a):  # type: ignore[no-untyped-def]
    """A transposed state into a larger or a smaller one, the common part."""
    for i in range(min(to.shape[0], a.shape[1])):
        for j in range(min(to.shape[1], a.shape[0])):
            to[i, j] = a[j, i]


@inner_sum
def dot(a, i, b, j):  # type: ignore[no-untyped-def]
    """a_i · b_j, as far as a_i goes."""
    total = a.dtype.type(0)
    for c in range(a.shape[1]):
        total += a[i, c] * b[j, c]
    return total


@inner_sum
def dot_at(a, b, at, n):  # type: ignore[no-untyped-def]
    """The first n entries of a · those of b from `at` on."""
    total = a.dtype.type(0)
    for i in range(n):
        total += a[i] * b[at + i]
    return total
