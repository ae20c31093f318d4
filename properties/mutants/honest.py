"""Honest plain functions: right by semantics.md at every legal input, in the accurate grade, evaluated differently.

`HONEST` names them. Whatever is made of the past, of gate_a or of a_param is selected at resets, in both directions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from kernels.subjects import eager
from oracle.reference import MAX_SQRT_GRADIENT, C

LOG2E = math.log2(math.e)

HONEST: dict[str, Callable] = {}


def keep_mask(x: Tensor, segment_pos: Tensor | None) -> Tensor:
    """True where the past is kept, that is where no document starts; [B, T, 1]."""
    if segment_pos is None:
        return torch.ones(*x.shape[:2], 1, dtype=torch.bool, device=x.device)
    return (segment_pos != 0)[..., None]


def sqrt_slope(z: Tensor) -> Tensor:
    """The derivative of sqrt, bounded at MAX_SQRT_GRADIENT."""
    return 1 / torch.sqrt(torch.clamp(4 * z, min=MAX_SQRT_GRADIENT**-2))


# ------------------------------------------------------------------------------------------ differentiated by hand


class Functions(NamedTuple):
    """The elementary functions a kernel is made of."""

    exp: Callable
    expm1: Callable
    sigmoid: Callable
    softplus: Callable


def _exp(v):
    return torch.exp2(v * LOG2E)


def _expm1(v):
    e = _exp(v)
    kahan = (e - 1) * (v * LOG2E) / torch.log2(e)  # the rounding of e cancels in (e - 1) / log(e)
    return torch.where(e == 1, v, torch.where(e < 0.5, e - 1, kahan))


def _softplus(p):
    e = _exp(-p.abs())
    w = 1 + e
    log1p = torch.where(w == 1, e, e * (torch.log2(w) / LOG2E) / (w - 1))
    return p.clamp(min=0) + log1p


TORCH = Functions(torch.exp, torch.expm1, torch.sigmoid, functional.softplus)
BY_EXP2 = Functions(_exp, _expm1, lambda v: 1 / (1 + _exp(-v)), _softplus)


class Steps(NamedTuple):
    """h_t = a_t h_{t-1} + u_t where keep_t, else u_t; a = exp(L), each [B, T, D], keep [B, T, 1]."""

    a: Tensor
    L: Tensor
    u: Tensor
    keep: Tensor

    def reversed(self, u: Tensor) -> Steps:
        """The adjoint recurrence g_t = a_{t+1} g_{t+1} + u_t, last token first."""

        def ahead(v, last):
            return torch.cat([v[:, 1:], torch.full_like(v[:, :1], last)], 1).flip(1)

        return Steps(ahead(self.a, 1.0), ahead(self.L, 0.0), u.flip(1), ahead(self.keep, True))


class Cell(NamedTuple):
    """What a token does by itself, in float32; r, softplus and L are 0, a is 0 and m is 1 at resets."""

    i: Tensor
    r: Tensor
    softplus: Tensor
    L: Tensor
    a: Tensor
    z: Tensor
    m: Tensor

    @classmethod
    def of(cls, gate_x, gate_a, a_param, keep, functions: Functions) -> Cell:
        r = torch.where(keep, functions.sigmoid(gate_a.float()), 0.0)
        softplus = torch.where(keep, functions.softplus(a_param), 0.0)
        L = -C * r * softplus
        z = -functions.expm1(2 * L)
        a = torch.where(keep, functions.exp(L), 0.0)
        m = torch.where(keep, torch.sqrt(z), 1.0)
        return cls(functions.sigmoid(gate_x.float()), r, softplus, L, a, z, m)


class ByHand(torch.autograd.Function):
    """The operator with its own backward, for any scan (Steps, start) -> h."""

    @staticmethod
    def forward(ctx, x, gate_x, gate_a, a_param, h0, keep, scan, functions):
        cell = Cell.of(gate_x, gate_a, a_param, keep, functions)
        u = cell.m * cell.i * x.float()
        start = u.new_zeros(x.shape[0], x.shape[2]) if h0 is None else h0
        h = scan(Steps(cell.a, cell.L, u, keep), start) if x.shape[1] else u
        ctx.scan, ctx.functions = scan, functions
        ctx.save_for_backward(x, gate_x, gate_a, a_param, start, keep, h)
        return h.to(x.dtype, copy=True), (h[:, -1] if x.shape[1] else start).clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, dy, dh_last):
        x, gate_x, gate_a, a_param, start, keep, h = ctx.saved_tensors
        i, r, softplus, L, a, z, m = Cell.of(gate_x, gate_a, a_param, keep, ctx.functions)
        if x.shape[1] == 0:
            dh0 = dh_last.clone() if ctx.needs_input_grad[4] else None
            return dy, dy, dy, torch.zeros_like(a_param), dh0, None, None, None
        g = ctx.scan(Steps(a, L, h, keep).reversed(dy.float()), dh_last).flip(1)
        before = torch.cat([start[:, None], h[:, :-1]], 1)
        write = g * i * x.float()
        dL = torch.where(keep, g * before * a - 2 * ctx.functions.exp(2 * L) * write * sqrt_slope(z), 0.0)
        da_param = torch.where(keep, dL * (-C * r) * ctx.functions.sigmoid(a_param), 0.0).sum((0, 1))
        dh0 = torch.where(keep[:, 0], a[:, 0] * g[:, 0], 0.0) if ctx.needs_input_grad[4] else None
        tokenwise = g * m * i, write * m * (1 - i), dL * (-C * softplus) * (r * (1 - r))
        return *(v.to(x.dtype) for v in tokenwise), da_param, dh0, None, None, None


def _multiply_add(a, h, u):
    return a * h + u


def _fused_multiply_add(a, h, u):
    return (a.double() * h.double() + u.double()).float()  # float64 holds the product of two float32 exactly


def serial(steps: Steps, start: Tensor, advance: Callable = _multiply_add) -> Tensor:
    """One step after another."""
    h, states = start, []
    for a, u, keep in zip(steps.a.unbind(1), steps.u.unbind(1), steps.keep.unbind(1), strict=True):
        h = advance(a, torch.where(keep, h, 0.0), u)
        states.append(h)
    return torch.stack(states, 1)


def chunked(size: int) -> Callable[[Steps, Tensor], Tensor]:
    """Each chunk from a zero state, then its carry brought in with the product of its decays."""

    def scan(steps, start):
        carry, states = start, []
        for part in zip(*(v.split(size, 1) for v in steps), strict=True):
            a, _, _, keep = part
            h = serial(Steps(*part), torch.zeros_like(carry))
            untouched = keep.int().cumprod(1).bool()
            h = torch.where(untouched, a.cumprod(1) * carry[:, None] + h, h)
            states.append(h)
            carry = h[:, -1]
        return torch.cat(states, 1)

    return scan


def sums_of_logs(steps: Steps, start: Tensor, size: int = 16) -> Tensor:
    """Within a chunk every decay is exp(L_s + ... + L_t), each sum made anew; never a difference of cumulative sums."""
    h, states = start, []
    for t, (L, u, keep) in enumerate(zip(steps.L.unbind(1), steps.u.unbind(1), steps.keep.unbind(1), strict=True)):
        if t % size == 0:
            sources, logs = h[:, None], torch.zeros_like(h[:, None])
        logs = torch.cat([torch.where(keep[:, None], logs + L[:, None], 0.0), torch.zeros_like(u[:, None])], 1)
        sources = torch.cat([torch.where(keep[:, None], sources, 0.0), u[:, None]], 1)
        h = (torch.exp(logs) * sources).sum(1)
        states.append(h)
    return torch.stack(states, 1)


class Segments(NamedTuple):
    """Stretches of tokens as maps h -> a h + b; where a stretch is not whole, a reset lies in it and h is not used."""

    a: Tensor
    b: Tensor
    whole: Tensor

    @classmethod
    def of(cls, steps: Steps, start: Tensor) -> Segments:
        first = steps.a[:, 0] * torch.where(steps.keep[:, 0], start, 0.0) + steps.u[:, 0]
        return cls(steps.a, torch.cat([first[:, None], steps.u[:, 1:]], 1), steps.keep)

    def at(self, tokens: slice) -> Segments:
        return Segments(*(v[:, tokens] for v in self))

    def after(self, older: Segments) -> Segments:
        b = torch.where(self.whole, self.a * older.b + self.b, self.b)
        return Segments(self.a * older.a, b, self.whole & older.whole)

    def then(self, later: Segments) -> Segments:
        return Segments(*(torch.cat(pair, 1) for pair in zip(self, later, strict=True)))


def doubling(steps: Steps, start: Tensor) -> Tensor:
    """Hillis and Steele: windows of 1, 2, 4, ... tokens."""
    window, distance = Segments.of(steps, start), 1
    while distance < steps.u.shape[1]:
        older, newer = window.at(slice(None, -distance)), window.at(slice(distance, None))
        window, distance = window.at(slice(distance)).then(newer.after(older)), 2 * distance
    return window.b


def sweeps(steps: Steps, start: Tensor) -> Tensor:
    """Blelloch: pairs on the way up, the prefixes between them on the way down."""

    def prefixes(tokens: Segments) -> Segments:
        n = tokens.b.shape[1]
        if n == 1:
            return tokens
        even, odd = tokens.at(slice(0, None, 2)), tokens.at(slice(1, None, 2))
        at_odd = prefixes(odd.after(even.at(slice(n // 2))))
        at_even = even.at(slice(1)).then(even.at(slice(1, None)).after(at_odd.at(slice((n - 1) // 2))))
        in_order = [torch.empty_like(v) for v in tokens]
        for whole, evens, odds in zip(in_order, at_even, at_odd, strict=True):
            whole[:, 0::2], whole[:, 1::2] = evens, odds
        return Segments(*in_order)

    return prefixes(Segments.of(steps, start)).b


# -------------------------------------------------------------------------------------------------- the functions


def _honest(name: str, what: str, run: Callable) -> Callable:
    def subject(x, gate_x, gate_a, a_param, *, segment_pos=None, h0=None):
        return run(x, gate_x, gate_a, a_param, segment_pos=segment_pos, h0=h0)

    subject.__name__ = subject.__qualname__ = name
    subject.__doc__ = what
    HONEST[name] = subject
    return subject


def _looping(name: str, what: str, inside: torch.dtype) -> Callable:
    return _honest(name, what, partial(eager.rglru, inside=inside))


def _by_hand(name: str, what: str, scan: Callable, functions: Functions = TORCH) -> Callable:
    def run(x, gate_x, gate_a, a_param, *, segment_pos, h0):
        return ByHand.apply(x, gate_x, gate_a, a_param, h0, keep_mask(x, segment_pos), scan, functions)

    return _honest(name, what, run)


loop_float32 = _looping("loop_float32", "A loop left to autograd, in float32.", torch.float32)
loop_float64 = _looping("loop_float64", "A loop left to autograd, in float64.", torch.float64)
handwritten = _by_hand("handwritten", "A loop with its own backward.", serial)
fma = _by_hand("fma", "A loop of fused multiply-adds.", partial(serial, advance=_fused_multiply_add))
chunks_1 = _by_hand("chunks_1", "Chunks of one token.", chunked(1))
chunks_4 = _by_hand("chunks_4", "Chunks of four tokens.", chunked(4))
chunks_64 = _by_hand("chunks_64", "Chunks of 64 tokens.", chunked(64))
summed_logs = _by_hand("summed_logs", "Decays as exp of sums of L within chunks of 16.", sums_of_logs)
hillis_steele = _by_hand("hillis_steele", "A scan by doubling windows.", doubling)
blelloch = _by_hand("blelloch", "A work-efficient tree scan.", sweeps)
exp2_based = _by_hand("exp2_based", "Every elementary function by exp2 and log2.", serial, BY_EXP2)
