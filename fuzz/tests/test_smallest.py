"""Every wrong plain function is convicted, by a case of a few numbers: measured over all of them.

The clause's test that convicts each, according to the committed score (fuzz/scores/plain.json), is tried first.
"""

import json

import pytest

from fuzz.kept import ROOT
from fuzz.minimize import Reducer
from kernels.subjects import Subject
from properties.mutants.kill import kills
from properties.mutants.plain import CHUNK, WRONG

SCORE = ROOT / "fuzz" / "scores" / "plain.json"
ROWS = {row["name"]: row for row in json.loads(SCORE.read_text())["rows"]}
LARGEST = (2, 4, 2)
"""B, T and D that any fault can be shown in, but for those below."""
AT_BORDERS = {
    "partial_chunk_is_zero": CHUNK + 1,
    "carry_lost_at_second_chunk": CHUNK + 1,
    "carry_lost_at_fifth_chunk": 4 * CHUNK + 1,
    "carry_of_another_row": CHUNK + 1,
    "carry_in_bf16": CHUNK + 1,
    "h0_lost_in_long_sequences": CHUNK + 1,
    "reset_at_chunk_start_keeps_carry": CHUNK + 1,
    "whole_chunks_end_early": CHUNK,
    "carry_lost_in_second_tile_of_channels": 65,
    "carry_lost_at_264": 265,
    "adjoint_carry_lost_in_last_channels": CHUNK + 1,
    "adjoint_carry_lost_in_second_tile_of_channels": CHUNK + 1,
    "da_param_of_600_tokens": CHUNK + 1,
}
"""Steps up to the border, and the one behind it, where a fault sits at one."""
AT_WIDTHS = {
    "last_odd_channel_borrows_decay": 3,
    "last_vector_of_an_odd_number_is_zero": 24,
    "carry_lost_in_second_tile_of_channels": 65,
    "adjoint_carry_lost_in_last_channels": 67,
    "adjoint_carry_lost_in_second_tile_of_channels": 129,
}
"""The least odd width that has a neighbour, the least odd number of vectors, and the channel behind a border."""
AT_ROWS = {"da_param_of_16_rows": 17, "da_param_of_600_tokens": 67}
"""The row behind a border; as many rows of 9 tokens are the first that have more than 600."""

REPEATED = "test_a_call_repeated_after_others_gives_the_same_bits"
ALTERNATING = {"last_bit_varies": REPEATED, "last_bit_of_da_param_varies": REPEATED}
"""Faults of every other call: another test sees them or not, as the calls before it, anybody's, were odd or even."""


def least(name: str) -> tuple[int, int, int]:
    """What B, T and D of its case may be at most."""
    rows, steps, width = LARGEST
    return AT_ROWS.get(name, rows), AT_BORDERS.get(name, steps), AT_WIDTHS.get(name, width)


def test_the_committed_score_is_of_all_and_names_a_case_for_each():
    """A new fault belongs into the table: `python -m fuzz mutants --kind plain --minimize --json FILE`."""
    assert set(ROWS) == set(WRONG)
    for name, row in ROWS.items():
        assert (row["killed"], row["least"], row["error"]) == (row["seeds"], True, None), name
        assert all(size <= most for size, most in zip(row["case"], least(name), strict=True)), (name, row["case"])


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_function_is_convicted_by_the_least_case(name):
    """As many examples a clause as a run has by default find each fault; it is one that kernels somewhere have had.

    At most 2 rows, 4 steps and 2 channels, or up to the border; with one fewer of anything it passes; in 30 s.
    """
    subject = Subject(WRONG[name], name)
    test = ALTERNATING.get(name, ROWS[name]["tests"][0])
    kill = next(kills(subject, seed=1, examples=50, first=test), None)
    assert kill is not None, WRONG[name].__doc__
    assert kill.case is not None
    reducer = Reducer(kill.clause, subject, "cpu", "accurate")
    reduced = reducer.reduce((kill.case, kill.params))
    case, params = (kill.case, kill.params) if reduced is None else reduced[0]
    assert all(size <= most for size, most in zip(case.shape, least(name), strict=True)), case.shape
    assert all(size <= most for size, most in zip(params.get("size", ()), least(name), strict=False)), params
    assert not reducer.removable((case, params))
