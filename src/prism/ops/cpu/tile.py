"""Small matrix products and transposes for numba, on tiles that stay in the vector registers.

LLVM's own vectoriser stops at 256 bits on many AVX-512 machines, and keeps sums in memory where it cannot rule out
aliasing. So the innermost tiles are written in LLVM's intermediate language, with vectors as wide as the machine's:
ROWS × (1 to 3) vectors of sums stay in registers while a loop runs over the inner dimension. All sizes but the inner
one must be whole tiles; callers pad with zeros.
"""

from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding as llvm  # type: ignore[import-untyped]
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import config
from numba.np.arrayobj import make_array

from prism.ops.cpu.compiling import inner, intrinsic

_HOST = llvm.get_host_cpu_features().flatten() if config.CPU_FEATURES is None else config.CPU_FEATURES
FEATURES = _HOST.split(",")
# Bytes of a vector register, and rows of a tile: 3 · ROWS sums, 3 operands and a broadcast fit the register file.
BYTES, ROWS = (64, 8) if "+avx512f" in FEATURES else (32, 4) if "+avx" in FEATURES else (16, 4)
_I32, _I64 = ir.IntType(32), ir.IntType(64)
# Fused multiply-add where the machine has one; no flag that assumes finite numbers.
_FUSE = ("contract",)


class _Vectors:
    """Vectors of one element type, emitted through `builder`."""

    def __init__(self, builder: Any, element: Any):
        self.builder, self.element = builder, element
        self.itemsize = 4 if isinstance(element, ir.FloatType) else 8
        self.width = BYTES // self.itemsize
        self.type = ir.VectorType(element, self.width)
        self.zero = ir.Constant(self.type, [0.0] * self.width)

    def _at(self, base: Any, offset: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(base, [offset]), self.type.as_pointer())

    def load(self, base: Any, offset: Any) -> Any:
        return self.builder.load(self._at(base, offset), align=self.itemsize)

    def store(self, value: Any, base: Any, offset: Any) -> None:
        self.builder.store(value, self._at(base, offset), align=self.itemsize)

    def splat(self, x: Any) -> Any:
        first = self.builder.insert_element(self.zero, x, _I32(0))
        return self.shuffle(first, first, [0] * self.width)

    def shuffle(self, a: Any, b: Any, indices: list[int]) -> Any:
        return self.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, self.width), indices))

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return self.builder.fadd(self.builder.fmul(a, b, flags=_FUSE), c, flags=_FUSE)


def subroutine(name: str, emit: Callable[..., None]) -> Callable[..., Any]:
    """Code for an intrinsic that calls `emit`'s instructions as one subroutine: never copied into its callers.

    `emit` gets a builder, the type that the first argument points to, and the arguments.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        element = context.get_value_type(signature.args[0].dtype)
        kind = ir.FunctionType(ir.VoidType(), [arg.type for arg in args])
        full_name = f"prism_{name}_{element}"
        function = builder.module.globals.get(full_name)
        if function is None:
            function = ir.Function(builder.module, kind, full_name)
            function.linkage = "linkonce_odr"
            function.attributes.add("noinline")
            body = ir.IRBuilder(function.append_basic_block())
            emit(body, element, *function.args)
            body.ret_void()
        builder.call(function, args)
        return context.get_dummy_value()

    return generate


def _product_tile(columns: int) -> Any:
    """The intrinsic c = A B (`new`) or c = keep · c + A B on ROWS × `columns` vectors, for inner dimensions n ≥ 1."""
    cells = [(i, j) for i in range(ROWS) for j in range(columns)]

    def emit(builder: Any, element: Any, *args: Any) -> None:
        x = _Vectors(builder, element)
        c, ldc, a, am, ap, b, ldb, n, keep, new = args
        rows = [builder.mul(am, _I64(i)) for i in range(ROWS)]
        entry, loop, end = builder.block, builder.append_basic_block(), builder.append_basic_block()
        builder.branch(loop)

        builder.position_at_end(loop)
        p, sums = builder.phi(_I64), {cell: builder.phi(x.type) for cell in cells}
        b_p = [x.load(b, builder.add(builder.mul(p, ldb), _I64(j * x.width))) for j in range(columns)]
        a_p = [x.splat(builder.load(builder.gep(a, [builder.add(builder.mul(p, ap), row)]))) for row in rows]
        totals = {(i, j): x.fma(a_p[i], b_p[j], sums[i, j]) for i, j in cells}
        p_next = builder.add(p, _I64(1))
        builder.cbranch(builder.icmp_signed("<", p_next, n), loop, end)
        for phi, first, then in [(p, _I64(0), p_next)] + [(sums[cell], x.zero, totals[cell]) for cell in cells]:
            phi.add_incoming(first, entry)
            phi.add_incoming(then, loop)

        builder.position_at_end(end)
        at = {(i, j): builder.add(builder.mul(ldc, _I64(i)), _I64(j * x.width)) for i, j in cells}
        with builder.if_else(new) as (then, otherwise):
            with then:
                for cell in cells:
                    x.store(totals[cell], c, at[cell])
            with otherwise:
                factor = x.splat(keep)
                for cell in cells:
                    x.store(x.fma(factor, x.load(c, at[cell]), totals[cell]), c, at[cell])

    @intrinsic
    def tile(_context, c, ldc, a, am, ap, b, ldb, n, keep, new):  # type: ignore[no-untyped-def]
        i = types.int64
        signature = types.void(c, i, a, i, i, b, i, i, c.dtype, types.boolean)
        return signature, subroutine(f"product_{columns}", emit)

    return tile


_tile_1, _tile_2, _tile_3 = _product_tile(1), _product_tile(2), _product_tile(3)


def _emit_transpose(builder: Any, element: Any, *args: Any) -> None:
    x = _Vectors(builder, element)
    to, ldt, a, lda, factors, add = args
    rows = [x.load(a, builder.mul(lda, _I64(r))) for r in range(x.width)]
    half = x.width // 2
    while half:  # exchange the off-diagonal quarters of each block of 2 · half rows and lanes
        upper = [j - half + x.width if j & half else j for j in range(x.width)]
        lower = [j + x.width if j & half else j + half for j in range(x.width)]
        for r in (r for r in range(x.width) if not r & half):
            top, bottom = rows[r], rows[r + half]
            rows[r], rows[r + half] = x.shuffle(top, bottom, upper), x.shuffle(top, bottom, lower)
        half //= 2
    at = [builder.mul(ldt, _I64(r)) for r in range(x.width)]
    with builder.if_else(add) as (then, otherwise):
        with then:
            for r in range(x.width):
                factor = x.splat(builder.load(builder.gep(factors, [_I64(r)])))
                x.store(x.fma(factor, rows[r], x.load(to, at[r])), to, at[r])
        with otherwise:
            for r in range(x.width):
                x.store(rows[r], to, at[r])


@intrinsic
def _transpose_tile(_context, to, ldt, a, lda, factors, add):  # type: ignore[no-untyped-def]
    """to = aᵀ, or to += diag(factors) aᵀ (`add`), on a square tile, in log2(width) rounds of shuffles."""
    i = types.int64
    return types.void(to, i, a, i, factors, types.boolean), subroutine("transpose", _emit_transpose)


@intrinsic
def address(_context, array, offset):  # type: ignore[no-untyped-def]
    """The address of the element at a flat `offset` of a contiguous array."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.gep(make_array(signature.args[0])(context, builder, args[0]).data, [args[1]])

    return types.CPointer(array.dtype)(array, types.int64), generate


@inner
def _product(c, a, start, am, ap, b, keep, new):  # type: ignore[no-untyped-def]
    """c = A B or keep · c + A B, with A[m, p] = a.flat[start + m · am + p · ap]."""
    M, N = c.shape
    n = b.shape[0]
    width = BYTES // c.itemsize
    column = 0
    while column < N:
        left = (N - column) // width
        # 4 = 2 + 2: a tile of one vector has too few sums to hide the latency of an addition
        count = 2 if left == 4 else min(left, 3)
        for m in range(0, M, ROWS):
            to, A, B = address(c, m * N + column), address(a, start + m * am), address(b, column)
            if count == 3:
                _tile_3(to, N, A, am, ap, B, N, n, keep, new != 0)
            elif count == 2:
                _tile_2(to, N, A, am, ap, B, N, n, keep, new != 0)
            else:
                _tile_1(to, N, A, am, ap, B, N, n, keep, new != 0)
        column += count * width


@inner
def set_product(c, a, b):  # type: ignore[no-untyped-def]
    """c = a b"""
    _product(c, a, np.int64(0), a.shape[1], np.int64(1), b, c.dtype.type(0), np.int64(1))


@inner
def add_product(c, a, b, column):  # type: ignore[no-untyped-def]
    """c += a[:, column : column + rows of b] b"""
    _product(c, a, np.int64(column), a.shape[1], np.int64(1), b, c.dtype.type(1), np.int64(0))


@inner
def add_product_t(c, a, b, column, keep):  # type: ignore[no-untyped-def]
    """c = keep · c + a[:, column : column + rows of c]ᵀ b"""
    _product(c, a, np.int64(column), np.int64(1), a.shape[1], b, c.dtype.type(keep), np.int64(0))


@inner
def _transpose(to, a, factors, add):  # type: ignore[no-untyped-def]
    width = BYTES // a.itemsize
    M, N = a.shape
    for m in range(0, M, width):
        for n in range(0, N, width):
            source, target, factor = address(a, m * N + n), address(to, n * M + m), address(factors, n)
            _transpose_tile(target, M, source, N, factor, add)


@inner
def set_transpose(to, a):  # type: ignore[no-untyped-def]
    """to = aᵀ"""
    _transpose(to, a, a[0], False)


@inner
def add_transpose(to, a, factors):  # type: ignore[no-untyped-def]
    """to += diag(factors) aᵀ"""
    _transpose(to, a, factors, True)
