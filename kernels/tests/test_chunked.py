"""The chunk-parallel kernels around the borders that only they have: of runs, chunks and groups."""

import functools

import numpy as np
import pytest
import torch

from kernels import chunked
from kernels.cell import INTERPRETED
from kernels.launch import CHANNELS
from kernels.reduce import PARTS, sum_rows
from kernels.subjects.chunked import subject
from kernels.subjects.run import Call, run
from oracle import OUTPUTS, Case, judge

DEVICE = "cpu" if INTERPRETED else "cuda"
CHUNK = 16
GROUP = chunked.GROUP * CHUNK
"""Steps of a group."""


def case(steps: int, resets=(), dtype="float32", rows=1, width=2, seed=0) -> Case:
    """Slow decays, so that what a border loses is missed; resets at the named steps."""
    rng = np.random.default_rng(seed)

    def normal(*shape, of=dtype):
        return torch.from_numpy(rng.standard_normal(shape)).to(getattr(torch, of)).float().numpy()

    segment_pos = np.ones((rows, steps), np.int32)
    segment_pos[:, list(resets)] = 0
    tokens = {name: normal(rows, steps, width) for name in ("x", "gate_x", "gate_a", "dy")}
    states = {name: normal(rows, width, of="float32") for name in ("h0", "dh_last")}
    return Case(dtype=dtype, a_param=normal(width, of="float32") - 6, segment_pos=segment_pos, **tokens, **states)


@functools.cache
def subject_of(algorithm: str, chunk_size: int = CHUNK):
    return subject(algorithm, chunk_size, f"{algorithm} {chunk_size}")


def assert_right(name: str, given: Case, chunk_size: int = CHUNK):
    used = subject_of(name, chunk_size)
    verdict = judge(given, run(used, given, Call(DEVICE, guarded=True)), profile=used.profile)
    assert verdict.holds, str(verdict)


@pytest.mark.parametrize(
    "steps", [1, CHUNK - 1, CHUNK, CHUNK + 1, GROUP - 1, GROUP, GROUP + 1, 2 * GROUP + CHUNK + 3, 3 * GROUP + 1]
)
def test_lengths_around_every_border(steps):
    """A last chunk of one step or short of one, a group of one chunk, states that pass three groups."""
    assert_right("chunked", case(steps))


@pytest.mark.parametrize(
    "resets", [[0], [CHUNK - 1], [CHUNK], [CHUNK - 1, CHUNK, CHUNK + 1], [GROUP], range(GROUP + 2)]
)
def test_resets_on_either_side_of_a_border(resets):
    """The first or the last step of a chunk, several in one, all of a group: a map that cuts off hands on no past."""
    assert_right("chunked", case(GROUP + CHUNK + 2, resets))


@pytest.mark.parametrize(("chunk_size", "dtype"), [(32, "bfloat16"), (64, "float32"), (64, "float16")])
@pytest.mark.parametrize("resets", [[3], [31, 32], [63]])
def test_every_chunk_size_is_right(chunk_size, dtype, resets):
    """Resets of 64 steps take two words: the first and the last bit of each."""
    assert_right("chunked", case(chunk_size + 5, [step for step in resets if step < chunk_size + 5], dtype), chunk_size)


@pytest.mark.parametrize(
    ("steps", "rows", "width"),
    [(1, 1, 1), (CHUNK + 1, 2, CHANNELS // 2 + 1), (GROUP, 1, 2), (GROUP + 1, 2, 2), (2 * GROUP + CHUNK + 3, 1, 2)],
)
def test_three_launches_give_the_bits_of_one(steps, rows, width):
    """The same maps, combined in the same order, whoever waits for them: right where one launch is."""
    resets = [step for step in (CHUNK, GROUP + 1) if step < steps]
    given = case(steps, resets, rows=rows, width=width)
    one, three = (run(subject_of(name), given, Call(DEVICE)) for name in ("chunked", "three-pass"))
    for name in OUTPUTS:
        assert np.array_equal(getattr(one, name), getattr(three, name)), name


def test_a_nan_reaches_what_follows_and_nothing_before():
    """It travels in the messages between chunks, and a reset in a later chunk ends it."""
    given = case(2 * GROUP, [GROUP + 3])
    x = given.x.copy()
    x[0, CHUNK + 1, 0] = np.nan
    y = run(subject_of("chunked"), given.replace(x=x), Call(DEVICE)).y[0, :, 0]
    assert np.array_equal(np.isnan(y), (np.arange(2 * GROUP) > CHUNK) & (np.arange(2 * GROUP) < GROUP + 3))


@pytest.mark.parametrize("number", [1, 2, PARTS, PARTS + 1, 3 * PARTS + 5])
def test_rows_are_summed_once_each(number):
    """Powers of two add without rounding: a row left out, or taken twice, shows."""
    rows = torch.ldexp(torch.ones(number, 3), torch.arange(number)[:, None] % 20).to(DEVICE)
    assert torch.equal(sum_rows(rows), rows.sum(0))
