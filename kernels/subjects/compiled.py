"""Plain PyTorch with a log-depth scan, left to autograd and torch.compile: what a model engineer writes.

Compiled anew for every shape: for the benchmark, which has a few, and not for the contract, which would draw hundreds.
"""

import functools

import torch

from kernels.subjects.eager import cell
from kernels.subjects.subject import Subject

VARIANTS = 8 * 2 * 2
"""Compilations of one function: 8 shapes, with and without gradients, with and without resets."""


def compile_each_shape(function):
    """`function` compiled for the shapes of each call, and refused where it cannot be compiled as a whole."""
    compiled = torch.compile(function, dynamic=False, fullgraph=True)

    @functools.wraps(function)
    def call(*inputs, **keywords):
        with torch._dynamo.config.patch(recompile_limit=VARIANTS):
            return compiled(*inputs, **keywords)

    return call


def after(newer, older):
    """The map h -> a h + b of two stretches of time, the newer after the older; no past where one is not `whole`.

    A stretch with a reset in it is not whole, and its a is 0: what it cuts off is selected before it is multiplied.
    """
    a, b, whole = newer
    before_a, before_b, before_whole = (torch.where(whole, v, 0) for v in older)
    return a * before_a, a * before_b + b, before_whole.bool()


def prefixes(a, b, whole):
    """The maps from before the first step to after each: pairs on the way up, the rest on the way down."""
    count = b.shape[1]
    if count < 2:
        return a, b, whole
    even, odd = [v[:, 0::2] for v in (a, b, whole)], [v[:, 1::2] for v in (a, b, whole)]
    pairs = prefixes(*after(odd, [v[:, : count // 2] for v in even]))
    between = after([v[:, 1:] for v in even], [v[:, : (count - 1) // 2] for v in pairs])
    even = [torch.cat([v[:, :1], w], 1) for v, w in zip(even, between, strict=True)]
    return tuple(_in_turn(*v) for v in zip(even, pairs, strict=True))


def _in_turn(even, odd):
    """even[0], odd[0], even[1], odd[1], ...; there may be one more of the even ones."""
    pairs = torch.stack([even[:, : odd.shape[1]], odd], 2).flatten(1, 2)
    return pairs if even.shape[1] == odd.shape[1] else torch.cat([pairs, even[:, -1:]], 1)


def parallel(x, gate_x, gate_a, a_param, *, segment_pos=None, h0=None, scan=lambda *steps: prefixes(*steps)[1]):
    """The definition with every step at once in front of a `scan` (a, u, keep) -> h."""
    a, u, keep = cell(x, gate_x, gate_a, a_param, segment_pos)
    if h0 is not None:
        first = a[:, :1] * torch.where(keep[:, :1], h0[:, None], 0.0) + u[:, :1]
        u = torch.cat([first, u[:, 1:]], 1)
    h = scan(a, u, keep)
    return h.to(x.dtype, copy=True), h[:, -1].clone()


SUBJECT = Subject(compile_each_shape(parallel), "compiled", min_length=1)
