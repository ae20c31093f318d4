"""The floating-point formats a kernel may read and write, and how a real number rounds to them."""

from dataclasses import dataclass

import numpy as np

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
    _, exponent = np.frexp(np.where(value == 0, 2.0**fmt.min_exponent, value))
    return np.ldexp(1.0, np.maximum(exponent - 1, fmt.min_exponent) - (fmt.precision - 1))


def round_to(value, fmt: Format) -> np.ndarray:
    """Round float64 to nearest, ties to even, directly to `fmt` (no detour by float32); overflow gives infinity."""
    value = np.asarray(value, np.float64)
    finite = np.isfinite(value)
    step = spacing(np.where(finite, value, 1.0), fmt)
    with np.errstate(invalid="ignore"):
        rounded = np.rint(np.where(finite, value, 0.0) / step) * step
    rounded = np.where(np.abs(rounded) > fmt.largest, np.copysign(np.inf, rounded), rounded)
    return np.where(finite, rounded, value)


def distance_to_cell(exact, output, fmt: Format) -> np.ndarray:
    """Distance from a finite real to the nearest real that `fmt` would write as `output`.

    float32 is exempt from rounding here: its bound already counts every float32 operation, the last one included.
    Ties belong to both neighbours. Infinity is written for reals from the overflow threshold on, NaN for none.
    """
    distance = np.abs(exact - output)
    if fmt.name != "float32":
        finite = np.isfinite(output)
        magnitude = np.abs(np.where(finite, output, 0.0))
        above = spacing(magnitude, fmt) / 2
        # below a power of two the neighbour is half as far, except at the smallest normal
        below = np.where(magnitude > 2.0**fmt.min_exponent, spacing(np.nextafter(magnitude, 0), fmt) / 2, above)
        if fmt.flushes:
            above = np.where(magnitude == 0, LAM, above)
        outward = np.sign(output) * (exact - output) > 0
        half = np.where(outward | (magnitude == 0), above, below)
        threshold = fmt.largest + spacing(np.float64(fmt.largest), fmt) / 2
        to_infinity = np.maximum(threshold - np.sign(output) * exact, 0.0)
        distance = np.where(finite, np.maximum(distance - half, 0.0), np.where(np.isinf(output), to_infinity, np.inf))
    return np.where(np.isnan(output), np.inf, distance)


def interval(exact, error, fmt: Format) -> tuple[np.ndarray, np.ndarray]:
    """The acceptable outputs RN(exact - error) .. RN(exact + error), for reading; `distance_to_cell` decides."""
    low, high = exact - error, exact + error
    if fmt.name == "float32":
        return low, high
    low, high = round_to(low, fmt), round_to(high, fmt)
    if fmt.flushes:
        near_zero = np.abs(exact) - error < LAM
        low, high = np.where(near_zero, np.minimum(low, 0.0), low), np.where(near_zero, np.maximum(high, 0.0), high)
    return low, high
