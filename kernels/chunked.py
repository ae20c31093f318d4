"""The exact parallel kernels: a program holds one chunk of time, for one row and a tile of channels.

A chunk is what a tile is to the serial kernels, read once and written once. Chunks of `GROUP` form a group: a chunk
puts the maps of the chunks before it in its group on top of the state that the group before ended with, so that only
one state a group passes along the chain. The backward does the same in reverse with the flow a g, from the float32
states that the forward saved. With `waiting=False` it takes three launches, in which no program waits for another.
"""

import torch
import triton
import triton.language as tl

from kernels.cell import INTERPRETED, LOG2_E, C, sigmoid, softplus
from kernels.chain import receive_map, receive_state, send_map, send_state
from kernels.reduce import sum_rows
from kernels.serial import as_words, constant
from kernels.tile import (
    apply,
    combine,
    flow_back,
    last_row,
    load,
    load_inputs,
    positions,
    prepare,
    run,
    run_back,
    scan,
    write_run,
)

STEPS = 4 if INTERPRETED.value else 8
"""Steps between saved states, and of a run of the backward; few under the interpreter, where each takes its time."""
RUNS = {16: (16 // STEPS, STEPS), 32: (32 // STEPS, STEPS), 64: (64 // STEPS, STEPS), 128: (64 // STEPS, 2 * STEPS)}
"""Chunk sizes: how many runs, a warp each, of how many steps."""
DEFAULT = 64
GROUP = 4
"""Chunks of a group, at most as many as runs of a chunk."""
CHANNELS = 64
"""Channels of a program: two a lane."""
WHOLE, MAPS, STATES = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
"""What a launch does: everything; send the maps of the chunks; receive the states of the groups, and write."""


@triton.jit
def _tickets(ticket_ptr, PHASE: tl.constexpr):
    """Which chunk of which chain a program takes: where programs wait, in the order in which they start."""
    if PHASE == WHOLE:
        return tl.atomic_add(ticket_ptr, 1, sem="relaxed").to(tl.int32)
    else:
        return tl.program_id(0)


@triton.jit
def _row_resets(segment_pos_ptr, words, first, T, STEPS: tl.constexpr):
    """One bit a step of each row, set at resets: [ROWS, 1]; `first` is the rows' first step."""
    step = tl.arange(0, STEPS)[None, :]
    position = positions(segment_pos_ptr, words, first + step, T)
    return tl.sum((position == 0).to(tl.int32) << step, axis=1)[:, None]


@triton.jit
def _incoming(
    first, maps_ptr, states_ptr, chain, chunk, chunks, lane, row, inside, GROUP: tl.constexpr, ROWS: tl.constexpr
):
    """The state a chunk starts from, in every row: `first` or the last group's, after its group's chunks before it."""
    CHANNELS: tl.constexpr = lane.shape[1]
    group = chunk // GROUP
    h = first
    if group > 0:
        at = (chain * tl.cdiv(chunks, GROUP) + group - 1) * CHANNELS + lane + 0 * row
        h = receive_state(states_ptr + at, inside)
    if chunk % GROUP > 0:
        at = (chain * chunks + group * GROUP + row) * CHANNELS + lane
        decay, write, cut = receive_map(maps_ptr + at, inside & (row < chunk % GROUP))
        decay, write, cut = combine(decay, write, cut, row, ROWS)
        h = last_row(apply(decay, write, cut, h, False), row, ROWS)
    return h


@triton.jit(do_not_specialize=["words", "has_h0", "T", "D", "chains"])
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
    saved_ptr,
    ticket_ptr,
    maps_ptr,
    states_ptr,
    T,
    D,
    chains,
    WIDTH: tl.constexpr,
    SAVE: tl.constexpr,
    STEPS: tl.constexpr,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
    CHANNELS: tl.constexpr,
    PHASE: tl.constexpr,
):
    LENGTH: tl.constexpr = ROWS * STEPS
    ticket = _tickets(ticket_ptr, PHASE)
    chunk = ticket // chains
    chain = (ticket % chains).to(tl.int64)
    width = WIDTH if WIDTH > 0 else D
    tiles = tl.cdiv(width, CHANNELS)
    b = chain // tiles
    lane = tl.arange(0, CHANNELS)[None, :]
    row = tl.arange(0, ROWS)[:, None]
    d = (chain % tiles).to(tl.int32) * CHANNELS + lane
    if WIDTH == 0:
        d = tl.max_contiguous(d, (1, 1))  # unaligned rows: without it, loads and stores disagree on a layout
    inside = (d >= 0 if WIDTH > 0 else d < width) & (row >= 0)
    t = chunk * LENGTH
    left = T - t - row * STEPS
    at = (b * T + t) * width
    offset = row * (STEPS * width) + d
    xs, gates_x, gates_a = load_inputs(x_ptr + at, gate_x_ptr + at, gate_a_ptr + at, offset, width, left, inside, STEPS)
    bits = _row_resets(segment_pos_ptr + b * T * words, words, t + row * STEPS, T, STEPS)
    rate = -C.value * LOG2_E.value * softplus(tl.load(a_param_ptr + d + 0 * row, mask=inside, other=0.0))
    plain = (tl.max(tl.max(bits, axis=1), axis=0) == 0) & (t + LENGTH <= T)
    if plain:
        decays, writes = run(xs, gates_x, gates_a, bits, left, rate, STEPS, True)
    else:
        decays, writes = run(xs, gates_x, gates_a, bits, left, rate, STEPS, False)
    cut = tl.zeros(rate.shape, tl.int32) + (bits != 0)
    decay, write, cut, past_decay, past_write, past_cut = scan(
        decays[STEPS - 1], writes[STEPS - 1], cut, row, ROWS, False
    )
    chunks = tl.cdiv(T, LENGTH)
    last = inside & (row == ROWS - 1)
    if PHASE != STATES:
        send_map(maps_ptr + (chain * chunks + chunk) * CHANNELS + lane + 0 * row, decay, write, cut, last)
    if PHASE != MAPS:
        first = tl.load(h0_ptr + b * width + d + 0 * row, mask=inside & (has_h0 > 0), other=0.0)
        h = _incoming(first, maps_ptr, states_ptr, chain, chunk, chunks, lane, row, inside, GROUP, ROWS)
        end = apply(decay, write, cut, h, False)
        if PHASE == WHOLE:
            at_group = (chain * tl.cdiv(chunks, GROUP) + chunk // GROUP) * CHANNELS + lane + 0 * row
            send_state(states_ptr + at_group, end, last & (chunk % GROUP == GROUP - 1))
        tl.store(h_last_ptr + b * width + d + 0 * row, end, mask=last & (chunk == chunks - 1))
        start = apply(past_decay, past_write, past_cut, h, False)
        if SAVE > 0:
            saved_ptr += (b * tl.cdiv(T, SAVE) + t // SAVE) * width
            saved_ptr += row * ((STEPS // SAVE) * width) + d
        if plain:
            write_run(
                start, decays, writes, bits, left, inside, y_ptr + at, saved_ptr, offset, width, STEPS, SAVE, True
            )
        else:
            write_run(
                start, decays, writes, bits, left, inside, y_ptr + at, saved_ptr, offset, width, STEPS, SAVE, False
            )


@triton.jit(do_not_specialize=["words", "T", "D", "chains"])
def _backward_kernel(
    x_ptr,
    gate_x_ptr,
    gate_a_ptr,
    a_param_ptr,
    segment_pos_ptr,
    words,
    saved_ptr,
    dy_ptr,
    dh_last_ptr,
    dx_ptr,
    dgate_x_ptr,
    dgate_a_ptr,
    da_param_ptr,
    dh0_ptr,
    ticket_ptr,
    maps_ptr,
    states_ptr,
    T,
    D,
    chains,
    WIDTH: tl.constexpr,
    STEPS: tl.constexpr,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
    CHANNELS: tl.constexpr,
    PHASE: tl.constexpr,
):
    """As the forward, with time running backwards: the first chunk ends at T, its first row holds its last run."""
    LENGTH: tl.constexpr = ROWS * STEPS
    ticket = _tickets(ticket_ptr, PHASE)
    chunk = ticket // chains
    chain = (ticket % chains).to(tl.int64)
    width = WIDTH if WIDTH > 0 else D
    tiles = tl.cdiv(width, CHANNELS)
    b = chain // tiles
    lane = tl.arange(0, CHANNELS)[None, :]
    row = tl.arange(0, ROWS)[:, None]
    d = (chain % tiles).to(tl.int32) * CHANNELS + lane
    if WIDTH == 0:
        d = tl.max_contiguous(d, (1, 1))
    inside = (d >= 0 if WIDTH > 0 else d < width) & (row >= 0)
    chunks = tl.cdiv(T, LENGTH)
    t = (chunks - 1 - chunk) * LENGTH
    run_of_row = ROWS - 1 - row
    left = T - t - run_of_row * STEPS
    at = (b * T + t) * width
    offset = run_of_row * (STEPS * width) + d
    xs, gates_x, gates_a = load_inputs(x_ptr + at, gate_x_ptr + at, gate_a_ptr + at, offset, width, left, inside, STEPS)
    dys = load(dy_ptr + at, offset, width, left, inside, STEPS)
    saved_ptr += (b * tl.cdiv(T, STEPS) + t // STEPS) * width
    h = tl.load(saved_ptr + (run_of_row * width + d), mask=inside & (left > 0), other=0.0)
    bits = _row_resets(segment_pos_ptr + b * T * words, words, t + run_of_row * STEPS, T, STEPS)
    a_param = tl.load(a_param_ptr + d + 0 * row, mask=inside, other=0.0)
    slope = -C.value * softplus(a_param)
    rate = slope * LOG2_E.value
    decays, to_dx, to_dgate_x, to_da_param, to_dgate_a = prepare(h, xs, gates_x, gates_a, bits, rate, slope, STEPS)
    decay, write = run_back(decays, dys, bits, left, STEPS)
    cut = tl.zeros(rate.shape, tl.int32) + (bits != 0)
    decay, write, cut, past_decay, past_write, past_cut = scan(decay, write, cut, row, ROWS, False)
    last = inside & (row == ROWS - 1)
    if PHASE != STATES:
        send_map(maps_ptr + (chain * chunks + chunk) * CHANNELS + lane + 0 * row, decay, write, cut, last)
    if PHASE != MAPS:
        first = tl.load(dh_last_ptr + b * width + d + 0 * row, mask=inside, other=0.0)
        flow = _incoming(first, maps_ptr, states_ptr, chain, chunk, chunks, lane, row, inside, GROUP, ROWS)
        if PHASE == WHOLE:
            end = apply(decay, write, cut, flow, False)
            at_group = (chain * tl.cdiv(chunks, GROUP) + chunk // GROUP) * CHANNELS + lane + 0 * row
            send_state(states_ptr + at_group, end, last & (chunk % GROUP == GROUP - 1))
        start = apply(past_decay, past_write, past_cut, flow, False)
        flow, rows_da_param = flow_back(
            start,
            tl.zeros(rate.shape, tl.float32),
            decays,
            to_dx,
            to_dgate_x,
            to_da_param,
            to_dgate_a,
            dys,
            bits,
            left,
            inside,
            dx_ptr + at,
            dgate_x_ptr + at,
            dgate_a_ptr + at,
            offset,
            width,
            STEPS,
        )
        da_param = tl.zeros(rate.shape, tl.float32)
        for k in tl.static_range(ROWS):
            da_param += tl.sum(tl.where(row == k, rows_da_param, 0.0), axis=0)[None, :]
        # no token but resets: an empty sum, whatever a_param holds
        da_param = tl.where(da_param == 0.0, 0.0, da_param * (-C.value * sigmoid(a_param)))
        tl.store(da_param_ptr + (b * chunks + chunk) * width + d + 0 * row, da_param, mask=last)
        tl.store(dh0_ptr + b * width + d + 0 * row, flow, mask=last & (chunk == chunks - 1))


@triton.jit(do_not_specialize=["has_first", "D", "chunks"])
def _groups_kernel(
    maps_ptr,
    states_ptr,
    first_ptr,
    has_first,
    D,
    chunks,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """The states that the groups of a chain end with, from the maps of their chunks, combined as in a single launch."""
    tiles = tl.cdiv(D, CHANNELS)
    chain = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, CHANNELS)[None, :]
    row = tl.arange(0, ROWS)[:, None]
    d = (chain % tiles).to(tl.int32) * CHANNELS + lane
    inside = (d < D) & (row >= 0)
    h = tl.load(first_ptr + chain // tiles * D + d + 0 * row, mask=inside & (has_first > 0), other=0.0)
    groups = tl.cdiv(chunks, GROUP)
    for group in range(0, groups):
        at = (chain * chunks + group * GROUP + row) * CHANNELS + lane
        here = inside & (row < GROUP) & (group * GROUP + row < chunks)
        decay, write, cut = receive_map(maps_ptr + at, here & (row < GROUP - 1))
        decay, write, cut = combine(decay, write, cut, row, ROWS)
        h = last_row(apply(decay, write, cut, h, False), row, ROWS)
        decay, write, cut = receive_map(maps_ptr + at, here & (row == GROUP - 1))
        h = tl.sum(tl.where(row == GROUP - 1, apply(decay, write, cut, h, False), 0.0), axis=0)[None, :] + 0.0 * h
        send_state(states_ptr + (chain * groups + group) * CHANNELS + lane + 0 * row, h, inside & (row == 0))


def forward(x, gate_x, gate_a, a_param, segment_pos, h0, *, save: bool, chunk_size: int, waiting: bool = True):
    """(y, h_last, states) of contiguous, aligned, non-empty inputs; `states` [B, ceil(T / STEPS), D], or empty."""
    batch, steps, width = x.shape
    y = torch.empty_like(x)
    h_last = x.new_empty((batch, width), dtype=torch.float32)
    states = x.new_empty((batch, triton.cdiv(steps, STEPS) if save else 0, width), dtype=torch.float32)
    rows, run_steps = RUNS[chunk_size]
    first = (a_param, 0) if h0 is None else (h0, 1)
    _launch(
        _forward_kernel,
        (x, gate_x, gate_a, a_param, *as_words(segment_pos, a_param), *first, y, h_last, states),
        first,
        x.shape,
        chunk_size,
        waiting,
        SAVE=STEPS if save else 0,
        STEPS=run_steps,
        ROWS=rows,
    )
    return y, h_last, states


def backward(x, gate_x, gate_a, a_param, segment_pos, states, dy, dh_last, *, chunk_size: int, waiting: bool = True):
    """(dx, dgate_x, dgate_a, da_param, dh0) of contiguous, aligned, non-empty inputs and the forward's states."""
    batch, steps, width = x.shape
    dx, dgate_x, dgate_a = (torch.empty_like(x) for _ in range(3))
    chunk_size = backward_chunk(chunk_size)
    da_param = x.new_empty((batch * triton.cdiv(steps, chunk_size), width), dtype=torch.float32)
    dh0 = x.new_empty((batch, width), dtype=torch.float32)
    outputs = (dx, dgate_x, dgate_a, da_param, dh0)
    _launch(
        _backward_kernel,
        (x, gate_x, gate_a, a_param, *as_words(segment_pos, a_param), states, dy, dh_last, *outputs),
        (dh_last, 1),
        x.shape,
        chunk_size,
        waiting,
        STEPS=STEPS,
        ROWS=chunk_size // STEPS,
    )
    return dx, dgate_x, dgate_a, sum_rows(da_param), dh0


def backward_chunk(chunk_size: int) -> int:
    """The backward's chunks have runs of `STEPS`, and no more warps than the forward's."""
    return min(chunk_size, 64)


def _launch(kernel, arguments, first, shape, chunk_size, waiting, *, ROWS, **constants):
    """One launch in which programs wait for one another, or three in which none does; its messages start at 0."""
    batch, steps, width = shape
    device = arguments[0].device
    chains, chunks = batch * triton.cdiv(width, CHANNELS), triton.cdiv(steps, chunk_size)
    group = min(GROUP, ROWS)
    groups = triton.cdiv(chunks, group)
    words = torch.zeros(1 + chains * (chunks + groups) * CHANNELS, dtype=torch.int64, device=device)
    ticket, maps, states = words.split((1, chains * chunks * CHANNELS, chains * groups * CHANNELS))

    def launch(phase):
        kernel[(chains * chunks,)](
            *arguments,
            ticket,
            maps,
            states,
            steps,
            width,
            chains,
            WIDTH=constant(width),
            ROWS=ROWS,
            GROUP=group,
            CHANNELS=CHANNELS,
            PHASE=phase.value,
            num_warps=ROWS,
            **constants,
        )

    if waiting:
        launch(WHOLE)
        return
    launch(MAPS)
    _groups_kernel[(chains,)](
        maps, states, *first, width, chunks, GROUP=group, ROWS=ROWS, CHANNELS=CHANNELS, num_warps=ROWS
    )
    launch(STATES)
