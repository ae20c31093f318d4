"""A tile of time, [ROWS, CHANNELS]: each row is a run of STEPS consecutive steps.

A run is unrolled, so that time passes inside a thread; only what the rows hand on to one another goes through a scan.

What a row does to a state h is the affine map h -> decay h + write, or, after a reset, h -> write: `cut` says which, so
that the past is selected away and not multiplied by zero.
"""

import triton
import triton.language as tl

from kernels.cell import INTERPRETED, cell, multiplier_and_slope, sigmoid, store


@triton.jit
def load(pointer, offset, stride, left, inside, STEPS: tl.constexpr):
    """A tuple of STEPS vectors at `offset`, `stride` elements apart; those from `left` on, and outside, are zero."""
    values = ()
    for step in tl.static_range(STEPS):
        values = values + (tl.load(pointer + (offset + step * stride), mask=inside & (step < left), other=0.0),)
    return values


@triton.jit
def load_inputs(x_ptr, gate_x_ptr, gate_a_ptr, offset, stride, left, inside, STEPS: tl.constexpr):
    """What `load` gives of x, gate_x and gate_a."""
    xs = ()
    gates_x = ()
    gates_a = ()
    for step in tl.static_range(STEPS):
        at = offset + step * stride
        mask = inside & (step < left)
        xs = xs + (tl.load(x_ptr + at, mask=mask, other=0.0),)
        gates_x = gates_x + (tl.load(gate_x_ptr + at, mask=mask, other=0.0),)
        gates_a = gates_a + (tl.load(gate_a_ptr + at, mask=mask, other=0.0),)
    return xs, gates_x, gates_a


@triton.jit
def positions(pointer, words, at, T):
    """segment_pos of the steps `at`, as int32: 0 exactly at resets, 1 outside 0 .. T and where there is none.

    `words` is how many int32 an element has: 1, 2 for int64, 0 for no segment_pos.
    """
    there = (at >= 0) & (at < T) & (words > 0)
    low = tl.load(pointer + at * words, mask=there, other=1)
    high = tl.load(pointer + at * words + (words - 1), mask=there, other=1)
    return low | high


@triton.jit
def resets(position, LENGTH: tl.constexpr):
    """One bit a step, set at resets; an int64, made of two words, where LENGTH is 64."""
    at = tl.arange(0, LENGTH)
    bit = (position == 0).to(tl.int32) << (at % 32)
    low = tl.sum(tl.where(at < 32, bit, 0), axis=0)
    if LENGTH <= 32:
        return low
    else:
        high = tl.sum(tl.where(at < 32, 0, bit), axis=0)
        return (high.to(tl.int64) << 32) | (low.to(tl.int64) & 0xFFFFFFFF)


@triton.jit
def _after(decay, write, cut, past_decay, past_write, past_cut):
    """The map of a run after that of its past."""
    return past_decay * decay, tl.where(cut != 0, write, tl.fma(decay, past_write, write)), past_cut | cut


@triton.jit
def _with_resets(d1, w1, c1, pd1, pw1, pc1, d2, w2, c2, pd2, pw2, pc2):
    """Two neighbouring runs as one: its map, and its map without its last row."""
    decay, write, cut = _after(d2, w2, c2, d1, w1, c1)
    past_decay, past_write, past_cut = _after(pd2, pw2, pc2, d1, w1, c1)
    return decay, write, cut, past_decay, past_write, past_cut


@triton.jit
def _without_resets(d1, w1, pd1, pw1, d2, w2, pd2, pw2):
    return d1 * d2, tl.fma(d2, w1, w2), d1 * pd2, tl.fma(pd2, w1, pw2)


@triton.jit
def scan(decay, write, cut, row, ROWS: tl.constexpr, PLAIN: tl.constexpr):
    """The maps up to each row, with it and without it; PLAIN where nothing is cut.

    Under the interpreter row by row: its scan takes 0.1 ms an element.
    """
    past_decay = tl.full(decay.shape, 1.0, tl.float32)
    past_write = tl.zeros(write.shape, tl.float32)
    past_cut = tl.zeros(cut.shape, tl.int32)
    if INTERPRETED:
        for k in tl.static_range(1, ROWS):
            last = row == k - 1
            d, w, c = _after(decay, write, cut, past_decay, past_write, past_cut)
            here = row == k
            past_decay = tl.where(here, tl.sum(tl.where(last, d, 0.0), axis=0)[None, :], past_decay)
            past_write = tl.where(here, tl.sum(tl.where(last, w, 0.0), axis=0)[None, :], past_write)
            past_cut = tl.where(here, tl.sum(tl.where(last, c, 0), axis=0)[None, :], past_cut)
        decay, write, cut = _after(decay, write, cut, past_decay, past_write, past_cut)
    elif PLAIN:
        decay, write, past_decay, past_write = tl.associative_scan(
            (decay, write, past_decay, past_write), 0, _without_resets
        )
    else:
        decay, write, cut, past_decay, past_write, past_cut = tl.associative_scan(
            (decay, write, cut, past_decay, past_write, past_cut), 0, _with_resets
        )
    return decay, write, cut, past_decay, past_write, past_cut


@triton.jit
def apply(decay, write, cut, h, PLAIN: tl.constexpr):
    """The state that a map makes of h."""
    out = tl.fma(decay, h, write)
    if not PLAIN:
        out = tl.where(cut != 0, write, out)
    return out


@triton.jit
def last_row(value, row, ROWS: tl.constexpr):
    """The last row's values in every row."""
    return tl.sum(tl.where(row == ROWS - 1, value, 0.0), axis=0)[None, :] + tl.zeros(value.shape, tl.float32)


@triton.jit
def run(xs, gates_x, gates_a, bits, left, rate, STEPS: tl.constexpr, PLAIN: tl.constexpr):
    """Tuples of decays and writes of a row's run up to each of its steps, from no past.

    `bits` are the row's resets, `left` the steps of it that exist; PLAIN: no resets, and every step exists.
    """
    decays = ()
    writes = ()
    decay = tl.full(rate.shape, 1.0, tl.float32)
    write = tl.zeros(rate.shape, tl.float32)
    for step in tl.static_range(STEPS):
        i, _, a, z = cell(gates_x[step].to(tl.float32), gates_a[step].to(tl.float32), rate)
        m = tl.sqrt(z)
        gated = i * xs[step].to(tl.float32)
        if step == 0:
            next_decay = a
            next_write = m * gated
        else:
            next_decay = decay * a
            next_write = tl.fma(a, write, m * gated)
        if not PLAIN:
            next_write = tl.where(((bits >> step) & 1) != 0, gated, next_write)
            # a step that does not exist changes nothing, not even where a_param is NaN
            next_decay = tl.where(step < left, next_decay, decay)
            next_write = tl.where(step < left, next_write, write)
        decay = next_decay
        write = next_write
        decays = decays + (decay,)
        writes = writes + (write,)
    return decays, writes


@triton.jit
def write_run(
    start,
    decays,
    writes,
    bits,
    left,
    inside,
    y_ptr,
    state_ptr,
    offset,
    stride,
    STEPS: tl.constexpr,
    SAVE: tl.constexpr,
    PLAIN: tl.constexpr,
):
    """Store the states of a row's run that starts at state `start`, and the one before every SAVE steps (0: none)."""
    h = start
    for step in tl.static_range(STEPS):
        mask = inside
        if not PLAIN:
            mask = inside & (step < left)
        if SAVE > 0 and step % SAVE == 0:
            tl.store(state_ptr + (step // SAVE) * stride, h, mask=mask)
        h = tl.fma(decays[step], start, writes[step])
        if not PLAIN:
            h = tl.where((bits << (31 - step)) != 0, writes[step], h)
        store(y_ptr + (offset + step * stride), h, mask)


@triton.jit
def _prepare(h, xs, gates_x, gates_a, bits, rate, slope, STEPS: tl.constexpr, PLAIN: tl.constexpr):
    """What each step of a run that starts at state h multiplies its cotangent by; slope = -8 softplus(a_param).

    Tuples: decays; of the cotangent g, factors to dx; of dx, to dgate_x; of the flow a g, to da_param and to dgate_a.
    """
    decays = ()
    to_dx = ()
    to_dgate_x = ()
    to_da_param = ()
    to_dgate_a = ()
    for step in tl.static_range(STEPS):
        i, r, a, z = cell(gates_x[step].to(tl.float32), gates_a[step].to(tl.float32), rate)
        m, slope_of_m = multiplier_and_slope(z)
        x = xs[step].to(tl.float32)
        gated = i * x
        # m moves with log(a) by -a^2 / max(m, 1 / 2000)
        dL = tl.fma(-gated, a * slope_of_m, h) * r
        dgate_a = dL * tl.fma(-slope, r, slope)
        dx = m * i
        h = tl.fma(a, h, m * gated)
        if not PLAIN:
            reset = ((bits >> step) & 1) != 0
            dL = tl.where(reset, 0.0, dL)
            dgate_a = tl.where(reset, 0.0, dgate_a)
            dx = tl.where(reset, i, dx)
            h = tl.where(reset, gated, h)
        decays = decays + (a,)
        to_dx = to_dx + (dx,)
        to_dgate_x = to_dgate_x + (tl.fma(-i, x, x),)
        to_da_param = to_da_param + (dL,)
        to_dgate_a = to_dgate_a + (dgate_a,)
    return decays, to_dx, to_dgate_x, to_da_param, to_dgate_a


@triton.jit
def _run_back(
    carry,
    da_param,
    h,
    xs,
    gates_x,
    gates_a,
    dys,
    bits,
    rate,
    slope,
    left,
    inside,
    dx_ptr,
    dgate_x_ptr,
    dgate_a_ptr,
    offset,
    stride,
    STEPS: tl.constexpr,
    PLAIN: tl.constexpr,
):
    """Store the gradients of a run that starts at state h, last step first; return the flow a g of its first step.

    And da_param with the run's part added. `carry` is the flow of the step after the run.
    """
    decays, to_dx, to_dgate_x, to_da_param, to_dgate_a = _prepare(
        h, xs, gates_x, gates_a, bits, rate, slope, STEPS, PLAIN
    )
    for back in tl.static_range(STEPS):
        mask = inside
        at = offset + (STEPS - 1 - back) * stride
        g = carry + dys[STEPS - 1 - back].to(tl.float32)
        dx = g * to_dx[STEPS - 1 - back]
        flow = decays[STEPS - 1 - back] * g
        if not PLAIN:
            flow = tl.where(((bits >> (STEPS - 1 - back)) & 1) != 0, 0.0, flow)
            here = (STEPS - 1 - back) < left
            mask = inside & here
        store(dx_ptr + at, dx, mask)
        store(dgate_x_ptr + at, dx * to_dgate_x[STEPS - 1 - back], mask)
        store(dgate_a_ptr + at, flow * to_dgate_a[STEPS - 1 - back], mask)
        if PLAIN:
            da_param = tl.fma(flow, to_da_param[STEPS - 1 - back], da_param)
            carry = flow
        else:
            # a step that does not exist adds nothing, not even where a_param is NaN
            da_param = tl.where(here, tl.fma(flow, to_da_param[STEPS - 1 - back], da_param), da_param)
            carry = tl.where(here, flow, carry)
    return carry, da_param


@triton.jit
def walk_back(
    carry,
    x_ptr,
    gate_x_ptr,
    gate_a_ptr,
    segment_pos_ptr,
    words,
    states_ptr,
    dy_ptr,
    dx_ptr,
    dgate_x_ptr,
    dgate_a_ptr,
    runs,
    left,
    d,
    width,
    inside,
    rate,
    slope,
    STEPS: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """Store the gradients of `runs` runs, last one first; return the flow a g of their first step and da_param's sum.

    `carry` is the flow of the step after them. Pointers are at the first step, `left` counts the steps from there on.
    AHEAD: load the next run before a run's arithmetic, for where few warps hide the wait; it takes their registers.
    """
    t = (runs - 1) * STEPS
    at = t.to(tl.int64) * width
    x_ptr += at
    gate_x_ptr += at
    gate_a_ptr += at
    dy_ptr += at
    dx_ptr += at
    dgate_x_ptr += at
    dgate_a_ptr += at
    states_ptr += (runs - 1).to(tl.int64) * width
    left -= t
    if AHEAD:
        xs, gates_x, gates_a = load_inputs(x_ptr, gate_x_ptr, gate_a_ptr, d, width, left, inside, STEPS)
        dys = load(dy_ptr, d, width, left, inside, STEPS)
        h = tl.load(states_ptr + d, mask=inside, other=0.0)
    steps = tl.arange(0, STEPS)
    position = positions(segment_pos_ptr, words, t + steps, t + left)
    da_param = tl.zeros(rate.shape, tl.float32)
    for k in range(0, runs):
        if not AHEAD:
            xs, gates_x, gates_a = load_inputs(x_ptr, gate_x_ptr, gate_a_ptr, d, width, left, inside, STEPS)
            dys = load(dy_ptr, d, width, left, inside, STEPS)
            h = tl.load(states_ptr + d, mask=inside, other=0.0)
        x_ptr -= STEPS * width
        gate_x_ptr -= STEPS * width
        gate_a_ptr -= STEPS * width
        dy_ptr -= STEPS * width
        states_ptr -= width
        if AHEAD:
            more = tl.where(k + 1 < runs, STEPS, 0)  # before the first run there may be no memory
            next_xs, next_gates_x, next_gates_a = load_inputs(
                x_ptr, gate_x_ptr, gate_a_ptr, d, width, more, inside, STEPS
            )
            next_h = tl.load(states_ptr + d, mask=inside & (more > 0), other=0.0)
            next_dys = load(dy_ptr, d, width, more, inside, STEPS)
        bits = resets(position, STEPS)
        t -= STEPS
        position = positions(segment_pos_ptr, words, t + steps, t + STEPS)
        if (bits == 0) & (left >= STEPS):
            carry, da_param = _run_back(
                carry,
                da_param,
                h,
                xs,
                gates_x,
                gates_a,
                dys,
                bits,
                rate,
                slope,
                left,
                inside,
                dx_ptr,
                dgate_x_ptr,
                dgate_a_ptr,
                d,
                width,
                STEPS,
                True,
            )
        else:
            carry, da_param = _run_back(
                carry,
                da_param,
                h,
                xs,
                gates_x,
                gates_a,
                dys,
                bits,
                rate,
                slope,
                left,
                inside,
                dx_ptr,
                dgate_x_ptr,
                dgate_a_ptr,
                d,
                width,
                STEPS,
                False,
            )
        dx_ptr -= STEPS * width
        dgate_x_ptr -= STEPS * width
        dgate_a_ptr -= STEPS * width
        left = STEPS
        if AHEAD:
            xs = next_xs
            gates_x = next_gates_x
            gates_a = next_gates_a
            dys = next_dys
            h = next_h
    return carry, da_param


@triton.jit
def map_back(gate_a_ptr, segment_pos_ptr, words, dy_ptr, runs, left, d, width, inside, rate, STEPS: tl.constexpr):
    """The map of `runs` runs, last one first, of the flow from after them; arguments as for `walk_back`."""
    t = (runs - 1) * STEPS
    at = t.to(tl.int64) * width
    gate_a_ptr += at
    dy_ptr += at
    left -= t
    gates_a = load(gate_a_ptr, d, width, left, inside, STEPS)
    dys = load(dy_ptr, d, width, left, inside, STEPS)
    steps = tl.arange(0, STEPS)
    position = positions(segment_pos_ptr, words, t + steps, t + left)
    decay = tl.full(rate.shape, 1.0, tl.float32)
    write = tl.zeros(rate.shape, tl.float32)
    cut = tl.zeros(rate.shape, tl.int32)
    for k in range(0, runs):
        gate_a_ptr -= STEPS * width
        dy_ptr -= STEPS * width
        more = tl.where(k + 1 < runs, STEPS, 0)
        next_gates_a = load(gate_a_ptr, d, width, more, inside, STEPS)
        next_dys = load(dy_ptr, d, width, more, inside, STEPS)
        bits = resets(position, STEPS)
        t -= STEPS
        position = positions(segment_pos_ptr, words, t + steps, t + STEPS)
        for back in tl.static_range(STEPS):
            a = tl.exp2(sigmoid(gates_a[STEPS - 1 - back].to(tl.float32)) * rate)
            here = (STEPS - 1 - back) < left
            flow = a * (write + dys[STEPS - 1 - back].to(tl.float32))
            flow = tl.where(((bits >> (STEPS - 1 - back)) & 1) != 0, 0.0, flow)
            write = tl.where(here, flow, write)
            decay = tl.where(here, a * decay, decay)
        cut = cut | bits
        left = STEPS
        gates_a = next_gates_a
        dys = next_dys
    return decay, write, cut
