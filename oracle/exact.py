"""The exact twin of the reference: RG-LRU on scalars of any precision, token by token, sharing no formula with it.

It is slow (about 0.2 ms a token and channel) and exists to judge oracle/reference.py; no kernel is judged by it.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import mpmath
import numpy as np

from oracle.case import Case
from oracle.reference import MAX_SQRT_GRADIENT, C


@dataclass(frozen=True)
class Arithmetic:
    """A kind of real number: how to make one from a float, and the functions that RG-LRU needs of it.

    `precision()` is the context in which to compute. Numbers bring their own + - * /.
    """

    number: Callable[[float], Any]
    exp: Callable[[Any], Any]
    expm1: Callable[[Any], Any]
    log1p: Callable[[Any], Any]
    sqrt: Callable[[Any], Any]
    maximum: Callable[[Any, Any], Any]
    precision: Callable[[], contextlib.AbstractContextManager]


def mpmath_arithmetic(digits: int) -> Arithmetic:
    """Floating point of `digits` decimal digits and unbounded exponents, in a context of its own."""
    context = mpmath.MPContext()
    context.dps = digits
    return Arithmetic(
        number=context.mpf,
        exp=context.exp,
        expm1=context.expm1,
        log1p=context.log1p,
        sqrt=context.sqrt,
        maximum=max,
        precision=contextlib.nullcontext,
    )


def arb_arithmetic(digits: int) -> Arithmetic:
    """Balls that certainly hold the true value (python-flint's `arb`), computed with `digits` decimal digits."""
    import flint  # needed by the certified test alone

    return Arithmetic(
        number=flint.arb,
        exp=flint.arb.exp,
        expm1=flint.arb.expm1,
        log1p=flint.arb.log1p,
        sqrt=flint.arb.sqrt,
        maximum=flint.arb.max,
        precision=lambda: flint.ctx.workdps(digits),
    )


class Token(NamedTuple):
    """What the adjoint needs of one token in one channel: all of the forward pass, or x, i, i_not alone at a reset."""

    x: Any
    i: Any
    i_not: Any
    r: Any = None
    r_not: Any = None
    a: Any = None
    z: Any = None
    h_prev: Any = None

    @property
    def is_reset(self) -> bool:
        return self.a is None


def solve_exactly(
    case: Case, digits: int = 50, arithmetic: Callable[[int], Arithmetic] = mpmath_arithmetic
) -> dict[str, np.ndarray]:
    """Forward and adjoint of `case` (Griffin, arXiv 2402.19427, eqs. 3-6; slope bound of recurrentgemma 1.0.1).

    Parameters
    ----------
    case
        Finite inputs and cotangents; an absent cotangent counts as zero.
    digits
        Decimal digits to compute with.
    arithmetic
        `mpmath_arithmetic`, or `arb_arithmetic` for enclosures.

    Returns
    -------
    dict
        Every name of `oracle.case.OUTPUTS` with an object array of numbers: y, dx, dgate_x, dgate_a [B, T, D];
        h_last, dh0 [B, D]; da_param [D].

    Raises
    ------
    ValueError
        Where an array holds a NaN or an infinity, at a reset too: what becomes of those is a matter of selection, not
        of precision.
    """
    numbers = arithmetic(digits)
    with numbers.precision():
        arrays = lift(case, numbers)
        y, h_last, tape = forward(arrays, case.reset, numbers)
        return {"y": y, "h_last": h_last} | _adjoint(arrays, tape, numbers)


def lift(case: Case, numbers: Arithmetic) -> dict[str, np.ndarray]:
    """Every float array of `case` as numbers, absent ones as zeros; ValueError where one is not finite."""
    batch, steps, width = case.shape
    arrays = {}
    for name, shape in {
        "x": (batch, steps, width),
        "gate_x": (batch, steps, width),
        "gate_a": (batch, steps, width),
        "a_param": (width,),
        "h0": (batch, width),
        "dy": (batch, steps, width),
        "dh_last": (batch, width),
    }.items():
        given = getattr(case, name)
        array = np.zeros(shape) if given is None else given
        if not np.isfinite(array).all():
            index = [int(i) for i in np.argwhere(~np.isfinite(array))[0]]
            raise ValueError(f"{name} must be finite to be solved exactly; got {array[tuple(index)]} at {index}")
        arrays[name] = np.frompyfunc(lambda v: numbers.number(float(v)), 1, 1)(array)
    return arrays


def forward(arrays: dict[str, np.ndarray], reset: np.ndarray, numbers: Arithmetic):
    """y [B, T, D], h_last [B, D] and the tokens [B, T, D] of lifted arrays; `reset` is boolean [B, T]."""
    shape = arrays["x"].shape
    tape, y = np.empty(shape, object), np.empty(shape, object)
    rate = [C * numbers.log1p(numbers.exp(p)) for p in arrays["a_param"]]
    state = arrays["h0"].copy()
    for b, t, d in np.ndindex(*shape):
        x = arrays["x"][b, t, d]
        to_gate = numbers.exp(-arrays["gate_x"][b, t, d])
        i = 1 / (1 + to_gate)
        if reset[b, t]:
            tape[b, t, d] = Token(x, i, i * to_gate)
            state[b, d] = i * x
        else:
            to_gate_a = numbers.exp(-arrays["gate_a"][b, t, d])
            r = 1 / (1 + to_gate_a)
            log_decay = -r * rate[d]
            a, z = numbers.exp(log_decay), -numbers.expm1(2 * log_decay)
            tape[b, t, d] = Token(x, i, i * to_gate, r, r * to_gate_a, a, z, state[b, d])
            state[b, d] = a * state[b, d] + numbers.sqrt(z) * (i * x)
        y[b, t, d] = state[b, d]
    return y, state, tape


def _adjoint(arrays: dict[str, np.ndarray], tape: Any, numbers: Arithmetic) -> dict[str, np.ndarray]:
    """Reverse mode by the chain rule, with the derivative of sqrt(z) bounded."""
    zero, flattest = numbers.number(0.0), 1 / numbers.number(MAX_SQRT_GRADIENT) ** 2
    dx, dgate_x, dgate_a = (np.empty(tape.shape, object) for _ in range(3))
    growth = [numbers.exp(p) for p in arrays["a_param"]]
    dsoftplus = np.array([zero for _ in growth], object)
    carry = arrays["dh_last"].copy()
    for b, t, d in reversed(list(np.ndindex(*tape.shape))):
        token = tape[b, t, d]
        g = arrays["dy"][b, t, d] + carry[b, d]
        write = token.i * token.x
        if token.is_reset:
            dwrite, carry[b, d], dgate_a[b, t, d] = g, zero, zero
        else:
            dwrite, carry[b, d] = g * numbers.sqrt(token.z), g * token.a
            dz = g * write / numbers.sqrt(numbers.maximum(4 * token.z, flattest))
            dlog_decay = g * token.h_prev * token.a - 2 * token.a * token.a * dz
            dr = -C * numbers.log1p(growth[d]) * dlog_decay
            dgate_a[b, t, d] = dr * token.r * token.r_not
            dsoftplus[d] = dsoftplus[d] - C * token.r * dlog_decay
        dx[b, t, d] = dwrite * token.i
        dgate_x[b, t, d] = dwrite * write * token.i_not
    da_param = np.array([ds * e / (1 + e) for ds, e in zip(dsoftplus, growth, strict=True)], object)
    return {"dx": dx, "dgate_x": dgate_x, "dgate_a": dgate_a, "da_param": da_param, "dh0": carry}
