"""The exact parallel kernels: a program holds one chunk of time, for one row of the batch and a tile of channels.

A chunk is read once and written once. It says what it does to a state, waits for what the chunks before it say, and
writes. The backward does the same in reverse with the flow a g, from the float32 states that the forward saved. With
`waiting=False` it takes three launches, in which no program waits for another; the bits are the same.
"""

import torch
import triton
import triton.language as tl

from kernels.cell import INTERPRETED, LOG2_E, C, sigmoid, softplus
from kernels.chain import receive, send, wait
from kernels.launch import STEPS, as_words, channels, constant
from kernels.reduce import sum_rows
from kernels.tile import apply, load, load_inputs, map_back, positions, resets, run, scan, walk_back, write_run

RUN = 8 if INTERPRETED.value else 16
"""Steps of a run of the forward, a warp each."""
CHUNKS = (16, 32, 64)
DEFAULT = 64
GROUP = 4
"""Chunks of a group."""
BLOCK = 1024
"""Words that a program clears, more than the channels it has; so it also writes as many slopes."""
REGISTERS = 128
"""A thread may take: sixteen warps are then beside one another on a multiprocessor."""
WHOLE, MAPS, STATES = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
"""What a launch does: everything; send the maps of the chunks; receive the states of the groups, and write."""


@triton.jit(do_not_specialize=["size", "D"])
def _begin_kernel(words_ptr, size, a_param_ptr, slope_ptr, D, BLOCK: tl.constexpr):
    """Clear tickets and messages, and write -8 softplus(a_param), which every chunk needs."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(words_ptr + at, 0, mask=at < size)
    slope = -C.value * softplus(tl.load(a_param_ptr + at, mask=at < D, other=0.0))
    tl.store(slope_ptr + at, slope, mask=at < D)


@triton.jit
def _place(chains, D, WIDTH: tl.constexpr, CHANNELS: tl.constexpr):
    """What a program holds: a chunk of a chain, which is a row b of the batch and a tile of channels d."""
    program = tl.program_id(0)
    chain = program % chains
    tiles = tl.cdiv(WIDTH if WIDTH > 0 else D, CHANNELS)
    # by remainders, from which the compiler knows that offsets are small
    d = (chain % tiles) * CHANNELS + tl.arange(0, CHANNELS)
    return program // chains, chain.to(tl.int64), (chain // tiles).to(tl.int64), d, d >= 0 if WIDTH > 0 else d < D


@triton.jit
def _take(chunk, tickets_ptr, chain, PHASE: tl.constexpr):
    """The next chunk of the chain, where programs wait for those of its chunks that were taken before."""
    if PHASE == WHOLE:
        chunk = tl.atomic_add(tickets_ptr + chain, 1, sem="relaxed").to(tl.int32)
    return chunk


@triton.jit
def _load_chunk(
    x_ptr,
    gate_x_ptr,
    gate_a_ptr,
    segment_pos_ptr,
    words,
    chunk,
    b,
    row,
    d,
    width,
    T,
    inside,
    STEPS: tl.constexpr,
    LENGTH: tl.constexpr,
):
    """The inputs and positions of a chunk of row b of the batch."""
    t = chunk * LENGTH
    at = (b * T + t) * width
    offset = row * (STEPS * width) + d
    left = T - t - row * STEPS
    xs, gates_x, gates_a = load_inputs(x_ptr + at, gate_x_ptr + at, gate_a_ptr + at, offset, width, left, inside, STEPS)
    return xs, gates_x, gates_a, positions(segment_pos_ptr + b * T * words, words, t + tl.arange(0, LENGTH), T)


@triton.jit(do_not_specialize=["words", "has_h0", "T", "D", "chains"])
def _forward_kernel(
    x_ptr,
    gate_x_ptr,
    gate_a_ptr,
    segment_pos_ptr,
    words,
    h0_ptr,
    has_h0,
    y_ptr,
    h_last_ptr,
    states_ptr,
    slope_ptr,
    tickets_ptr,
    messages_ptr,
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
    width = WIDTH if WIDTH > 0 else D
    guess, chain, b, d, inside = _place(chains, D, WIDTH, CHANNELS)
    row = tl.arange(0, ROWS)[:, None]
    d = d[None, :]
    inside = inside[None, :] & (row >= 0)
    # blocks start in order, nearly: the guess is loaded while the ticket is under way
    xs, gates_x, gates_a, position = _load_chunk(
        x_ptr, gate_x_ptr, gate_a_ptr, segment_pos_ptr, words, guess, b, row, d, width, T, inside, STEPS, LENGTH
    )
    chunk = _take(guess, tickets_ptr, chain, PHASE)
    if chunk != guess:
        xs, gates_x, gates_a, position = _load_chunk(
            x_ptr, gate_x_ptr, gate_a_ptr, segment_pos_ptr, words, chunk, b, row, d, width, T, inside, STEPS, LENGTH
        )
    chunks = tl.cdiv(T, LENGTH)
    t = chunk * LENGTH
    left = T - t - row * STEPS
    rate = LOG2_E.value * tl.load(slope_ptr + d + 0 * row, mask=inside, other=0.0)
    messages_ptr += chain * chunks * CHANNELS + tl.arange(0, CHANNELS)[None, :] + 0 * row
    all_bits = resets(position, LENGTH)
    bits = ((all_bits >> (row * STEPS)) & ((1 << STEPS) - 1)).to(tl.int32)
    cut = (bits != 0).to(tl.int32) + tl.zeros(rate.shape, tl.int32)
    plain = (t + LENGTH <= T) & (all_bits == 0)
    if plain:
        decays, writes = run(xs, gates_x, gates_a, bits, left, rate, STEPS, True)
        decay, write, cut, past_decay, past_write, past_cut = scan(
            decays[STEPS - 1], writes[STEPS - 1], cut, row, ROWS, True
        )
    else:
        decays, writes = run(xs, gates_x, gates_a, bits, left, rate, STEPS, False)
        decay, write, cut, past_decay, past_write, past_cut = scan(
            decays[STEPS - 1], writes[STEPS - 1], cut, row, ROWS, False
        )
    last = inside & (row == ROWS - 1)
    ends_group = chunk % GROUP == GROUP - 1
    if PHASE != STATES:
        send(messages_ptr + chunk * CHANNELS, decay, write, cut, last & ((PHASE == MAPS) | ~ends_group))
    if PHASE != MAPS:
        first = inside & (has_h0 > 0) & (chunk < GROUP)
        h = tl.load(h0_ptr + b * width + d + 0 * row, mask=first, other=0.0)
        h = wait(messages_ptr, chunk, inside, h, GROUP, CHANNELS)
        end = apply(decay, write, cut, h, False)
        if PHASE == WHOLE:
            send(messages_ptr + chunk * CHANNELS, decay, end, 1, last & ends_group)
        tl.store(h_last_ptr + b * width + d + 0 * row, end, mask=last & (chunk == chunks - 1))
        start = apply(past_decay, past_write, past_cut, h, False)
        y_ptr += (b * T + t) * width
        offset = row * (STEPS * width) + d
        if SAVE > 0:
            states_ptr += (b * tl.cdiv(T, SAVE) + t // SAVE) * width
            states_ptr += row * ((STEPS // SAVE) * width) + d
        if plain:
            write_run(start, decays, writes, bits, left, inside, y_ptr, states_ptr, offset, width, STEPS, SAVE, True)
        else:
            write_run(start, decays, writes, bits, left, inside, y_ptr, states_ptr, offset, width, STEPS, SAVE, False)


@triton.jit(do_not_specialize=["words", "T", "D", "chains"])
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
    slope_ptr,
    tickets_ptr,
    messages_ptr,
    T,
    D,
    chains,
    WIDTH: tl.constexpr,
    STEPS: tl.constexpr,
    LENGTH: tl.constexpr,
    GROUP: tl.constexpr,
    CHANNELS: tl.constexpr,
    PHASE: tl.constexpr,
):
    """As the forward, with time running backwards: the first chunk ends at T.

    A chunk is walked twice: for its map, then, once the flow after it is known, for its gradients.
    """
    width = WIDTH if WIDTH > 0 else D
    chunk, chain, b, d, inside = _place(chains, D, WIDTH, CHANNELS)
    chunk = _take(chunk, tickets_ptr, chain, PHASE)
    chunks = tl.cdiv(T, LENGTH)
    t = (chunks - 1 - chunk) * LENGTH
    left = tl.minimum(T - t, LENGTH)
    runs = tl.cdiv(left, STEPS)
    at = (b * T + t) * width
    gate_a_ptr += at
    dy_ptr += at
    segment_pos_ptr += (b * T + t) * words
    slope = tl.load(slope_ptr + d, mask=inside, other=0.0)
    rate = slope * LOG2_E.value
    messages_ptr += chain * chunks * CHANNELS + tl.arange(0, CHANNELS)
    ends_group = chunk % GROUP == GROUP - 1
    if PHASE != STATES:
        decay, write, cut = map_back(
            gate_a_ptr, segment_pos_ptr, words, dy_ptr, runs, left, d, width, inside, rate, STEPS
        )
        send(messages_ptr + chunk * CHANNELS, decay, write, cut, inside & ((PHASE == MAPS) | ~ends_group))
    if PHASE != MAPS:
        flow = tl.load(dh_last_ptr + b * width + d, mask=inside & (chunk < GROUP), other=0.0)
        flow = wait(messages_ptr, chunk, inside, flow, GROUP, CHANNELS)
        if PHASE == WHOLE:
            end = apply(decay, write, cut, flow, False)
            send(messages_ptr + chunk * CHANNELS, decay, end, 1, inside & ends_group)
        flow, da_param = walk_back(
            flow,
            x_ptr + at,
            gate_x_ptr + at,
            gate_a_ptr,
            segment_pos_ptr,
            words,
            states_ptr + (b * tl.cdiv(T, STEPS) + t // STEPS) * width,
            dy_ptr,
            dx_ptr + at,
            dgate_x_ptr + at,
            dgate_a_ptr + at,
            runs,
            left,
            d,
            width,
            inside,
            rate,
            slope,
            STEPS,
            False,
        )
        # no token but resets: an empty sum, whatever a_param holds
        a_param = tl.load(a_param_ptr + d, mask=inside, other=0.0)
        da_param = tl.where(da_param == 0.0, 0.0, da_param * (-C.value * sigmoid(a_param)))
        tl.store(da_param_ptr + (b * chunks + chunk) * width + d, da_param, mask=inside)
        tl.store(dh0_ptr + b * width + d, flow, mask=inside & (chunk == chunks - 1))


@triton.jit(do_not_specialize=["has_first", "D", "chunks"])
def _groups_kernel(messages_ptr, first_ptr, has_first, D, chunks, GROUP: tl.constexpr, CHANNELS: tl.constexpr):
    """Between launches that do not wait: each group of a chain gets the state it ends with in place of its last map."""
    tiles = tl.cdiv(D, CHANNELS)
    chain = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, CHANNELS)
    d = (chain % tiles).to(tl.int32) * CHANNELS + lane
    inside = d < D
    h = tl.load(first_ptr + chain // tiles * D + d, mask=inside & (has_first > 0), other=0.0)
    messages_ptr += chain * chunks * CHANNELS + lane
    for end in range(GROUP - 1, chunks, GROUP):
        maps = load(messages_ptr + (end - GROUP + 1) * CHANNELS, 0 * lane, CHANNELS, GROUP, inside, GROUP)
        for k in tl.static_range(GROUP):
            h = receive(maps[k], h)
        send(messages_ptr + end * CHANNELS, h, h, 1, inside)


def forward(x, gate_x, gate_a, a_param, segment_pos, h0, *, save: bool, chunk_size: int, waiting: bool = True):
    """(y, h_last, states) of contiguous, aligned, non-empty inputs; `states` [B, ceil(T / STEPS), D], or empty."""
    batch, steps, width = x.shape
    y = torch.empty_like(x)
    h_last = x.new_empty((batch, width), dtype=torch.float32)
    states = x.new_empty((batch, triton.cdiv(steps, STEPS) if save else 0, width), dtype=torch.float32)
    run_steps = min(chunk_size, RUN)
    first = (a_param, 0) if h0 is None else (h0, 1)
    _launch(
        _forward_kernel,
        (x, gate_x, gate_a, *as_words(segment_pos, a_param), *first, y, h_last, states),
        a_param,
        first,
        x.shape,
        chunk_size,
        waiting,
        num_warps=chunk_size // run_steps,
        STEPS=run_steps,
        ROWS=chunk_size // run_steps,
        SAVE=STEPS if save else 0,
    )
    return y, h_last, states


def backward(x, gate_x, gate_a, a_param, segment_pos, states, dy, dh_last, *, chunk_size: int, waiting: bool = True):
    """(dx, dgate_x, dgate_a, da_param, dh0) of contiguous, aligned, non-empty inputs and the forward's states."""
    batch, steps, width = x.shape
    dx, dgate_x, dgate_a = (torch.empty_like(x) for _ in range(3))
    da_param = x.new_empty((batch * triton.cdiv(steps, chunk_size), width), dtype=torch.float32)
    dh0 = x.new_empty((batch, width), dtype=torch.float32)
    outputs = (dx, dgate_x, dgate_a, da_param, dh0)
    _launch(
        _backward_kernel,
        (x, gate_x, gate_a, a_param, *as_words(segment_pos, a_param), states, dy, dh_last, *outputs),
        a_param,
        (dh_last, 1),
        x.shape,
        chunk_size,
        waiting,
        num_warps=1,
        STEPS=STEPS,
        LENGTH=chunk_size,
    )
    return dx, dgate_x, dgate_a, sum_rows(da_param), dh0


def _launch(kernel, arguments, a_param, first, shape, chunk_size, waiting, **constants):
    """One launch in which programs wait for one another, or three in which none does."""
    batch, steps, width = shape
    chains, chunks = batch * triton.cdiv(width, channels(width)), triton.cdiv(steps, chunk_size)
    words = torch.empty(chains * (1 + chunks * channels(width)), dtype=torch.int64, device=a_param.device)
    slope = torch.empty_like(a_param)
    _begin_kernel[(triton.cdiv(len(words), BLOCK),)](words, len(words), a_param, slope, width, BLOCK=BLOCK)
    messages, tickets = words.split((len(words) - chains, chains))

    def launch(phase):
        kernel[(chains * chunks,)](
            *arguments,
            slope,
            tickets,
            messages,
            steps,
            width,
            chains,
            WIDTH=constant(width),
            maxnreg=REGISTERS if constant(width) and words.is_cuda else None,
            CHANNELS=channels(width),
            PHASE=phase.value,
            GROUP=GROUP,
            **constants,
        )

    if waiting:
        launch(WHOLE)
        return
    launch(MAPS)
    _groups_kernel[(chains,)](messages, *first, width, chunks, GROUP=GROUP, CHANNELS=channels(width), num_warps=1)
    launch(STATES)
