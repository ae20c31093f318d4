"""Derived error bounds: for every output element, how far an honest float32 kernel may be from the reference.

Each quantity is a pair (value, error): the float64 value and a bound on |computed - value|, pushed through every
operation with second-order terms. No number here is a tolerance; each is a count of roundings, the accuracy of an
elementary function (`Profile`) or the flush of a subnormal. The derivation is in oracle/DERIVATION.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np

from oracle.arrays import Array, float64, namespace
from oracle.formats import FORMATS, LAM, OVERFLOW, U
from oracle.reference import MAX_SQRT_GRADIENT, C, Reference, previous, scan, sigmoid, states_and_cotangents

GRADES = ("accurate", "canonical")
"""accurate: 1 - a^2 without cancellation. canonical: 1 - exp(2L) in float32 (recurrentgemma's formula) is allowed."""
SLACK = 1 + 1e-6
"""Covers the float64 reference (measured below 4e-9 of the bound) and the float64 arithmetic of the bounds."""
SECOND_ORDER = 1 + 1e-4
"""Covers products of two relative errors below 2**-17 in the elementary functions."""


@dataclass(frozen=True)
class Profile:
    """What is assumed of a kernel's arithmetic. Errors are relative, in units of u = 2**-24 (1 ulp is at most 2 u).

    Parameters
    ----------
    exp, divide, sqrt, log1p, expm1 : float
        Largest error of the function.
    exp_argument : float
        Further error of exp per unit of its argument: exp(x) as exp2(x log2(e)) rounds the product.
    log_sum : int
        Decays may be formed as exp of a sum of up to this many L.
    order : str
        How the recurrence may be associated: "serial", "practical" (chunks, trees, Hillis-Steele), or "any".
    extra_additions : int
        Additions a term may see beyond those of `order` (a look-back over n chunks: n).
    saved : str
        Format in which backward reads h_{t-1}.
    da_param_additions : callable (B, T) -> int, optional
        Additions a term of da_param sees at most; None: any order, B T - 1.
    """

    name: str
    exp: float
    exp_argument: float
    divide: float
    sqrt: float
    log1p: float
    expm1: float
    log_sum: int = 0
    order: str = "practical"
    extra_additions: int = 0
    saved: str = "float32"
    da_param_additions: Callable[[int, int], int] | None = None

    def __post_init__(self):
        if self.order not in ("serial", "practical", "any"):
            raise ValueError(f"order must be serial, practical or any; got {self.order!r}")
        if self.saved not in FORMATS:
            raise ValueError(f"saved must be one of {', '.join(FORMATS)}; got {self.saved!r}")


LIBM = Profile("libm", exp=2, exp_argument=0, divide=1, sqrt=1.1, log1p=2, expm1=2)
"""Functions within 1 ulp, IEEE division; sqrt 1.1 because PyTorch's vectorised CPU sqrt measures 1.07."""
FAST = Profile("fast", exp=4, exp_argument=1.5, divide=4, sqrt=2, log1p=4, expm1=4)
"""PTX approximations: ex2 and div.full within 2 ulp, exp as exp2(x log2(e)), sqrt.approx within 1 ulp."""
DEFAULT = Profile("default", 4, 1.5, 4, 2, 4, 4, log_sum=16, order="any")
"""For a subject that declares nothing: `FAST`, any association, sums of up to 16 logs."""


@dataclass(frozen=True, eq=False)
class Bounds:
    """Error bound of every output before rounding to its dtype; infinite where float32 may overflow (not judged)."""

    y: Array
    h_last: Array
    dx: Array
    dgate_x: Array
    dgate_a: Array
    da_param: Array
    dh0: Array


def bound(ref: Reference, profile: Profile = DEFAULT, grade: str = "accurate") -> Bounds:
    """Bounds for the outputs of a kernel whose arithmetic fits `profile`, in the given grade."""
    if grade not in GRADES:
        raise ValueError(f"grade must be one of {', '.join(GRADES)}; got {grade!r}")
    with np.errstate(all="ignore"):
        bounds = _bound(ref, profile, grade)
    return Bounds(**{f.name: SLACK * getattr(bounds, f.name) for f in fields(Bounds)})


def _bound(ref: Reference, profile: Profile, grade: str) -> Bounds:
    case, keep, k, xp = ref.case, ref.keep, profile, namespace(ref.a)
    batch, steps, _ = case.shape
    x, a_param = float64(case.x), float64(case.a_param)
    h0, dy, dh_last = states_and_cotangents(case)
    # A non-finite a_param unjudges whatever uses it: an infinite error enters with the decay.
    unusable = keep & ~xp.isfinite(a_param)
    e_x = _flushed(x)
    e_i, e_i_not = _gate_errors(xp.abs(float64(case.gate_x)), ref.i, ref.i_not, k)
    e_r, e_r_not = _gate_errors(xp.abs(xp.where(keep, float64(case.gate_a), 0.0)), ref.r, ref.r_not, k)
    e_softplus = _softplus_error(a_param, ref.softplus_p, k)
    e_sigmoid_p = _sigmoid_error(xp.abs(a_param), ref.sigmoid_p, sigmoid(-a_param), k)
    e_a, e_square, e_m, e_slope = _decay_errors(ref, e_r, e_softplus, k, grade)

    # forward
    e_a, e_m = (xp.where(unusable, math.inf, e) for e in (e_a, e_m))
    e_u = _product([(ref.m, e_m), (ref.i, e_i), (x, e_x)], roundings=2)
    _, e_h = _scan_error(ref.a, e_a, ref.u, e_u, h0, _flushed(h0), keep, k)
    del e_u
    e_h_last = e_h[:, -1] if steps else _flushed(h0)
    before = previous(e_h, _flushed(h0))
    e_h_prev = xp.where(keep, before + _saved_error(ref.h_prev, before, k.saved), 0.0)
    del before

    # backward: g_t = dy_t + a_{t+1} g_{t+1}, started by dh_last with factor 1
    majorant, e_g = _scan_error(
        previous(ref.a, 1.0, reverse=True),
        previous(e_a, 0.0, reverse=True),
        dy,
        _flushed(dy),
        dh_last,
        _flushed(dh_last),
        previous(keep, True, reverse=True),
        k,
        reverse=True,
    )
    g = (ref.g, e_g)
    e_dx = _product([g, (ref.m, e_m), (ref.i, e_i)], roundings=2)
    e_dgate_x = _product([g, (ref.m, e_m), (x, e_x), (ref.i, e_i), (ref.i_not, e_i_not)], roundings=4)
    e_t1 = _product([(ref.a, e_a), g, (ref.h_prev, e_h_prev)], roundings=2)
    twice_square = (2 * ref.a_squared, 2 * e_square)
    e_t2 = _product([twice_square, (ref.slope, e_slope), (ref.i, e_i), (x, e_x), g], roundings=4)
    del twice_square
    both = xp.where(keep, xp.abs(ref.t1) + xp.abs(ref.t2) + e_t1 + e_t2, 0.0)
    e_dL = xp.where(keep, e_t1 + e_t2 + 2 * U * both + LAM, 0.0)
    # factors may be distributed over t1 and t2: their roundings act on the two parts, not on the difference
    e_dgate_a = _product(
        [(ref.dL, e_dL), (ref.softplus_p, e_softplus), (ref.r, e_r), (ref.r_not, e_r_not)], roundings=3, constant=C
    )
    e_dgate_a = e_dgate_a + 4 * U * C * both * (ref.softplus_p + e_softplus) * (ref.r + e_r) * (ref.r_not + e_r_not)
    e_dgate_a = xp.where(unusable, math.inf, xp.where(keep, e_dgate_a, 0.0))

    # da_param: B T terms in any order, or with the declared number of additions
    part = C * both * (ref.r + e_r) * (ref.sigmoid_p + e_sigmoid_p)
    e_w = _product([(ref.dL, e_dL), (ref.r, e_r), (ref.sigmoid_p, e_sigmoid_p)], roundings=2, constant=C)
    e_w = e_w + 3 * U * part
    part, e_w = (xp.where(unusable, math.inf, xp.where(keep, v, 0.0)) for v in (part, e_w))
    terms = batch * steps
    additions = max(terms - 1, 0)
    if k.da_param_additions is not None:
        additions = min(k.da_param_additions(batch, steps), additions)
    total = xp.sum(part + e_w, axis=(0, 1))
    any_kept = float64(xp.any(keep, axis=(0, 1)))
    e_da_param = xp.sum(e_w, axis=(0, 1)) + _gamma(additions) * total + terms * LAM * any_kept
    e_da_param = xp.where(total < OVERFLOW, e_da_param, math.inf)

    if steps:
        e_dh0 = _product([(ref.a[:, 0], e_a[:, 0]), (ref.g[:, 0], e_g[:, 0])], roundings=1)
        # formed as (a_0 ... a_t) dy_t in any order, products may flush: only terms of the first document count
        first = xp.cumulative_sum(float64(~keep), axis=1) == 0
        reaching = xp.sum(xp.where(first, xp.abs(dy), 0.0), axis=1) + xp.where(first[:, -1], xp.abs(dh_last), 0.0)
        e_dh0 = xp.where(keep[:, 0], e_dh0 + 2 * U * ref.a[:, 0] * majorant[:, 0] + 2 * LAM * reaching, 0.0)
        e_dh0 = xp.where(unusable[:, 0], math.inf, e_dh0)
    else:
        e_dh0 = _flushed(dh_last)
    return Bounds(e_h, e_h_last, e_dx, e_dgate_x, e_dgate_a, e_da_param, e_dh0)


def _gate_errors(magnitude, gate, gate_not, profile: Profile):
    """Errors of a gate and of one minus it, for logits of `magnitude`."""
    e_gate = _sigmoid_error(magnitude, gate, gate_not, profile)
    return e_gate, _complement_error(magnitude, gate, gate_not, e_gate, profile)


def _decay_errors(ref: Reference, e_r, e_softplus, k: Profile, grade: str):
    """Errors of the decay, its square, the multiplier and the slope."""
    xp = namespace(ref.a)
    abs_L = xp.abs(ref.L)
    e_L = _product([(ref.r, e_r), (ref.softplus_p, e_softplus)], roundings=2, constant=C) + LAM
    decay = xp.exp(ref.L)
    e_decay = _exp_error(decay, e_L + (k.exp_argument + k.log_sum) * U * (abs_L + e_L), k)
    e_a = xp.where(ref.keep, e_decay, 0.0)
    e_z = ref.a_squared * _expm1(2 * e_L)
    e_z = e_z + k.expm1 * U * (ref.z + e_z) + LAM
    argument_error = k.exp_argument * U * (abs_L + e_L)
    e_single = _exp_error(decay, e_L + argument_error, k)
    e_square = xp.maximum(
        _exp_error(ref.a_squared, 2 * (e_L + argument_error), k),  # exp(2L)
        2 * decay * e_single + e_single**2 + U * (decay + e_single) ** 2 + LAM,  # a * a
    )
    del abs_L, e_L, decay, e_decay, argument_error, e_single
    if grade == "canonical":
        e_z = xp.maximum(e_z, e_square + U * (ref.z + e_square) + LAM)  # 1 - exp(2L), 1 - a*a
    e_square = xp.maximum(e_square, e_z + U * (ref.a_squared + e_z) + LAM)  # 1 - z, as autograd of expm1 forms it
    z_low, z_high = xp.maximum(ref.z - e_z, 0.0), xp.minimum(ref.z + e_z, 1.0)
    root = xp.sqrt(ref.z)
    e_m = xp.maximum(xp.sqrt(z_high) - root, root - xp.sqrt(z_low)) + k.sqrt * U * xp.sqrt(z_high) + LAM
    e_m = xp.where(ref.keep, e_m, 0.0)
    steep, flat = (1.0 / xp.sqrt(xp.maximum(4 * z, MAX_SQRT_GRADIENT**-2)) for z in (z_low, z_high))
    # the last unit is the clip's own threshold as a float32 literal
    e_slope = xp.maximum(steep - ref.slope, ref.slope - flat) + (k.sqrt + k.divide + 1) * U * steep
    return e_a, e_square, e_m, e_slope


def _scan_error(a, e_a, u, e_u, start, e_start, keep, profile: Profile, *, reverse: bool = False):
    """Majorant H and error bound of h_t = a_t h_{t-1} + u_t along axis 1, however it is associated.

    An overflow sticks until the next reset; everything carried is selected away at a reset.
    """
    xp = namespace(u)
    write, first, a_high = xp.abs(u), xp.abs(start), a + e_a
    H = scan(a, (write,), first, keep, reverse=reverse)
    H_prev = xp.where(keep, previous(H, first, reverse=reverse), 0.0)
    slack = (e_a + (2 * U + U * U) * a_high) * H_prev
    E = scan(a_high * (1 + U) ** 2, (slack, e_u * (1 + U), U * write, 3 * LAM), e_start, keep, reverse=reverse)
    del slack
    lost = 2 * LAM * (write + e_u)  # where a partial product of decays flushes
    flushed = scan(1.0, (lost,), 2 * LAM * first, keep & (a_high > 0), reverse=reverse)
    del write, a_high, lost
    if profile.order == "any":
        additions = _any_order_additions(a * H_prev, H, xp.ones_like(first), keep, reverse=reverse)
    else:
        additions = 0 if profile.order == "serial" else math.ceil(math.log2(u.shape[1] + 1)) + 2
    additions = additions + profile.extra_additions
    total = E + _gamma(additions) * (H + E) + flushed
    overflows = float64(~(H + total < OVERFLOW))
    overflowed = scan(1.0, (overflows,), xp.zeros_like(first), keep, reverse=reverse) > 0
    return H, xp.where(overflowed, math.inf, total)


def _any_order_additions(past, H, one, keep, *, reverse: bool):
    """Additions, in any order, that act on the majorant H, of which `past` is the past's part.

    rho_t = (past_t / H_t)^theta (rho_{t-1} + 1) says how far back additions can still act. Where H is infinite nothing
    is judged, and the past counts as nothing.
    """
    xp, theta = namespace(H), 1 / math.log(1 / U)
    shared = (H > 0) & xp.isfinite(H)
    weight = xp.where(shared, past / xp.where(shared, H, 1.0), 0.0) ** theta
    rho_and_one = scan(weight, (1.0,), one, keep, reverse=reverse)
    rho = weight * xp.where(keep, previous(rho_and_one, one, reverse=reverse), 0.0)
    count = xp.cumulative_sum(xp.ones_like(H[:1, :, :1]), axis=1)
    return xp.minimum(xp.flip(count, axis=1) if reverse else count, math.e * rho) + 1


def _product(factors, *, roundings: int, constant: float = 1.0):
    """Error of a product of (value, error) pairs in any order, when any partial product may flush or overflow.

    A `constant` of at least 1 is one more factor, a power of two: it rounds nothing, but counts for overflow.
    """
    xp = namespace(factors[0][0])
    high = exact = reach = constant
    for value, error in factors:
        value = xp.abs(value)
        largest = value + error
        high, exact, reach = high * largest, exact * value, reach * xp.maximum(largest, 1.0)
    error = high - exact + _gamma(roundings) * high + roundings * LAM * reach
    return xp.where(reach < OVERFLOW, error, math.inf)


def _gamma(n):
    """Relative error of n successive roundings."""
    return n * U / (1 - n * U)


def _flushed(value):
    """Error of reading a subnormal float32 as zero."""
    xp = namespace(value)
    magnitude = xp.abs(value)
    return xp.where(magnitude < LAM, magnitude, 0.0)


def _expm1(d):
    xp = namespace(d)
    return xp.expm1(xp.minimum(d, 700.0))


def _exp_error(value, argument_error, profile: Profile):
    """Error of exp where its argument is off by `argument_error`."""
    return value * (_expm1(argument_error) * (1 + profile.exp * U) + profile.exp * U) + LAM


def _sigmoid_error(magnitude, s, s_not, profile: Profile):
    """Error of 1 / (1 + exp(-x)): that of exp is damped by 1 - s; one addition, one division."""
    xp = namespace(magnitude)
    magnitude = xp.minimum(magnitude, 1000.0)  # from there on s or 1 - s is exactly 0 in float64
    relative = ((profile.exp + profile.exp_argument * magnitude) * s_not + 1 + profile.divide) * U
    return s * relative * SECOND_ORDER + 2 * LAM


def _complement_error(magnitude, s, s_not, e_s, profile: Profile):
    """Error of 1 - sigmoid(x), by subtraction (absolute) or as sigmoid(-x) (relative), whichever is larger."""
    xp = namespace(magnitude)
    return xp.maximum(e_s + U * (s_not + e_s), _sigmoid_error(magnitude, s_not, s, profile)) + LAM


def _softplus_error(p, softplus_p, profile: Profile):
    """Error of max(p, 0) + log1p(exp(-|p|))."""
    xp = namespace(p)
    relative = (profile.exp + profile.exp_argument * xp.minimum(xp.abs(p), 1000.0)) * sigmoid(-xp.abs(p))
    return (relative + (profile.log1p + 1) * softplus_p) * U * SECOND_ORDER + 2 * LAM


def _saved_error(h, e_h, saved: str):
    """Error of reading h_{t-1} back from the format it was saved in; h0 itself is always read as float32."""
    if saved == "float32":
        return 0.0
    xp, fmt = namespace(h), FORMATS[saved]
    unit = 2.0**-fmt.precision
    error = unit * (xp.abs(h) + e_h) + 2.0**fmt.min_exponent * (1.0 if fmt.flushes else unit)
    error = xp.where(xp.abs(h) + e_h < fmt.largest, error, math.inf)
    error[:, :1] = 0.0
    return error
