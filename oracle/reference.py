"""The float64 reference: forward and adjoint by the careful formulas, every intermediate by name."""

from dataclasses import dataclass

import numpy as np

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
    keep: np.ndarray  # [B, T, 1] bool: no reset
    i: np.ndarray  # input gate
    i_not: np.ndarray  # 1 - i, from sigmoid(-gate_x)
    r: np.ndarray  # recurrence gate
    r_not: np.ndarray
    softplus_p: np.ndarray  # softplus(a_param), selected to 0 at resets
    sigmoid_p: np.ndarray  # [D]
    L: np.ndarray  # log of the decay
    a: np.ndarray  # decay, 0 at resets
    a_squared: np.ndarray
    z: np.ndarray  # 1 - a^2
    m: np.ndarray  # multiplier: sqrt(z), 1 at resets
    u: np.ndarray  # write: m i x
    h: np.ndarray
    h_prev: np.ndarray  # h_{t-1}, 0 at resets
    g: np.ndarray  # adjoint of h
    slope: np.ndarray  # derivative of sqrt(z), bounded
    t1: np.ndarray  # the part of dL through the decay
    t2: np.ndarray  # the part of dL through the multiplier
    dL: np.ndarray
    w: np.ndarray  # terms of da_param
    y: np.ndarray
    h_last: np.ndarray  # [B, D]
    dx: np.ndarray
    dgate_x: np.ndarray
    dgate_a: np.ndarray
    da_param: np.ndarray  # [D]
    dh0: np.ndarray  # [B, D]


def sigmoid(x):
    """1 / (1 + exp(-x)) without overflow; relative error below 3 units of 2**-53 on both sides."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, e) / (1.0 + e)


def solve(case: Case) -> Reference:
    """Forward and adjoint of `case` in float64 (absent cotangents count as zero).

    Against mpmath at 50 digits each output is within 4e-9 of its float32 bound (oracle/tests/test_exact.py).
    """
    with np.errstate(all="ignore"):
        return _solve(case)


def _solve(case: Case) -> Reference:
    batch, steps, width = case.shape
    x, gate_x, a_param = (v.astype(np.float64) for v in (case.x, case.gate_x, case.a_param))
    keep = ~case.reset[..., None]
    gate_a = np.where(keep, case.gate_a.astype(np.float64), 0.0)
    h0, dh_last = (np.zeros((batch, width)) if v is None else v.astype(np.float64) for v in (case.h0, case.dh_last))
    dy = np.zeros(case.shape) if case.dy is None else case.dy.astype(np.float64)

    i, i_not = sigmoid(gate_x), sigmoid(-gate_x)
    r, r_not = sigmoid(gate_a), sigmoid(-gate_a)
    softplus_p = np.where(keep, np.logaddexp(0.0, a_param), 0.0)
    sigmoid_p = sigmoid(a_param)
    L = -C * r * softplus_p
    z = -np.expm1(2 * L)
    a_squared = np.exp(2 * L)
    a = np.where(keep, np.exp(L), 0.0)
    m = np.where(keep, np.sqrt(z), 1.0)
    u = m * i * x
    h = np.empty(case.shape)
    h_prev = np.empty(case.shape)
    state = h0
    for t in range(steps):
        h_prev[:, t] = np.where(keep[:, t], state, 0.0)
        state = a[:, t] * h_prev[:, t] + u[:, t]
        h[:, t] = state
    h_last = state.copy()

    g = np.empty(case.shape)
    carry = dh_last
    for t in range(steps - 1, -1, -1):
        g[:, t] = carry + dy[:, t]
        carry = np.where(keep[:, t], a[:, t] * g[:, t], 0.0)
    slope = 1.0 / np.sqrt(np.maximum(4 * z, MAX_SQRT_GRADIENT**-2))
    t1 = np.where(keep, a * g * h_prev, 0.0)
    t2 = np.where(keep, -2 * a_squared * slope * i * x * g, 0.0)
    dL = t1 + t2
    w = np.where(keep, -C * dL * r * sigmoid_p, 0.0)
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
        h_last=h_last,
        dx=g * m * i,
        dgate_x=g * m * x * (i * i_not),
        dgate_a=np.where(keep, -C * dL * softplus_p * (r * r_not), 0.0),
        da_param=w.sum((0, 1)),
        dh0=carry,
    )
