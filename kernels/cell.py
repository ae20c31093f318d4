"""One step of the RG-LRU, in float32: what every kernel computes from the gates, written once.

Exponentials, reciprocals and roots are what the hardware has in one instruction; log2(e) is folded in. Where a product
feeds a sum the fused multiply-add is spelled out, so that every kernel rounds alike. Nothing here knows of tiles or of
time.
"""

import triton
import triton.language as tl

from kernels import interpreter

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
"""Whether Triton runs its interpreter (TRITON_INTERPRET=1 before Triton is imported)."""
if INTERPRETED.value:
    interpreter.prepare_once()

LOG2_E = tl.constexpr(1.4426950408889634)
C = tl.constexpr(8.0)
MAX_SLOPE = tl.constexpr(2000.0)
"""2 MAX_SQRT_GRADIENT: 1 / m where that is less."""
SMALLEST_NORMAL = tl.constexpr(1.1754943508222875e-38)
NEAR_ONE = tl.constexpr(-0.25)
"""log2(a) above which 1 - a^2 is taken from its polynomial."""
POLYNOMIAL = tl.constexpr(
    (
        -0.03694247081875801,
        -0.15266050398349762,
        -0.4439232647418976,
        -0.9609025716781616,
        -1.3862943649291992,
    )
)
"""(1 - 2^(2 l)) / l on [-1/4, 0], highest power first: minimax in relative error, 0.53 u with rounded coefficients."""


@triton.jit
def softplus(p):
    """log(1 + exp(p)) as max(p, 0) + log1p(exp(-|p|)), log1p by 2 atanh(e / (2 + e)), which loses nothing at small e.

    The series up to s^15 at s <= 1/3 is short by 2e-9, 1/40 of a float32 rounding.
    """
    e = tl.exp2(tl.abs(p) * -LOG2_E.value)
    s = e / (2.0 + e)
    q = s * s
    series = 1 / 15
    for n in tl.static_range(1, 8):
        series = tl.fma(q, series, 1 / (15 - 2 * n))
    # p + |p| keeps a NaN, which maximum would drop
    return tl.fma(2.0 * s, series, 0.5 * (p + tl.abs(p)))


@triton.jit
def reciprocal(b):
    """1 / b for b >= 1, in one instruction, where Triton's division takes five."""
    if INTERPRETED:
        return 1.0 / b
    else:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [b], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)): 0 and 1 at the ends."""
    return reciprocal(1.0 + tl.exp2(x * -LOG2_E.value))


@triton.jit
def cell(gate_x, gate_a, rate):
    """Gates i and r, decay a and z = 1 - a^2; rate = -8 log2(e) softplus(a_param), log2(a) = r rate.

    Near a = 1 the difference 1 - a^2 cancels: there it is a polynomial in log2(a).
    """
    i = sigmoid(gate_x)
    r = sigmoid(gate_a)
    log2_a = r * rate
    a = tl.exp2(log2_a)
    ratio = POLYNOMIAL.value[0]
    for n in tl.static_range(1, 5):
        ratio = tl.fma(log2_a, ratio, POLYNOMIAL.value[n])
    return i, r, a, tl.where(log2_a > NEAR_ONE.value, log2_a * ratio, tl.fma(-a, a, 1.0))


@triton.jit
def multiplier_and_slope(z):
    """m = sqrt(z) and its bounded slope 1 / max(m, 1 / 2000), from one root; who needs m alone takes tl.sqrt."""
    root = tl.rsqrt(tl.maximum(z, SMALLEST_NORMAL.value))
    return z * root, tl.minimum(root, MAX_SLOPE.value)


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
