"""A plain PyTorch loop, differentiated by autograd: what a careful author writes before writing a kernel."""

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from kernels.subjects.subject import Subject
from oracle.reference import MAX_SQRT_GRADIENT, C


class BoundedSqrt(torch.autograd.Function):
    """sqrt whose derivative is bounded at `MAX_SQRT_GRADIENT`."""

    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return torch.sqrt(z)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        (z,) = ctx.saved_tensors
        return gradient / torch.sqrt(torch.clamp(4 * z, min=MAX_SQRT_GRADIENT**-2))


def cell(x, gate_x, gate_a, a_param, segment_pos, inside=torch.float32):
    """Of each step by itself, in the dtype `inside`: decay a, 0 at resets, and write u [B, T, D]; where the past is
    kept [B, T, 1]. What a reset selects away is selected before it is used."""
    keep = torch.ones_like(x[..., :1], dtype=torch.bool) if segment_pos is None else (segment_pos != 0)[..., None]
    r = torch.sigmoid(torch.where(keep, gate_a.to(inside), 0.0))
    L = -C * r * functional.softplus(torch.where(keep, a_param.to(inside), 0.0))
    a = torch.where(keep, torch.exp(L), 0.0)
    m = torch.where(keep, BoundedSqrt.apply(-torch.expm1(2 * L)), 1.0)
    return a, m * torch.sigmoid(gate_x.to(inside)) * x.to(inside), keep


def rglru(x, gate_x, gate_a, a_param, *, segment_pos=None, h0=None, inside=torch.float32):
    """The definition, step by step, in the dtype `inside`."""
    h = x.new_zeros(x.shape[0], x.shape[2], dtype=inside) if h0 is None else h0.to(inside)
    a, u, keep = cell(x, gate_x, gate_a, a_param, segment_pos, inside)
    if x.shape[1] == 0:
        return (u + h[:, None]).to(x.dtype), (h + u.sum(1)).float()  # empty sums keep every input in the graph
    states = []
    # a slice a[:, t] would fill a gradient as large as a with zeros, for every step
    for decay, write, kept in zip(a.unbind(1), u.unbind(1), keep.unbind(1), strict=True):
        h = decay * torch.where(kept, h, 0.0) + write
        states.append(h)
    return torch.stack(states, 1).to(x.dtype), h.float()


SUBJECT = Subject(rglru, "eager")
