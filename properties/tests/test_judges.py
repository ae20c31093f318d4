"""The judges in use: each draws its line where its source does, and the table counts what each rejected."""

import json

import numpy as np
import pytest

from oracle import Case, Result, solve
from properties.mutants import judges
from properties.mutants.judges import INPUTS, JUDGES, Row, cases, main, table, tried
from properties.mutants.plain import WRONG, right
from properties.strategies import Recipe


def off(case: Case, *, by: float = 0.0, times: float = 1.0) -> dict[str, bool]:
    """Who accepts y when it is off everywhere."""
    reference = solve(case)
    changed = Result(y=reference.y * times + by, h_last=reference.h_last)
    return {title: verdict(case, changed, reference) for title, verdict in JUDGES.items()}


SHORT = Recipe(rows=2, steps=5, width=3, decay="typical", cotangents="both").build()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_judge_accepts_the_ideal(dtype):
    """Else it would accuse whatever is honest."""
    case = Recipe(rows=2, steps=5, width=3, decay="typical", dtype=dtype).build()
    assert off(case) == dict.fromkeys(JUDGES, True)


@pytest.mark.parametrize(
    ("change", "accepting"),
    [
        ({"times": 1 + 1e-6}, {"assert_close", "mamba's allclose", "fla's RMS ratio"}),
        ({"times": 1 + 1e-4}, {"mamba's allclose", "fla's RMS ratio"}),
        ({"times": 1 + 4e-3}, {"mamba's allclose", "fla's RMS ratio"}),
        ({"by": 2.5e-3}, set()),
        ({"times": 2.0}, set()),
    ],
)
def test_each_judge_draws_its_line_where_its_source_does(change, accepting):
    """1.3e-6; 6e-4 and 2e-3; 0.005 in the root mean square."""
    ones = Case(*(np.full((1, 4, 2), value) for value in (0.25, 0.0, 0.0)), np.zeros(2), np.zeros((1, 4), np.int64))
    judged = off(ones, **change)
    assert {title for title, accepted in judged.items() if accepted and title != "oracle"} == accepting
    assert not judged["oracle"]


def test_a_nan_is_accepted_by_none():
    """Where the reference is finite."""
    assert off(SHORT, by=float("nan")) == dict.fromkeys(JUDGES, False)


def test_cases_are_finite_and_the_same_each_time():
    """Of both dtypes; a judge that knows no infinity is not asked for one."""
    for inputs in INPUTS:
        first, second = cases(inputs, 6), cases(inputs, 6)
        assert {case.dtype for case in first} == {"float32", "bfloat16"}
        for one, other in zip(first, second, strict=True):
            assert np.array_equal(one.x, other.x)
            assert np.isfinite(one.x).all()
            assert one.has_cotangents


def test_wrong_functions_are_rejected_and_the_right_one_is_not():
    """A fault that every judge sees, and none; what raises is rejected whatever the case."""
    of = [(case, solve(case)) for case in cases("realistic", 2)]
    assert tried("right", right, of)["oracle"] == 0
    assert all(tried("z_from_a", WRONG["z_from_a"], of).values())

    def raises(*_, **__):
        raise ValueError

    assert tried("raises", raises, of) == dict.fromkeys(JUDGES, 2)


def test_the_table_counts_functions():
    """Caught and accused are counted apart, once for a function."""
    nobody, all_ = dict.fromkeys(JUDGES, 0), dict.fromkeys(JUDGES, 3)
    rows = [
        Row("wrong", False, {"realistic": all_, "adversarial": all_}),
        Row("subtle", False, {"realistic": nobody, "adversarial": all_}),
        Row("honest", True, {"realistic": nobody, "adversarial": nobody}),
    ]
    columns = [list(column.cells) for column in table(rows, 3).columns]
    assert columns[0] == list(JUDGES)
    assert [column[0] for column in columns[1:]] == ["1 of 2", "0 of 1", "2 of 2", "0 of 1"]


def test_the_command_prints_and_writes(tmp_path, monkeypatch, capsys):
    """On two functions."""
    monkeypatch.setattr(judges, "WRONG", {"c_is_7_99": WRONG["c_is_7_99"]})
    monkeypatch.setattr(judges, "HONEST", {"right": right})
    path = tmp_path / "judges.json"
    assert main(["--cases", "2", "--json", str(path)]) == 0
    assert "1 of 1" in capsys.readouterr().out
    rows = json.loads(path.read_text())["rows"]
    assert [(row["name"], row["honest"]) for row in rows] == [("c_is_7_99", False), ("right", True)]
