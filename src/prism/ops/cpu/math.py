"""The logistic function and the normal distribution, as code that LLVM vectorises.

A call into the C library takes one number at a time. These are a few additions and multiplications, right to the last
digit or two: e^x = 2^n e^r with |r| ≤ ln 2 / 2 and e^r by its power series; Φ(−|a|) = e^{−a²/2} t h(t) / 2, with h
smooth in t = 1 / (1 + |a|/√8) and fitted below for float32. (float64 is for checking: its Φ is the C library's.)
"""

import math
from inspect import unwrap
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types

from prism.ops.cpu.compiling import intrinsic, overload


def _fit(degree: int) -> tuple[float, ...]:
    """h(t) = e^{z²} erfc(z) / t as a polynomial in 2t − 1, for z = |a|/√2 up to where e^{−z²} is 0 in float32."""
    lowest = 1 / (1 + 10.5 / 2)
    t = lowest + (1 - lowest) * (1 + np.cos(np.pi * (np.arange(200) + 0.5) / 200)) / 2
    h = [math.exp(z * z) * math.erfc(z) / s for s, z in zip(t, 2 / t - 2, strict=True)]
    fit = np.polynomial.Chebyshev.fit(t, h, degree, domain=[0, 1])
    return tuple(fit.convert(kind=np.polynomial.Polynomial, domain=[0, 1], window=[-1, 1]).coef.tolist())


_H = tuple(np.float32(c) for c in _fit(12))


@intrinsic
def _power_of_two(_context, n, like):  # type: ignore[no-untyped-def]
    """2^n by writing the bits of the exponent; n within the range of normal numbers."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        single = signature.return_type == types.float32
        integer, bias, shift = (ir.IntType(32), 127, 23) if single else (ir.IntType(64), 1023, 52)
        bits = builder.shl(builder.add(args[0], integer(bias)), integer(shift))
        return builder.bitcast(bits, context.get_value_type(signature.return_type))

    return like(types.int32 if like == types.float32 else types.int64, like), generate


def polynomial(u: Any, c: Any) -> Any:
    """c_0 + c_1 u + c_2 u² + …, written out: a loop over the coefficients would not vectorise."""
    raise NotImplementedError("compiled code only")


def exponential(x: Any) -> Any:
    """e^x for x ≤ 0; 0 where the result would be subnormal."""
    raise NotImplementedError("compiled code only")


def sigmoid(x: Any) -> Any:
    """1 / (1 + e^{−x}), without overflow."""
    raise NotImplementedError("compiled code only")


def normal(a: Any) -> Any:
    """Φ(a) and its derivative φ(a), the distribution and the density of a normal variable."""
    raise NotImplementedError("compiled code only")


@overload(polynomial)
def _polynomial(u, c):  # type: ignore[no-untyped-def]
    def last(u, c):  # type: ignore[no-untyped-def]
        return c[0]

    def code(u, c):  # type: ignore[no-untyped-def]
        return c[0] + u * polynomial(u, c[1:])

    return unwrap(last if len(c) == 1 else code)


@overload(exponential)
def _exponential(x):  # type: ignore[no-untyped-def]
    single = x == types.float32
    real, integer = (np.float32, np.int32) if single else (np.float64, np.int64)
    lowest, degree = (real(-87), 7) if single else (real(-708), 13)
    # ln 2 in two parts, the first of so few digits that n times it is exact
    ln2 = 0.693359375 if single else 0.693147180369123816490
    high, low, log2_e = real(ln2), real(math.log(2) - ln2), real(1 / math.log(2))
    series = tuple(real(1 / math.factorial(k)) for k in range(degree + 1))
    zero = real(0)

    def code(x):  # type: ignore[no-untyped-def]
        bounded = x if x > lowest else lowest
        n = np.rint(bounded * log2_e)
        r = (bounded - n * high) - n * low
        power = polynomial(r, series) * _power_of_two(integer(n), x)
        return power if x > lowest else (x if x != x else zero)

    return unwrap(code)


@overload(sigmoid)
def _sigmoid(x):  # type: ignore[no-untyped-def]
    one = np.float32(1) if x == types.float32 else np.float64(1)

    def code(x):  # type: ignore[no-untyped-def]
        e = exponential(-abs(x))
        return (one if x >= 0 else e) / (one + e)

    return unwrap(code)


@overload(normal)
def _normal(a):  # type: ignore[no-untyped-def]
    real = np.float32 if a == types.float32 else np.float64
    one, two, half, slope = real(1), real(2), real(0.5), real(1 / math.sqrt(8))
    root_half, density = real(math.sqrt(0.5)), real(1 / math.sqrt(2 * math.pi))

    def single(a):  # type: ignore[no-untyped-def]
        e = exponential(-half * a * a)
        t = one / (one + slope * abs(a))
        tail = half * e * t * polynomial(two * t - one, _H)
        return (tail if a < 0 else one - tail), density * e

    def double(a):  # type: ignore[no-untyped-def]
        return half * math.erfc(-root_half * a), density * math.exp(-half * a * a)

    return unwrap(single if a == types.float32 else double)
