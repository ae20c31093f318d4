"""Wrong functions: one plain implementation, `right`, and the faults that are put into it, one at a time.

`WRONG` names them, each with its fault in one line as docstring; each is an attribute of this module too. A fault is a
function that changes the values `v` after one stage of the forward or the backward, or one that stands around `right`.
Those in `LOW_PRECISION_ONLY` change nothing where x is float32, those in `FLOAT32_ONLY` nothing where it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from types import SimpleNamespace

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils.weak import WeakIdKeyDictionary

from kernels.subjects.eager import BoundedSqrt
from oracle.reference import C
from properties.mutants.honest import keep_mask, sqrt_slope

CHUNK = 8

WRONG: dict[str, Callable] = {}
LOW_PRECISION_ONLY = frozenset({"h_last_through_the_dtype", "y_rounded_twice", "y_truncated"})
FLOAT32_ONLY = frozenset({"h_last_views_y", "reads_behind_x", "y_is_x_where_equal"})


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
    v.y, v.h_last = v.h.to(v.dtype, copy=True), (v.h[:, -1] if v.length else v.h0).clone()
    after("results")


def _dL(v) -> Tensor:
    return v.g * v.before * v.decay - 2 * v.a2 * v.g * v.i * v.x * v.q


def _dgate_a(v, dL: Tensor) -> Tensor:
    return dL * (-v.c * v.sp) * v.r * (1 - v.r)


def _da_param(v, dL: Tensor) -> Tensor:
    return dL * (-v.c * v.r) * torch.sigmoid(v.a_param)


def _backward(v, after: Callable) -> None:
    after("cotangents")
    v.g = _adjoint(v, v.a, v.keep)
    v.before = torch.cat([v.h0[:, None], v.h], 1)[:, :-1]
    v.q, v.a2 = v.slope(v.z), v.decay * v.decay
    after("adjoint")
    v.dx, v.dgate_x = v.g * v.m * v.i, v.g * v.m * v.x * v.i * (1 - v.i)
    v.dgate_a = torch.where(v.keep, _dgate_a(v, _dL(v)), 0.0)
    v.da_param = torch.where(v.keep, _da_param(v, _dL(v)), 0.0)  # token by token, not yet summed
    v.dh0 = torch.where(v.keep[:, 0], v.a[:, 0] * v.g[:, 0], 0.0) if v.length else v.dh_last.clone()
    after("gradients")


class _Operator(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gate_x, gate_a, a_param, h0, segment_pos, stage, fault):
        v = SimpleNamespace(a_param=a_param, segment_pos=segment_pos, dtype=x.dtype, length=x.shape[1])
        v.x, v.gate_x, v.gate_a, v.h0_given = x.float(), gate_x.float(), gate_a.float(), h0 is not None
        v.h0 = v.x.new_zeros(x.shape[0], x.shape[2]) if h0 is None else h0
        _forward(v, lambda now: fault(v) if now == stage else None)
        ctx.stage, ctx.fault, ctx.v = stage, fault, v
        ctx.save_for_backward(x, gate_x, gate_a, a_param, h0)  # so that autograd raises where they are overwritten
        return vars(v).pop("y"), vars(v).pop("h_last")

    @staticmethod
    @once_differentiable
    def backward(ctx, dy, dh_last):
        assert ctx.saved_tensors is not None
        v = SimpleNamespace(**vars(ctx.v), dy=dy.float(), dh_last=dh_last, needed=ctx.needs_input_grad)
        _backward(v, lambda now: ctx.fault(v) if now == ctx.stage else None)
        tokenwise = (w.to(v.dtype) for w in (v.dx, v.dgate_x, v.dgate_a))
        return *tokenwise, v.da_param.sum((0, 1)), v.dh0 if v.h0_given else None, None, None, None


def right(x, gate_x, gate_a, a_param, *, segment_pos=None, h0=None):
    """The implementation without a fault."""
    return _Operator.apply(x, gate_x, gate_a, a_param, h0, segment_pos, None, None)


def _register(call: Callable, like: Callable) -> Callable:
    def subject(x, gate_x, gate_a, a_param, *, segment_pos=None, h0=None):
        return call(x, gate_x, gate_a, a_param, segment_pos=segment_pos, h0=h0)

    subject.__name__ = subject.__qualname__ = like.__name__
    subject.__doc__ = like.__doc__
    WRONG[like.__name__] = subject
    return subject


def _after(stage: str) -> Callable:
    """The function below changes the values after this stage of `right`."""

    def decorate(fault):
        def call(x, gate_x, gate_a, a_param, *, segment_pos, h0):
            return _Operator.apply(x, gate_x, gate_a, a_param, h0, segment_pos, stage, fault)

        return _register(call, fault)

    return decorate


def _around(call: Callable) -> Callable:
    """The function below calls `right`, or stands in its place."""
    return _register(call, call)


def _bf16(v: Tensor) -> Tensor:
    return v.bfloat16().float()


def _storage_from(v: Tensor, offset: int) -> Tensor:
    """The elements of v's storage from an offset on, whatever the shape and strides of v."""
    return torch.as_strided(v.detach(), (v.untyped_storage().nbytes() // v.itemsize - offset,), (1,), offset)


def _as_if_dense(v: Tensor) -> Tensor:
    if not v.numel():
        return v
    memory = _storage_from(v, int(v.storage_offset()))
    return memory[torch.arange(v.numel(), device=v.device) % len(memory)].view(v.shape)


def _right_behind(v: Tensor) -> Tensor:
    """The element of memory behind the last one of v; empty where the storage ends."""
    if not v.numel():
        return v.detach().flatten()
    last = sum((n - 1) * stride for n, stride in zip(v.shape, v.stride(), strict=True))
    return _storage_from(v, int(v.storage_offset()) + last + 1)[:1]


# ----------------------------------------------------------------------------------------------------- semantics


@_after("multiplier")
def sqrt_kept_at_resets(v):
    """A reset keeps the multiplier sqrt(z)."""
    v.m = v.root


@_after("start")
def resets_ignored(v):
    """segment_pos is not looked at."""
    v.keep = torch.ones_like(v.keep)


@_after("start")
def reset_one_late(v):
    """The token after the first of a document is reset."""
    v.keep = torch.cat([torch.ones_like(v.keep[:, :1]), v.keep[:, :-1]], 1)


@_after("start")
def reset_one_early(v):
    """The last token of a document is reset in place of the next one's first."""
    v.keep = torch.cat([v.keep[:, 1:], torch.ones_like(v.keep[:, :1])], 1)


@_after("start")
def z_from_a(v):
    """z = 1 - a instead of 1 - a^2."""
    v.z_of = lambda L: -torch.expm1(L)


@_after("start")
def c_is_7_99(v):
    """C = 7.99 instead of 8."""
    v.c = 7.99


@_after("multiplier")
def first_token_normalised(v):
    """Without segment_pos the first token loses its sqrt(z)."""
    if v.segment_pos is None:
        v.m[:, :1] = 1


@_after("multiplier")
def h0_wins_over_reset(v):
    """A reset at the first token does not clear h0."""
    v.keep = torch.cat([torch.ones_like(v.keep[:, :1]), v.keep[:, 1:]], 1)
    v.a[:, :1] = v.decay[:, :1]


@_after("start")
def negative_positions_reset(v):
    """segment_pos <= 0 resets, not only 0."""
    if v.segment_pos is not None:
        v.keep = (v.segment_pos > 0)[..., None]


@_after("start")
def positions_in_int32(v):
    """segment_pos is cast to int32, so that 2^32 resets."""
    if v.segment_pos is not None:
        v.keep = (v.segment_pos.int() != 0)[..., None]


@_after("start")
def reset_by_multiplying(v):
    """A reset multiplies the past by zero instead of selecting it away."""
    v.past = lambda keep, h: h


@_after("gradients")
def reset_leaks_into_dgate_a(v):
    """dgate_a at a reset is 0 * h_{t-1}: NaN after a NaN."""
    v.dgate_a = torch.where(v.keep, v.dgate_a, 0 * v.before)


@_around
def autograd_where_loop(x, gate_x, gate_a, a_param, *, segment_pos, h0):
    """torch.where(reset, u, a * h + u) under autograd: NaN in dgate_a at resets."""
    if not x.shape[1]:
        return right(x, gate_x, gate_a, a_param, segment_pos=segment_pos, h0=h0)
    keep, states = keep_mask(x, segment_pos), []
    h = torch.zeros_like(x[:, 0], dtype=torch.float32) if h0 is None else h0
    L = -C * torch.sigmoid(gate_a.float()) * functional.softplus(a_param)
    a, m = torch.exp(L), torch.where(keep, BoundedSqrt.apply(-torch.expm1(2 * L)), 1.0)
    u = m * torch.sigmoid(gate_x.float()) * x.float()
    for t in range(x.shape[1]):
        h = torch.where(keep[:, t], a[:, t] * h + u[:, t], u[:, t])
        states.append(h)
    return torch.stack(states, 1).to(x.dtype), h.clone()


# ---------------------------------------------------------------------------------------------------- boundaries


@_after("states")
def partial_chunk_is_zero(v):
    """The tokens behind the last whole chunk are not computed."""
    if v.length > CHUNK:
        v.h = torch.cat([v.h[:, : v.length - v.length % CHUNK], 0 * v.u[:, v.length - v.length % CHUNK :]], 1)


@_after("start")
def carry_lost_at_second_chunk(v):
    """The second chunk starts from zeros."""
    v.carry = lambda chunk, h: torch.zeros_like(h) if chunk == 1 else h


@_after("start")
def carry_lost_at_fifth_chunk(v):
    """The fifth chunk starts from zeros, earlier ones do not."""
    v.carry = lambda chunk, h: torch.zeros_like(h) if chunk == 4 else h


@_after("start")
def carry_of_another_row(v):
    """From the second chunk on the carry is that of the batch row before."""
    v.carry = lambda chunk, h: h.roll(1, 0) if chunk else h


@_after("write")
def h0_lost_in_long_sequences(v):
    """h0 is forgotten where there is more than one chunk."""
    if v.length > CHUNK:
        v.h0 = torch.zeros_like(v.h0)


@_after("multiplier")
def reset_at_chunk_start_keeps_carry(v):
    """A reset at the first token of a later chunk does not clear the carry."""
    v.keep = v.keep.clone()
    v.keep[:, CHUNK::CHUNK] = True
    v.a[:, CHUNK::CHUNK] = v.decay[:, CHUNK::CHUNK]


@_after("write")
def single_token_ignores_h0(v):
    """T = 1 returns the write alone."""
    if v.length == 1:
        v.h0 = torch.zeros_like(v.h0)


@_after("multiplier")
def last_odd_channel_borrows_decay(v):
    """In an odd width the last channel decays as its neighbour."""
    if v.x.shape[2] % 2 and v.x.shape[2] > 1:
        v.a[..., -1] = v.a[..., -2]


@_after("results")
def whole_chunks_end_early(v):
    """Where T is a multiple of the chunk, h_last is the state one token earlier."""
    if v.length and v.length % CHUNK == 0:
        v.h_last = v.h[:, -2].clone()


@_after("results")
def empty_sequence_forgets_h0(v):
    """T = 0 returns zeros for h_last."""
    if not v.length:
        v.h_last = torch.zeros_like(v.h_last)


def _lost(h: Tensor, channels: int) -> Tensor:
    return torch.cat([h[:, :channels], 0 * h[:, channels:]], 1)


@_after("start")
def carry_lost_in_second_tile_of_channels(v):
    """Every 64 tokens the channels from 64 on start from zeros."""
    v.carry = lambda chunk, h: _lost(h, 64) if chunk and chunk % 8 == 0 else h


@_after("start")
def carry_lost_at_264(v):
    """Token 264 starts from zeros."""
    v.carry = lambda chunk, h: 0 * h if chunk == 264 // CHUNK else h


@_after("states")
def last_vector_of_an_odd_number_is_zero(v):
    """In a width of an odd number of vectors of 8 channels, more than one, the last vector is not computed."""
    if v.h.shape[2] % 16 == 8 and v.h.shape[2] > 8:
        v.h = torch.cat([v.h[..., :-8], 0 * v.h[..., -8:]], 2)


# ----------------------------------------------------------------------------------------------------- gradients


@_after("cotangents")
def dh_last_ignored(v):
    """The cotangent of h_last is dropped."""
    v.dh_last = torch.zeros_like(v.dh_last)


@_after("adjoint")
def gradient_through_resets(v):
    """The adjoint runs on through resets."""
    v.g = _adjoint(v, v.decay, torch.ones_like(v.keep))


@_after("adjoint")
def adjoint_decay_not_shifted(v):
    """g_t takes a_t for a_{t+1}."""
    ahead = torch.cat([v.a[:, :1], v.a[:, :-1]], 1)
    v.g = _adjoint(v, ahead, torch.ones_like(v.keep))


@_after("gradients")
def dh0_not_zero_at_reset(v):
    """dh0 passes a reset at the first token."""
    if v.length:
        v.dh0 = v.decay[:, 0] * v.g[:, 0]


@_after("gradients")
def dh0_is_zero(v):
    """dh0 is zeros."""
    v.dh0 = torch.zeros_like(v.dh0)


@_after("gradients")
def dh0_is_none(v):
    """h0 gets no gradient at all."""
    v.dh0 = None


@_after("start")
def no_gradient_through_sqrt(v):
    """The multiplier is taken for a constant."""
    v.slope = torch.zeros_like


@_after("start")
def slope_unbounded(v):
    """The slope of sqrt is not bounded."""
    v.slope = lambda z: 0.5 / torch.sqrt(z)


@_after("start")
def slope_bound_in_forward(v):
    """The bound of the slope also bounds sqrt(z) itself from below."""
    v.sqrt = lambda z: 0.5 / sqrt_slope(z)


@_after("adjoint")
def sqrt_at_resets_in_backward(v):
    """The backward, not the forward, keeps sqrt(z) at resets."""
    v.m = v.root


@_after("adjoint")
def a_for_a2_in_backward(v):
    """dL takes a for a^2."""
    v.a2 = v.decay


@_after("adjoint")
def state_for_previous_state(v):
    """dL takes h_t for h_{t-1}."""
    v.before = v.h


@_after("adjoint")
def right_only_with_h0(v):
    """Without h0, dL takes h_t for h_{t-1}."""
    if not v.h0_given:
        v.before = v.h


@_after("gradients")
def dgate_a_at_resets(v):
    """dgate_a is not selected to 0 at resets."""
    v.dgate_a = _dgate_a(v, _dL(v))


@_after("gradients")
def da_param_counts_resets(v):
    """da_param sums over resets too."""
    v.da_param = _da_param(v, _dL(v))


@_after("gradients")
def da_param_of_last_row(v):
    """da_param is that of the last batch row."""
    v.da_param = v.da_param[-1:]


@_after("gradients")
def da_param_without_partial_chunk(v):
    """da_param leaves out the tokens behind the last whole chunk."""
    v.da_param = v.da_param[:, : v.length - v.length % CHUNK]


@_after("gradients")
def da_param_of_16_rows(v):
    """da_param sums over the first 16 rows only: the second level of the sum is lost."""
    v.da_param = v.da_param[:16]


@_after("gradients")
def da_param_of_600_tokens(v):
    """da_param sums over the first 600 tokens of all rows only."""
    v.da_param = v.da_param.flatten(0, 1)[:600, None]


@_after("cotangents")
def adjoint_carry_lost_in_last_channels(v):
    """In the backward the channels from 66 on start every chunk from zeros."""
    v.carry = lambda chunk, h: _lost(h, 66) if chunk else h


@_after("cotangents")
def adjoint_carry_lost_in_second_tile_of_channels(v):
    """In the backward the channels from 128 on start every chunk from zeros."""
    v.carry = lambda chunk, h: _lost(h, 128) if chunk else h


@_after("gradients")
def da_param_halved_without_dy(v):
    """da_param is halved where only h_last has a cotangent."""
    if not v.dy.any():
        v.da_param = v.da_param / 2


@_after("gradients")
def da_param_only_with_dx(v):
    """da_param is zeros unless x requires a gradient."""
    if not v.needed[0]:
        v.da_param = torch.zeros_like(v.da_param)


@_after("gradients")
def dgate_x_without_one_minus_i(v):
    """dgate_x takes i for i (1 - i)."""
    v.dgate_x = v.g * v.m * v.x * v.i


@_after("gradients")
def dgate_a_without_one_minus_r(v):
    """dgate_a takes r for r (1 - r)."""
    v.dgate_a = torch.where(v.keep, _dL(v) * (-v.c * v.sp) * v.r, 0.0)


# ----------------------------------------------------------------------------------------------------- precision


@_after("start")
def accumulator_in_bf16(v):
    """Every state is rounded to bfloat16."""
    v.store = _bf16


@_after("start")
def accumulator_in_float16(v):
    """Every state is rounded to float16."""
    v.store = lambda h: h.half().float()


@_after("start")
def carry_in_bf16(v):
    """The carry between chunks is rounded to bfloat16."""
    v.carry = lambda chunk, h: _bf16(h) if chunk else h


@_after("start")
def h0_in_bf16(v):
    """h0 is rounded to bfloat16."""
    v.h0 = _bf16(v.h0)


@_after("start")
def a_param_in_bf16(v):
    """a_param is rounded to bfloat16, as under autocast."""
    v.a_param = _bf16(v.a_param)


@_after("adjoint")
def saved_states_in_bf16(v):
    """The states kept for the backward are bfloat16."""
    v.before = torch.cat([v.h0[:, None], _bf16(v.h)], 1)[:, :-1]


@_after("gates")
def gates_in_bf16(v):
    """Both gates are rounded to bfloat16."""
    v.i, v.r = _bf16(v.i), _bf16(v.r)


@_after("gradients")
def da_param_in_bf16(v):
    """The summands of da_param are rounded to bfloat16."""
    v.da_param = _bf16(v.da_param)


@_after("results")
def h_last_through_the_dtype(v):
    """h_last is rounded through the dtype of x."""
    v.h_last = v.h_last.to(v.dtype).float()


@_after("results")
def y_rounded_twice(v):
    """y is rounded to four more bits before it is rounded to the dtype of x."""
    bits = {torch.bfloat16: 12, torch.float16: 15, torch.float32: 53}[v.dtype]
    mantissa, exponent = torch.frexp(v.h.double())
    rounded = torch.ldexp(torch.round(mantissa * 2**bits) / 2**bits, exponent)
    v.y = torch.where(v.h.isfinite(), rounded, v.h.double()).to(v.dtype)


@_after("results")
def y_truncated(v):
    """y is cut to the dtype of x instead of rounded."""
    dropped = {torch.bfloat16: 16, torch.float16: 13, torch.float32: 0}[v.dtype]
    v.y = (v.h.view(torch.int32) & -(1 << dropped)).view(torch.float32).to(v.dtype, copy=True)


@_after("start")
def naive_softplus(v):
    """softplus as log(1 + exp(p))."""
    v.softplus = lambda p: torch.log(1 + torch.exp(p))


@_after("start")
def one_minus_exp(v):
    """z as 1 - exp(2 L): right in the canonical grade only."""
    v.z_of = lambda L: 1 - torch.exp(2 * L)


@_after("start")
def sigmoid_by_tanh(v):
    """The sigmoids as 0.5 + 0.5 tanh."""
    v.sigmoid = lambda g: 0.5 + 0.5 * torch.tanh(g / 2)


@_after("start")
def sigmoid_by_coarse_tanh(v):
    """The sigmoids as 0.5 + 0.5 tanh, tanh to 11 bits."""
    v.sigmoid = lambda g: 0.5 + 0.5 * torch.tanh(g / 2).half().float()


@_after("decay")
def decay_as_a_power(v):
    """a as sigmoid(-a_param) ** (8 r)."""
    v.decay = torch.sigmoid(-v.a_param) ** (v.c * v.r)
    v.z = 1 - v.decay * v.decay


@_after("states")
def difference_of_cumulative_sums(v):
    """Decays as the exponential of a difference of cumulative sums of L."""
    sums, document = torch.where(v.keep, v.L, 0.0).cumsum(1), (~v.keep).cumsum(1)
    reaches = torch.ones(v.length, v.length, dtype=torch.bool, device=v.x.device).tril()[None, :, :, None]
    reaches = reaches & (document[:, :, None] == document[:, None])
    writes = torch.where(reaches, torch.exp(sums[:, :, None] - sums[:, None]) * v.u[:, None], 0.0).sum(2)
    v.h = writes + torch.where(document == 0, torch.exp(sums) * v.h0[:, None], 0.0)


@_after("adjoint")
def previous_state_by_division(v):
    """The backward recovers h_{t-1} as (h_t - u_t) / a_t."""
    v.before = (v.h - v.u) / v.decay


# ------------------------------------------------------------------------------------- aliasing, layout, memory


@_around
def writes_into_x(x, *gates, **options):
    """An element of x is overwritten."""
    results = right(x.clone(), *gates, **options)
    x.data[:1, :1, :1] += 1
    return results


@_around
def writes_into_h0(*inputs, segment_pos, h0):
    """h0 serves as the buffer of the carry."""
    if h0 is None:
        return right(*inputs, segment_pos=segment_pos)
    results = right(*inputs, segment_pos=segment_pos, h0=h0.clone())
    h0.data[:1, :1] = results[1].detach()[:1, :1]
    return results


@_around
def writes_behind_x(x, *gates, **options):
    """The element of memory behind x is overwritten."""
    _right_behind(x).fill_(1)
    return right(x, *gates, **options)


@_after("write")
def reads_behind_x(v):
    """The element of memory behind x enters the last write, times zero."""
    if len(stray := _right_behind(v.x)):
        v.u[-1, -1, -1] += 0 * stray[0]


@_around
def h_last_views_y(x, *gates, **options):
    """h_last is a view of y."""
    y, h_last = right(x, *gates, **options)
    return y, y[:, -1] if x.shape[1] and y.dtype == torch.float32 else h_last


@_around
def h_last_is_h0_when_empty(x, *gates, segment_pos, h0):
    """T = 0 returns h0 itself."""
    y, h_last = right(x, *gates, segment_pos=segment_pos, h0=h0)
    return y, h_last if h0 is None or x.shape[1] else h0


@_after("results")
def y_is_x_where_equal(v):
    """y is x itself where no bit differs: saturated gates, all reset."""
    if v.dtype == torch.float32 and v.y.numel() and torch.equal(v.y, v.x):
        v.y = v.x.detach()


@_after("start")
def assumes_dense_x(v):
    """x is read as if contiguous."""
    v.x = _as_if_dense(v.x)


@_after("start")
def assumes_dense_gate_a(v):
    """gate_a is read as if contiguous."""
    v.gate_a = _as_if_dense(v.gate_a)


@_after("cotangents")
def assumes_dense_dy(v):
    """dy is read as if contiguous."""
    v.dy = _as_if_dense(v.dy)


@_after("cotangents")
def dy_of_a_sum_is_zero(v):
    """dy with stride 0 along tokens or channels, as a sum's, is not read."""
    if any(v.dy.shape[axis] > 1 and v.dy.stride(axis) == 0 for axis in (1, 2)):
        v.dy = torch.zeros_like(v.dy)


@_after("start")
def assumes_dense_int32_positions(v):
    """segment_pos in int32 is read as if contiguous."""
    if v.segment_pos is not None and v.segment_pos.dtype == torch.int32:
        v.keep = (_as_if_dense(v.segment_pos) != 0)[..., None]


@_around
def no_gradient_where_gate_x_is_x(x, gate_x, *gates, **options):
    """Where gate_x lies in the memory of x it gets no gradient."""
    same = x.numel() and gate_x.data_ptr() == x.data_ptr()
    return right(x, gate_x.detach() if same else gate_x, *gates, **options)


@_after("results")
def last_element_not_written(v):
    """The last element of y is whatever memory held."""
    y = torch.empty_like(v.y)
    y.view(-1)[:-1] = v.y.view(-1)[:-1]
    v.y = y


_last_call: dict[tuple, Tensor] = {}


@_around
def remembers_the_last_call(x, *gates, segment_pos, h0):
    """Without h0, a call starts from the h_last of the call before if that had the same shape."""
    call = x.shape, x.device
    start = _last_call.get(call) if h0 is None else h0
    y, h_last = right(x, *gates, segment_pos=segment_pos, h0=start)
    _last_call.clear()
    _last_call[call] = h_last.detach().clone()
    return y, h_last


class _Given(torch.autograd.Function):
    """Its second argument in place of the first, with the gradient of the first made by a function."""

    @staticmethod
    def forward(ctx, wanted, given, gradient):
        ctx.gradient = gradient
        return given.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        return ctx.gradient(gradient), None, None


_packed = WeakIdKeyDictionary()


@_around
def remembers_a_param(x, gate_x, gate_a, a_param, **options):
    """a_param is packed once for each tensor, so that an optimizer's step in place is not seen."""
    packed = _packed.setdefault(a_param, a_param.detach().clone())
    return right(x, gate_x, gate_a, _Given.apply(a_param, packed, lambda gradient: gradient), **options)


_workspaces: dict[tuple, Tensor] = {}


@_around
def dx_in_a_workspace(x, *gates, **options):
    """dx is handed out in a buffer that the next backward of that shape writes to."""

    def into(gradient):
        key = gradient.shape, gradient.dtype, gradient.device
        return _workspaces.setdefault(key, torch.empty_like(gradient)).copy_(gradient)

    return right(_Given.apply(x, x.detach(), into), *gates, **options)


@_around
def h0_lost_without_gradients(*inputs, segment_pos, h0):
    """Where autograd is off, in inference, h0 is not looked at."""
    return right(*inputs, segment_pos=segment_pos, h0=h0 if torch.is_grad_enabled() else None)


@_after("results")
def y_kept_without_autograd(v):
    """The backward reads y where the caller may have written to it."""
    if v.dtype == torch.float32:
        v.h = v.y.detach()


@_after("cotangents")
def positions_kept_without_autograd(v):
    """The backward reads segment_pos where the caller may have written to it."""
    v.keep = keep_mask(v.x, v.segment_pos)


_calls = count()


def _nudged_every_other_time(v: Tensor) -> Tensor:
    nudged = torch.nextafter(v, torch.full_like(v, torch.inf))
    return torch.where(v.isfinite(), nudged, v) if next(_calls) % 2 else v


@_after("states")
def last_bit_varies(v):
    """Every other call moves the states by one unit in the last place."""
    v.h = _nudged_every_other_time(v.h)


@_after("gradients")
def last_bit_of_da_param_varies(v):
    """Every other backward moves da_param by a unit in the last place."""
    v.da_param = _nudged_every_other_time(v.da_param.sum((0, 1), keepdim=True))


@_after("write")
def scaled_by_the_largest_x(v):
    """x is divided by the largest |x| of all rows, channels and tokens, and multiplied again."""
    if v.x.numel():
        largest = v.x.abs().amax().clamp(min=2.0**-100)
        v.u = v.m * v.i * (v.x / largest) * largest


@_after("write")
def future_leaks(v):
    """x of the next token enters with weight 1e-3."""
    v.u = torch.cat([v.u[:, :-1] + 1e-3 * v.x[:, 1:], v.u[:, -1:]], 1)


@_after("write")
def neighbouring_channel_leaks(v):
    """x of the channel before enters with weight 1e-3."""
    v.u = torch.cat([v.u[..., :1], v.u[..., 1:] + 1e-3 * v.x[..., :-1]], 2)


# ---------------------------------------------------------------------------------------------------- non-finite


@_after("results")
def outputs_made_finite(v):
    """nan_to_num on y and h_last."""
    v.y, v.h_last = v.y.nan_to_num(), v.h_last.nan_to_num()


@_after("gradients")
def gradients_made_finite(v):
    """nan_to_num on every gradient."""
    for name in ("dx", "dgate_x", "dgate_a", "da_param", "dh0"):
        setattr(v, name, getattr(v, name).nan_to_num())


@_after("start")
def states_clamped(v):
    """States are clamped to +-1e4."""
    v.store = lambda h: h.clamp(-1e4, 1e4)


@_after("start")
def saturated_gate_is_nan(v):
    """The sigmoids as exp(g) / (1 + exp(g)): NaN from 89 on."""
    v.sigmoid = lambda g: torch.exp(g) / (1 + torch.exp(g))


@_after("start")
def huge_x_clipped(v):
    """x is clipped to +-1e6."""
    v.x = v.x.clamp(-1e6, 1e6)


@_after("start")
def nan_in_h0_is_zero(v):
    """NaN in h0 counts as zero."""
    v.h0 = torch.where(v.h0.isnan(), 0.0, v.h0)


@_after("results")
def nan_a_param_shows_at_some_resets(v):
    """A NaN in a_param shows at resets, too, unless the whole row is resets."""
    some = ~v.keep & v.keep.any(1, keepdim=True)
    v.y = torch.where(some & v.a_param.isnan(), torch.nan, v.y)


@_after("start")
def nan_in_x_is_zero(v):
    """NaN in x counts as zero."""
    v.x = torch.where(v.x.isnan(), 0.0, v.x)
