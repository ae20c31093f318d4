"""The fused serial kernels: one program walks all of time for one row and a tile of channels, forward and backward.

The strategy (fuse gates, decay and write with the scan; recompute them in backward) is Fattori's
(github.com/fattorib/hawk-pytorch, hawk/scan_fused.py). Here the forward saves a float32 state every `STEPS` steps and
the backward rebuilds the states between them; resets, h0, h_last, any width and any length are ours.
"""

import torch
import triton
import triton.language as tl

from kernels.cell import LOG2_E, MIN_MULTIPLIER, C, cell, sigmoid, softplus, store

STEPS = 8
"""Steps between saved states, which backward holds at once."""
CHANNELS = 64
"""Channels of a program."""
ROWS = 8
"""Rows of da_param that are read at once."""


@triton.jit(do_not_specialize=["T"])
def _forward_kernel(
    x_ptr,
    gate_x_ptr,
    gate_a_ptr,
    a_param_ptr,
    segment_pos_ptr,
    h0_ptr,
    y_ptr,
    h_last_ptr,
    states_ptr,
    T,
    D,
    HAS_RESETS: tl.constexpr,
    HAS_H0: tl.constexpr,
    SAVE: tl.constexpr,
    STEPS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    tiles = tl.cdiv(D, CHANNELS)
    b = (tl.program_id(0) // tiles).to(tl.int64)
    d = (tl.program_id(0) % tiles) * CHANNELS + tl.arange(0, CHANNELS)
    inside = d < D
    rate = -C.value * LOG2_E.value * softplus(tl.load(a_param_ptr + d, mask=inside, other=0.0))
    h = tl.zeros([CHANNELS], tl.float32)
    if HAS_H0:
        h = tl.load(h0_ptr + b * D + d, mask=inside, other=0.0)
    for t in range(0, T):
        if SAVE and t % STEPS == 0:
            tl.store(states_ptr + (b * tl.cdiv(T, STEPS) + t // STEPS) * D + d, h, mask=inside)
        at = (b * T + t) * D + d
        x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
        gate_x = tl.load(gate_x_ptr + at, mask=inside, other=0.0).to(tl.float32)
        gate_a = tl.load(gate_a_ptr + at, mask=inside, other=0.0).to(tl.float32)
        i, _, a, m = cell(gate_x, gate_a, rate)
        gated = i * x
        h = a * h + m * gated
        if HAS_RESETS:
            h = tl.where(tl.load(segment_pos_ptr + b * T + t) == 0, gated, h)
        store(y_ptr + at, h, inside)
    tl.store(h_last_ptr + b * D + d, h, mask=inside)


@triton.jit(do_not_specialize=["T"])
def _backward_kernel(
    x_ptr,
    gate_x_ptr,
    gate_a_ptr,
    a_param_ptr,
    segment_pos_ptr,
    states_ptr,
    dy_ptr,
    dh_last_ptr,
    dx_ptr,
    dgate_x_ptr,
    dgate_a_ptr,
    da_param_ptr,
    dh0_ptr,
    T,
    D,
    HAS_RESETS: tl.constexpr,
    STEPS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    tiles = tl.cdiv(D, CHANNELS)
    b = (tl.program_id(0) // tiles).to(tl.int64)
    d = (tl.program_id(0) % tiles) * CHANNELS + tl.arange(0, CHANNELS)
    inside = d < D
    a_param = tl.load(a_param_ptr + d, mask=inside, other=0.0)
    softplus_p = softplus(a_param)
    rate = -C.value * LOG2_E.value * softplus_p
    carry = tl.load(dh_last_ptr + b * D + d, mask=inside, other=0.0)  # a_{t+1} g_{t+1}
    da_param = tl.zeros([CHANNELS], tl.float32)
    segments = tl.cdiv(T, STEPS)
    for segment in range(segments - 1, -1, -1):
        start = segment * STEPS
        h = tl.load(states_ptr + (b * segments + segment) * D + d, mask=inside, other=0.0)
        xs = ()
        i_s = ()
        rs = ()
        a_s = ()
        ms = ()
        h_prevs = ()
        resets = ()
        for step in tl.static_range(STEPS):
            t = start + step
            here = inside & (t < T)
            at = (b * T + t) * D + d
            x = tl.load(x_ptr + at, mask=here, other=0.0).to(tl.float32)
            gate_x = tl.load(gate_x_ptr + at, mask=here, other=0.0).to(tl.float32)
            gate_a = tl.load(gate_a_ptr + at, mask=here, other=0.0).to(tl.float32)
            i, r, a, m = cell(gate_x, gate_a, rate)
            reset = t < 0
            if HAS_RESETS:
                reset = tl.load(segment_pos_ptr + b * T + t, mask=t < T, other=1) == 0
            h_prevs = h_prevs + (h,)
            h = tl.where(reset, i * x, a * h + m * (i * x))
            xs = xs + (x,)
            i_s = i_s + (i,)
            rs = rs + (r,)
            a_s = a_s + (a,)
            ms = ms + (tl.where(reset, 1.0, m),)
            resets = resets + (reset,)
        for back in tl.static_range(STEPS):
            t = start + (STEPS - 1 - back)
            here = inside & (t < T)
            at = (b * T + t) * D + d
            x, i, r = xs[STEPS - 1 - back], i_s[STEPS - 1 - back], rs[STEPS - 1 - back]
            a, m, h_prev = a_s[STEPS - 1 - back], ms[STEPS - 1 - back], h_prevs[STEPS - 1 - back]
            reset = resets[STEPS - 1 - back]
            g = carry + tl.load(dy_ptr + at, mask=here, other=0.0).to(tl.float32)
            dx = g * m * i
            store(dx_ptr + at, dx, here)
            store(dgate_x_ptr + at, dx * x * (1.0 - i), here)
            flow = a * g
            # the slope of sqrt(1 - a^2) times -2 a^2 is -a^2 / max(m, 1/2000)
            dL_r = flow * (h_prev - i * x * (a / tl.where(m > MIN_MULTIPLIER.value, m, MIN_MULTIPLIER.value))) * r
            past = here & (reset == 0)
            da_param += tl.where(past, dL_r, 0.0)
            store(dgate_a_ptr + at, tl.where(past, dL_r * (1.0 - r) * (-C.value * softplus_p), 0.0), here)
            carry = tl.where(reset, 0.0, tl.where(t < T, flow, carry))
    # no token but resets: an empty sum, whatever a_param holds
    da_param = tl.where(da_param == 0.0, 0.0, da_param * (-C.value * sigmoid(a_param)))
    tl.store(da_param_ptr + b * D + d, da_param, mask=inside)
    tl.store(dh0_ptr + b * D + d, carry, mask=inside)


@triton.jit(do_not_specialize=["B"])
def _sum_rows_kernel(rows_ptr, sum_ptr, B, D, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    """Sum [B, D] over B one row after another, ROWS loads at once.

    torch.sum and tl.sum choose an order by the width, so that a channel's bits would depend on its neighbours' number.
    """
    d = (tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)).to(tl.int64)
    inside = d < D
    total = tl.zeros([CHANNELS], tl.float32)
    for start in range(0, B, ROWS):
        rows = ()
        for row in tl.static_range(ROWS):
            b = start + row + 0 * d
            rows = rows + (tl.load(rows_ptr + b * D + d, mask=inside & (b < B), other=0.0),)
        for row in tl.static_range(ROWS):
            total += rows[row]
    tl.store(sum_ptr + d, total, mask=inside)


def forward(x, gate_x, gate_a, a_param, segment_pos, h0, *, save: bool):
    """(y, h_last, states) of contiguous, non-empty inputs; `states` [B, ceil(T / STEPS), D] is empty unless `save`."""
    batch, steps, width = x.shape
    y = torch.empty_like(x)
    h_last = x.new_empty((batch, width), dtype=torch.float32)
    states = x.new_empty((batch, triton.cdiv(steps, STEPS) if save else 0, width), dtype=torch.float32)
    _forward_kernel[(batch * triton.cdiv(width, CHANNELS),)](
        x,
        gate_x,
        gate_a,
        a_param,
        segment_pos,
        h0,
        y,
        h_last,
        states,
        steps,
        width,
        HAS_RESETS=segment_pos is not None,
        HAS_H0=h0 is not None,
        SAVE=save,
        STEPS=STEPS,
        CHANNELS=CHANNELS,
    )
    return y, h_last, states


def backward(x, gate_x, gate_a, a_param, segment_pos, states, dy, dh_last):
    """(dx, dgate_x, dgate_a, da_param, dh0) of contiguous, non-empty inputs and the states the forward saved."""
    batch, steps, width = x.shape
    dx, dgate_x, dgate_a = (torch.empty_like(x) for _ in range(3))
    da_param, dh0 = (x.new_empty((batch, width), dtype=torch.float32) for _ in range(2))
    _backward_kernel[(batch * triton.cdiv(width, CHANNELS),)](
        x,
        gate_x,
        gate_a,
        a_param,
        segment_pos,
        states,
        dy,
        dh_last,
        dx,
        dgate_x,
        dgate_a,
        da_param,
        dh0,
        steps,
        width,
        HAS_RESETS=segment_pos is not None,
        STEPS=STEPS,
        CHANNELS=CHANNELS,
    )
    total = torch.empty_like(a_param)
    _sum_rows_kernel[(triton.cdiv(width, CHANNELS),)](da_param, total, batch, width, ROWS=ROWS, CHANNELS=CHANNELS)
    return dx, dgate_x, dgate_a, total, dh0
