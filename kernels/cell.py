"""One step of the RG-LRU, in float32: what every kernel computes from the gates, written once.

Exponentials are exp2 with log2(e) folded in, as the hardware has them. Nothing here knows of tiles or of time.
"""

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
"""Whether Triton runs its interpreter (TRITON_INTERPRET=1 before Triton is imported)."""

LOG2_E = tl.constexpr(1.4426950408889634)
C = tl.constexpr(8.0)
MIN_MULTIPLIER = tl.constexpr(5e-4)
"""1 / (2 MAX_SQRT_GRADIENT): a multiplier below it has the bounded slope."""


EXPM1_SERIES = tl.constexpr(
    (
        -0.0019523499269196592,
        -0.009858259451764228,
        -0.04266738606857101,
        -0.15389006572205563,
        -0.4440328693185726,
        -0.9609060278364028,
        -1.3862943611198906,
    )
)
"""Coefficients -(2 ln 2)^n / n!, n = 7 .. 1: 1 - 2^(2 l) as a series in l."""


@triton.jit
def softplus(p):
    """log(1 + exp(p)) as max(p, 0) + log1p(exp(-|p|)), log1p by 2 atanh(e / (2 + e)), which loses nothing at small e.

    The series up to s^15 at s <= 1/3 is short by 2e-9, 1/40 of a float32 rounding.
    """
    e = tl.exp2(tl.abs(p) * -LOG2_E.value)
    s = e / (2.0 + e)
    q = s * s
    series = 1.0 + q * (1 / 3 + q * (1 / 5 + q * (1 / 7 + q * (1 / 9 + q * (1 / 11 + q * (1 / 13 + q * (1 / 15)))))))
    # p + |p| keeps a NaN, which maximum would drop
    return 0.5 * (p + tl.abs(p)) + 2.0 * s * series


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp2(x * -LOG2_E.value))


@triton.jit
def cell(gate_x, gate_a, rate):
    """Gates i and r, decay a and multiplier m = sqrt(1 - a^2); rate = -8 log2(e) softplus(a_param), log2(a) = r rate.

    Near a = 1 the difference 1 - a^2 cancels: there it is -expm1(2 ln(2) log2(a)) by its Taylor series, whose first
    missing term is below a quarter of a rounding for log2(a) > -1/4.
    """
    i = 1.0 / (1.0 + tl.exp2(gate_x * -LOG2_E.value))
    r = 1.0 / (1.0 + tl.exp2(gate_a * -LOG2_E.value))
    log2_a = r * rate
    a = tl.exp2(log2_a)
    series = EXPM1_SERIES.value[0]
    for n in tl.static_range(1, 7):
        series = EXPM1_SERIES.value[n] + log2_a * series
    z = tl.where(log2_a > -0.25, log2_a * series, 1.0 - a * a)
    return i, r, a, tl.sqrt(z)


@triton.jit
def store(pointer, value, mask):
    """Store float32 rounded to nearest even in the pointer's dtype, also under the interpreter, which truncates."""
    dtype: tl.constexpr = pointer.dtype.element_ty
    if INTERPRETED and dtype == tl.bfloat16:
        bits = value.to(tl.int32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        rounded = tl.where(value == value, rounded, 0x7FC0)  # a NaN's payload may lie in the half that is cut off
        tl.store(pointer, rounded.to(tl.int16).to(tl.bfloat16, bitcast=True), mask=mask)
    else:
        tl.store(pointer, value.to(dtype), mask=mask)
