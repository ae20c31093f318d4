"""The float64 reference: forward and adjoint by the careful formulas, every intermediate by name."""

from dataclasses import dataclass

import numpy as np

from oracle.arrays import Array, float64, is_array, namespace, zeros
from oracle.case import Case

C = 8.0
"""The constant of the decay, a = exp(-C r softplus(a_param)) (Griffin, arXiv 2402.19427, eq. 4)."""
MAX_SQRT_GRADIENT = 1000.0
"""Bound on the derivative of sqrt(1 - a^2) (recurrentgemma 1.0.1): keeps bfloat16 training free of NaN."""


@dataclass(frozen=True, eq=False)
class Reference:
    """Forward and adjoint values in float64, [B, T, D] unless said.

    At a reset everything made of the past, of gate_a or of a_param is selected, whatever the inputs hold: there
    r = 1/2, softplus_p = 0, a = 0, m = 1, h_prev = 0, dL = 0.
    """

    case: Case
    keep: Array  # [B, T, 1] bool: no reset
    i: Array  # input gate
    i_not: Array  # 1 - i, from sigmoid(-gate_x)
    r: Array  # recurrence gate
    r_not: Array
    softplus_p: Array  # softplus(a_param), selected to 0 at resets
    sigmoid_p: Array  # [D]
    L: Array  # log of the decay
    a: Array  # decay, 0 at resets
    a_squared: Array
    z: Array  # 1 - a^2
    m: Array  # multiplier: sqrt(z), 1 at resets
    u: Array  # write: m i x
    h: Array
    h_prev: Array  # h_{t-1}, 0 at resets
    g: Array  # adjoint of h
    slope: Array  # derivative of sqrt(z), bounded
    t1: Array  # the part of dL through the decay
    t2: Array  # the part of dL through the multiplier
    dL: Array
    w: Array  # terms of da_param
    y: Array
    h_last: Array  # [B, D]
    dx: Array
    dgate_x: Array
    dgate_a: Array
    da_param: Array  # [D]
    dh0: Array  # [B, D]


def sigmoid(x):
    """1 / (1 + exp(-x)) without overflow; relative error below 3 units of 2**-53 on both sides."""
    xp = namespace(x)
    e = xp.exp(-xp.abs(x))
    return xp.where(x >= 0, 1.0, e) / (1.0 + e)


def scan(decay, writes, start, keep, *, reverse: bool = False) -> Array:
    """States of h_t = decay_t h_{t-1} + write_t along axis 1, h_{t-1} selected to zero where not `keep`.

    Parameters
    ----------
    decay : array [B, T, D], or a number
    writes : tuple of such
        Added in turn.
    start : array [B, D]
        The state before the first step.
    keep : bool array [B, T, 1] or [B, T, D]
    reverse
        From the last step to the first: h_t is made of h_{t+1}.
    """
    xp = namespace(start)
    steps = keep.shape[1]
    if not steps:
        return zeros((start.shape[0], 0, start.shape[1]), start)
    order = slice(None, None, -1) if reverse else slice(None)

    def along(values):
        return [values] * steps if isinstance(values, float) else xp.unstack(values, axis=1)[order]

    nothing = xp.zeros_like(start)
    state, states = start, []
    for kept, factor, *terms in zip(*map(along, (keep, decay, *writes)), strict=True):
        state = factor * xp.where(kept, state, nothing)
        for term in terms:
            state = state + term
        states.append(state)
    return xp.stack(states[order], axis=1)


def previous(values, edge, *, reverse: bool = False) -> Array:
    """`values` of the step before along axis 1 (of the step after where `reverse`), and `edge` where there is none.

    `edge` is a number, or an array without that axis.
    """
    xp = namespace(values)
    edge = edge[:, None] if is_array(edge) else xp.full_like(values[:, :1], edge)
    parts = [values[:, 1:], edge] if reverse else [edge, values[:, :-1]]
    return xp.concat(parts, axis=1)[:, : values.shape[1]]


def states_and_cotangents(case: Case) -> tuple[Array, Array, Array]:
    """(h0, dy, dh_last) in float64, zero where absent."""
    batch, _, width = case.shape
    arrays = ((case.h0, (batch, width)), (case.dy, case.shape), (case.dh_last, (batch, width)))
    h0, dy, dh_last = (zeros(shape, case.x) if array is None else float64(array) for array, shape in arrays)
    return h0, dy, dh_last


def solve(case: Case) -> Reference:
    """Forward and adjoint of `case` in float64 (absent cotangents count as zero).

    Against mpmath at 50 digits each output is within 4e-9 of its float32 bound (oracle/tests/test_exact.py).
    """
    with np.errstate(all="ignore"):
        return _solve(case)


def _solve(case: Case) -> Reference:
    xp, (_, steps, _) = namespace(case.x), case.shape
    x, gate_x, a_param = (float64(v) for v in (case.x, case.gate_x, case.a_param))
    keep = ~case.reset[..., None]
    gate_a = xp.where(keep, float64(case.gate_a), 0.0)
    h0, dy, dh_last = states_and_cotangents(case)

    i, i_not = sigmoid(gate_x), sigmoid(-gate_x)
    r, r_not = sigmoid(gate_a), sigmoid(-gate_a)
    softplus_p = xp.where(keep, xp.logaddexp(0.0, a_param), 0.0)
    sigmoid_p = sigmoid(a_param)
    L = -C * r * softplus_p
    z = -xp.expm1(2 * L)
    a_squared = xp.exp(2 * L)
    a = xp.where(keep, xp.exp(L), 0.0)
    m = xp.where(keep, xp.sqrt(z), 1.0)
    u = m * i * x
    h = scan(a, (u,), h0, keep)
    h_prev = xp.where(keep, previous(h, h0), 0.0)

    # g_t = dy_t + a_{t+1} g_{t+1}, started by dh_last with factor 1
    a_next, keep_next = previous(a, 1.0, reverse=True), previous(keep, True, reverse=True)
    g = scan(a_next, (dy,), dh_last, keep_next, reverse=True)
    slope = 1.0 / xp.sqrt(xp.maximum(4 * z, MAX_SQRT_GRADIENT**-2))
    t1 = xp.where(keep, a * g * h_prev, 0.0)
    t2 = xp.where(keep, -2 * a_squared * slope * i * x * g, 0.0)
    dL = t1 + t2
    w = xp.where(keep, -C * dL * r * sigmoid_p, 0.0)
    return Reference(
        case=case,
        keep=keep,
        i=i,
        i_not=i_not,
        r=r,
        r_not=r_not,
        softplus_p=softplus_p,
        sigmoid_p=sigmoid_p,
        L=L,
        a=a,
        a_squared=a_squared,
        z=z,
        m=m,
        u=u,
        h=h,
        h_prev=h_prev,
        g=g,
        slope=slope,
        t1=t1,
        t2=t2,
        dL=dL,
        w=w,
        y=h,
        h_last=h[:, -1] if steps else h0,
        dx=g * m * i,
        dgate_x=g * m * x * (i * i_not),
        dgate_a=xp.where(keep, -C * dL * softplus_p * (r * r_not), 0.0),
        da_param=xp.sum(w, axis=(0, 1)),
        dh0=xp.where(keep[:, 0], a[:, 0] * g[:, 0], 0.0) if steps else dh_last,
    )
