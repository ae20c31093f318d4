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


def rglru(x, gate_x, gate_a, a_param, *, segment_pos=None, h0=None, inside=torch.float32):
    """The definition, step by step, in the dtype `inside`; what a reset selects away is selected before it is used."""
    keep = torch.ones_like(x[..., :1], dtype=torch.bool) if segment_pos is None else (segment_pos != 0)[..., None]
    h = x.new_zeros(x.shape[0], x.shape[2], dtype=inside) if h0 is None else h0.to(inside)
    r = torch.sigmoid(torch.where(keep, gate_a.to(inside), 0.0))
    L = -C * r * functional.softplus(torch.where(keep, a_param.to(inside), 0.0))
    a = torch.where(keep, torch.exp(L), 0.0)
    m = torch.where(keep, BoundedSqrt.apply(-torch.expm1(2 * L)), 1.0)
    u = m * torch.sigmoid(gate_x.to(inside)) * x.to(inside)
    if x.shape[1] == 0:
        return (u + h[:, None]).to(x.dtype), (h + u.sum(1)).float()  # empty sums keep every input in the graph
    states = []
    for t in range(x.shape[1]):
        h = a[:, t] * torch.where(keep[:, t], h, 0.0) + u[:, t]
        states.append(h)
    return torch.stack(states, 1).to(x.dtype), h.float()


SUBJECT = Subject(rglru, "eager")
