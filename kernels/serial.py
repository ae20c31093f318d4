"""The fused serial kernels: one program walks all of time for one row and a tile of channels, forward and backward.

The strategy (fuse gates, decay and write with the scan; recompute them in backward) is Fattori's
(github.com/fattorib/hawk-pytorch, hawk/scan_fused.py). Here a program takes a tile of steps at once while the next one
is being loaded, the forward saves a float32 state every `STEPS` steps and the backward rebuilds the states between
them; resets, h0, h_last, any width and any length are ours.

A width that is a multiple of 64 is a compile-time constant, because a running stride costs the backward half of
its speed; all other widths share one slower variant. So each such width costs a first call some seconds.
"""

import torch
import triton
import triton.language as tl

from kernels.cell import INTERPRETED, LOG2_E, C, sigmoid, softplus
from kernels.launch import STEPS, as_words, channels, constant
from kernels.reduce import sum_rows
from kernels.tile import apply, last_row, load_inputs, positions, resets, run, scan, walk_back, write_run

ROWS = 2 if INTERPRETED.value else 4
"""Runs of `STEPS` of a forward tile, a warp each."""
BACKWARD_REGISTERS = 168
"""A thread of the backward may take: six programs of two warps are then beside one another on a multiprocessor."""
SPLIT = ROWS * STEPS
"""Calls split at multiples of this give the bits of one call."""


@triton.jit(do_not_specialize=["words", "has_h0", "T", "D"])
def _forward_kernel(
    x_ptr,
    gate_x_ptr,
    gate_a_ptr,
    a_param_ptr,
    segment_pos_ptr,
    words,
    h0_ptr,
    has_h0,
    y_ptr,
    h_last_ptr,
    states_ptr,
    T,
    D,
    WIDTH: tl.constexpr,
    SAVE: tl.constexpr,
    STEPS: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    width = WIDTH if WIDTH > 0 else D
    tiles = tl.cdiv(width, CHANNELS)
    b = (tl.program_id(0) // tiles).to(tl.int64)
    d = (tl.program_id(0) % tiles) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    row = tl.arange(0, ROWS)[:, None]
    inside = (d >= 0 if WIDTH > 0 else d < width) & (row >= 0)
    rate = -C.value * LOG2_E.value * softplus(tl.load(a_param_ptr + d + 0 * row, mask=inside, other=0.0))
    h = tl.load(h0_ptr + b * width + d + 0 * row, mask=inside & (has_h0 > 0), other=0.0)
    segment_pos_ptr += b * T * words
    at = b * T * width
    offset = row * (STEPS * width) + d
    x_ptr += at
    gate_x_ptr += at
    gate_a_ptr += at
    y_ptr += at
    states_ptr += b * tl.cdiv(T, STEPS) * width + row * width + d
    LENGTH: tl.constexpr = ROWS * STEPS
    left = T - row * STEPS
    xs, gates_x, gates_a = load_inputs(x_ptr, gate_x_ptr, gate_a_ptr, offset, width, left, inside, STEPS)
    steps = tl.arange(0, LENGTH)
    position = positions(segment_pos_ptr, words, steps, T)
    for t in range(0, T, LENGTH):
        left = T - t - row * STEPS
        x_ptr += LENGTH * width
        gate_x_ptr += LENGTH * width
        gate_a_ptr += LENGTH * width
        all_bits = resets(position, LENGTH)
        position = positions(segment_pos_ptr, words, t + LENGTH + steps, T)
        next_xs, next_gates_x, next_gates_a = load_inputs(
            x_ptr, gate_x_ptr, gate_a_ptr, offset, width, left - LENGTH, inside, STEPS
        )
        if (all_bits == 0) & (t + LENGTH <= T):
            h = _forward_tile(
                h,
                xs,
                gates_x,
                gates_a,
                0,
                left,
                inside,
                row,
                rate,
                y_ptr,
                states_ptr,
                offset,
                width,
                STEPS,
                ROWS,
                SAVE,
                True,
            )
        else:
            bits = (all_bits >> (row * STEPS)) & ((1 << STEPS) - 1)
            h = _forward_tile(
                h,
                xs,
                gates_x,
                gates_a,
                bits,
                left,
                inside,
                row,
                rate,
                y_ptr,
                states_ptr,
                offset,
                width,
                STEPS,
                ROWS,
                SAVE,
                False,
            )
        y_ptr += LENGTH * width
        states_ptr += ROWS * width
        xs = next_xs
        gates_x = next_gates_x
        gates_a = next_gates_a
    tl.store(h_last_ptr + b * width + d + 0 * row, h, mask=inside & (row == 0))


@triton.jit
def _forward_tile(
    h,
    xs,
    gates_x,
    gates_a,
    bits,
    left,
    inside,
    row,
    rate,
    y_ptr,
    state_ptr,
    offset,
    stride,
    STEPS: tl.constexpr,
    ROWS: tl.constexpr,
    SAVE: tl.constexpr,
    PLAIN: tl.constexpr,
):
    """Write the states of a tile that starts at h, and return the one it ends with."""
    decays, writes = run(xs, gates_x, gates_a, bits, left, rate, STEPS, PLAIN)
    cut = tl.zeros(rate.shape, tl.int32) + (bits != 0)
    decay, write, cut, past_decay, past_write, past_cut = scan(
        decays[STEPS - 1], writes[STEPS - 1], cut, row, ROWS, PLAIN
    )
    start = apply(past_decay, past_write, past_cut, h, PLAIN)
    end = last_row(apply(decay, write, cut, h, PLAIN), row, ROWS)
    write_run(start, decays, writes, bits, left, inside, y_ptr, state_ptr, offset, stride, STEPS, SAVE, PLAIN)
    return end


@triton.jit(do_not_specialize=["words", "T", "D"])
def _backward_kernel(
    x_ptr,
    gate_x_ptr,
    gate_a_ptr,
    a_param_ptr,
    segment_pos_ptr,
    words,
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
    WIDTH: tl.constexpr,
    STEPS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    width = WIDTH if WIDTH > 0 else D
    tiles = tl.cdiv(width, CHANNELS)
    b = (tl.program_id(0) // tiles).to(tl.int64)
    d = (tl.program_id(0) % tiles) * CHANNELS + tl.arange(0, CHANNELS)
    inside = d >= 0 if (WIDTH > 0 and WIDTH % CHANNELS == 0) else d < width
    runs = tl.cdiv(T, STEPS)
    at = b * T * width
    a_param = tl.load(a_param_ptr + d, mask=inside, other=0.0)
    slope = -C.value * softplus(a_param)
    carry, da_param = walk_back(
        tl.load(dh_last_ptr + b * width + d, mask=inside, other=0.0),
        x_ptr + at,
        gate_x_ptr + at,
        gate_a_ptr + at,
        segment_pos_ptr + b * T * words,
        words,
        states_ptr + b * runs * width,
        dy_ptr + at,
        dx_ptr + at,
        dgate_x_ptr + at,
        dgate_a_ptr + at,
        runs,
        T,
        d,
        width,
        inside,
        slope * LOG2_E.value,
        slope,
        STEPS,
        True,
    )
    # no token but resets: an empty sum, whatever a_param holds
    da_param = tl.where(da_param == 0.0, 0.0, da_param * (-C.value * sigmoid(a_param)))
    tl.store(da_param_ptr + b * width + d, da_param, mask=inside)
    tl.store(dh0_ptr + b * width + d, carry, mask=inside)


def forward(x, gate_x, gate_a, a_param, segment_pos, h0, *, save: bool):
    """(y, h_last, states) of contiguous, aligned, non-empty inputs; `states` [B, ceil(T / STEPS), D], or empty."""
    batch, steps, width = x.shape
    y = torch.empty_like(x)
    h_last = x.new_empty((batch, width), dtype=torch.float32)
    states = x.new_empty((batch, triton.cdiv(steps, STEPS) if save else 0, width), dtype=torch.float32)
    _forward_kernel[(batch * triton.cdiv(width, channels(width)),)](
        x,
        gate_x,
        gate_a,
        a_param,
        *as_words(segment_pos, a_param),
        a_param if h0 is None else h0,
        int(h0 is not None),
        y,
        h_last,
        states,
        steps,
        width,
        WIDTH=constant(width),
        SAVE=STEPS if save else 0,
        STEPS=STEPS,
        ROWS=ROWS,
        CHANNELS=channels(width),
        num_warps=ROWS,
    )
    return y, h_last, states


def backward(x, gate_x, gate_a, a_param, segment_pos, states, dy, dh_last):
    """(dx, dgate_x, dgate_a, da_param, dh0) of contiguous, aligned, non-empty inputs and the forward's states."""
    batch, steps, width = x.shape
    dx, dgate_x, dgate_a = (torch.empty_like(x) for _ in range(3))
    da_param, dh0 = (x.new_empty((batch, width), dtype=torch.float32) for _ in range(2))
    _backward_kernel[(batch * triton.cdiv(width, channels(width, warps=2)),)](
        x,
        gate_x,
        gate_a,
        a_param,
        *as_words(segment_pos, a_param),
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
        WIDTH=constant(width),
        STEPS=STEPS,
        CHANNELS=channels(width, warps=2),
        num_warps=2,
        maxnreg=BACKWARD_REGISTERS if constant(width) and x.is_cuda else None,
    )
    return dx, dgate_x, dgate_a, sum_rows(da_param), dh0
