"""The floating-point formats a kernel may read and write, and how a real number rounds to them."""

import math
from dataclasses import dataclass

import numpy as np

from oracle.arrays import Array, float64, namespace

U = 2.0**-24
"""Unit roundoff of float32, in which every kernel computes."""
LAM = 2.0**-126
"""Smallest normal float32: the largest error that flushing a subnormal to zero can make."""
OVERFLOW = float(np.finfo(np.float32).max) / 4
"""A float32 intermediate whose majorant reaches this may overflow: nothing that depends on it is judged."""


@dataclass(frozen=True)
class Format:
    """A binary format: `precision` significand bits, smallest normal 2**`min_exponent`, largest finite `largest`.

    `flushes`: hardware may write zero where the rounded value is subnormal (bfloat16 shares float32's range).
    """

    name: str
    precision: int
    min_exponent: int
    largest: float
    flushes: bool


FORMATS = {
    "float32": Format("float32", 24, -126, float(np.finfo(np.float32).max), True),
    "bfloat16": Format("bfloat16", 8, -126, (2 - 2.0**-7) * 2.0**127, True),
    "float16": Format("float16", 11, -14, 65504.0, False),
}


def spacing(value, fmt: Format):
    """Distance between neighbours of `fmt` in the binade of each finite value (subnormals share the smallest)."""
    xp = namespace(value)
    magnitude = xp.abs(xp.where(value == 0, 2.0**fmt.min_exponent, value))
    mantissa, _ = xp.frexp(magnitude)
    # a number over its significand is its power of two, exactly
    return xp.maximum(magnitude / (2 * mantissa), 2.0**fmt.min_exponent) * 2.0 ** (1 - fmt.precision)


def round_to(value, fmt: Format) -> Array:
    """Round float64 to nearest, ties to even, directly to `fmt` (no detour by float32); overflow gives infinity."""
    value = float64(value)
    xp = namespace(value)
    finite = xp.isfinite(value)
    step = spacing(xp.where(finite, value, 1.0), fmt)
    with np.errstate(invalid="ignore"):
        rounded = xp.round(xp.where(finite, value, 0.0) / step) * step
        rounded = xp.where(xp.abs(rounded) > fmt.largest, rounded * math.inf, rounded)
    return xp.where(finite, rounded, value)


def distance_to_cell(exact, output, fmt: Format) -> Array:
    """Distance from a finite real to the nearest real that `fmt` would write as `output`.

    float32 is exempt from rounding here: its bound already counts every float32 operation, the last one included.
    Ties belong to both neighbours. Infinity is written for reals from the overflow threshold on, NaN for none.
    """
    output = float64(output)
    xp = namespace(output)
    distance = xp.abs(exact - output)
    if fmt.name != "float32":
        finite = xp.isfinite(output)
        magnitude = xp.abs(xp.where(finite, output, 0.0))
        above = spacing(magnitude, fmt) / 2
        # below a power of two the neighbour is half as far, except at the smallest normal
        below = xp.where(magnitude > 2.0**fmt.min_exponent, spacing(xp.nextafter(magnitude, 0.0), fmt) / 2, above)
        if fmt.flushes:
            above = xp.where(magnitude == 0, LAM, above)
        same_side = xp.where(output < 0, -exact, exact)
        half = xp.where((same_side > magnitude) | (magnitude == 0), above, below)
        threshold = fmt.largest + float(spacing(np.float64(fmt.largest), fmt)) / 2
        to_infinity = xp.maximum(threshold - same_side, 0.0)
        distance = xp.where(finite, xp.maximum(distance - half, 0.0), xp.where(xp.isinf(output), to_infinity, math.inf))
    return xp.where(xp.isnan(output), math.inf, distance)


def interval(exact, error, fmt: Format) -> tuple[Array, Array]:
    """The acceptable outputs RN(exact - error) .. RN(exact + error), for reading; `distance_to_cell` decides."""
    xp = namespace(exact)
    low, high = exact - error, exact + error
    if fmt.name == "float32":
        return low, high
    low, high = round_to(low, fmt), round_to(high, fmt)
    if fmt.flushes:
        near_zero = xp.abs(exact) - error < LAM
        low, high = xp.where(near_zero, xp.minimum(low, 0.0), low), xp.where(near_zero, xp.maximum(high, 0.0), high)
    return low, high
