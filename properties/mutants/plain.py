"""Wrong functions: one plain implementation, `right`, and the faults that are put into it one at a time.

`WRONG` names them, each with its fault in one line as docstring; each is an attribute of this module too. A fault is a
function that changes the values `v` after one stage of the forward or the backward, or one that stands around `right`.
Faults of `LOW_PRECISION_ONLY` change nothing where x is float32.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from types import SimpleNamespace

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from properties.mutants.honest import BoundedSqrt, C, keep_mask, sqrt_slope

CHUNK = 8

WRONG: dict[str, Callable] = {}


# ------------------------------------------------------------------------------------------------- the right one


def _scan(v, a: Tensor, u: Tensor, keep: Tensor, start: Tensor) -> Tensor:
    h, states = start, [u[:, :0]]
    for t in range(u.shape[1]):
        if t % CHUNK == 0:
            h = v.carry(t // CHUNK, h)
        h = v.store(a[:, t] * v.past(keep[:, t], h) + u[:, t])
        states.append(h[:, None])
    return torch.cat(states, 1)


def _adjoint(v, a: Tensor, keep: Tensor) -> Tensor:
    """g_t = dy_t + a_{t+1} g_{t+1}."""
    a, keep = (torch.cat([w[:, 1:], torch.ones_like(w[:, :1])], 1).flip(1) for w in (a, keep))
    return _scan(v, a, v.dy.flip(1), keep, v.dh_last).flip(1)


def _forward(v, after: Callable) -> None:
    v.c, v.exp, v.sigmoid, v.softplus = C, torch.exp, torch.sigmoid, functional.softplus
    v.z_of, v.sqrt, v.slope = lambda L: -torch.expm1(2 * L), torch.sqrt, sqrt_slope
    v.carry, v.store = lambda chunk, h: h, lambda h: h
    v.past = lambda keep, h: torch.where(keep, h, 0.0)
    v.keep = keep_mask(v.x, v.segment_pos)
    after("start")
    v.i, v.r, v.sp = v.sigmoid(v.gate_x), v.sigmoid(v.gate_a), v.softplus(v.a_param)
    after("gates")
    v.L = -v.c * v.r * v.sp
    v.decay, v.z = v.exp(v.L), v.z_of(v.L)
    after("decay")
    v.root = v.sqrt(v.z)
    v.a, v.m = torch.where(v.keep, v.decay, 0.0), torch.where(v.keep, v.root, 1.0)
    after("multiplier")
    v.u = v.m * v.i * v.x
    after("write")
    v.h = _scan(v, v.a, v.u, v.keep, v.h0)
    after("states")
    v.y, v.h_last = v.h.to(v.dtype, copy=True), torch.cat([v.h0[:, None], v.h], 1)[:, -1].clone()
    after("results")


def _backward(v, after: Callable) -> None:
    after("cotangents")
    v.g = _adjoint(v, v.a, v.keep)
    v.before = torch.cat([v.h0[:, None], v.h], 1)[:, :-1]
    v.q, v.a2 = v.slope(v.z), v.decay * v.decay
    after("adjoint")
    v.dL = torch.where(v.keep, v.g * v.before * v.decay - 2 * v.a2 * v.g * v.i * v.x * v.q, 0.0)
    after("dL")
    v.dx, v.dgate_x = v.g * v.m * v.i, v.g * v.m * v.x * v.i * (1 - v.i)
    v.dgate_a = torch.where(v.keep, v.dL * (-v.c * v.sp) * v.r * (1 - v.r), v.dL)
    v.da_param = torch.where(v.keep, v.dL * (-v.c * v.r) * v.sigmoid(v.a_param), v.dL)
    first = torch.cat([v.a * v.g, v.dh_last[:, None]], 1)[:, 0]
    v.dh0 = torch.where(torch.cat([v.keep, torch.ones_like(v.keep[:1, :1]).expand(len(first), 1, 1)], 1)[:, 0], first, 0)
    after("gradients")
