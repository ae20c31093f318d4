"""The compiled plain PyTorch of `compiled` with torch's own associative_scan, which Inductor makes one kernel of.

On CUDA only is it one kernel ("pointwise"); elsewhere it is a tree of slices ("generic"), which shows its values.
"""

import functools

import torch
from torch._higher_order_ops.associative_scan import associative_scan
from torch.autograd.function import once_differentiable

from kernels.subjects.compiled import compile_each_shape, parallel
from kernels.subjects.subject import Subject

CUT = -1.0
"""Stands for the decay of a stretch of time with a reset in it: its sign tells that no past is used."""


def combine(older, newer):
    """The map h -> a h + b of two stretches of time, b alone where a is cut; what is cut off is selected away."""
    (before_a, before_b), (a, b) = older, newer
    cut = a < 0
    return torch.where(cut | (before_a < 0), CUT, a * before_a), torch.where(cut, b, a * before_b + b)


def states(a, u, *, reverse=False):
    """h_t = a_t h_{t-1} + u_t, or u_t where a_t is cut, from a zero state; [B, T, D], backwards if `reverse`."""
    mode = "pointwise" if a.is_cuda else "generic"
    return associative_scan(combine, (a, u), 1, reverse=reverse, combine_mode=mode)[1]


class Recurrence(torch.autograd.Function):
    """(a, u, keep) -> h, its gradient a scan from the end: the operator's own takes T x T products a channel."""

    @staticmethod
    def forward(ctx, a, u, keep):
        h = states(torch.where(keep, a, CUT), u)
        ctx.save_for_backward(a, keep, h)
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        a, keep, h = ctx.saved_tensors
        nothing = torch.zeros_like(h[:, :1])
        ahead = torch.cat([torch.where(keep, a, CUT)[:, 1:], nothing], 1)
        g = states(ahead, gradient, reverse=True)
        before = torch.cat([nothing, h[:, :-1]], 1)
        return g * torch.where(keep, before, 0.0), g, None


scanned = functools.partial(parallel, scan=Recurrence.apply)

SUBJECT = Subject(compile_each_shape(scanned), "associative-scan", min_length=1)
