"""The minimizer: what it keeps fails as before and is the least; what cannot be reduced is left alone, in time."""

import os
import re
import time
from dataclasses import replace

import numpy as np
import pytest

import fuzz.__main__ as command
from conftest import DEVICE
from fuzz.kept import Kept, read
from fuzz.minimize import Reducer, minimize_file, minimized
from fuzz.recorder import Recorder
from fuzz.reductions import LETTERS, absent, fewer, one_fewer, rank, simpler_params, simpler_values, without
from fuzz.replay import replay
from kernels.subjects import Subject, load
from kernels.subjects.run import NoAnswer
from oracle.tests.cases import ordinary
from properties.clauses import CONTRACT
from properties.mutants.plain import WRONG, right
from properties.strategies import Recipe
from properties.trial import Trial

CLAUSE_1 = "test_y_and_h_last_lie_within_their_bounds"
CLAUSE_2 = "test_every_gradient_lies_within_its_bound"
CLAUSE_3 = "test_any_split_with_the_state_handed_on_is_one_call"
LARGE = Recipe(rows=3, steps=37, width=5, resets="sparse", state="normal", decay="typical", gates="normal", seed=4)


def failing(fault: str, test: str = CLAUSE_1, recipe: Recipe = LARGE, **params) -> Kept:
    """A case that one of the plain wrong functions fails."""
    subject = f"properties.mutants.plain:{fault}"
    return Kept(CONTRACT[test].number, test, recipe.build(), params, subject, verdict="?", recipe=recipe)


# --- what it keeps


@pytest.mark.parametrize(
    ("fault", "test", "params", "shape"),
    [
        ("c_is_7_99", CLAUSE_1, {}, (1, 1, 1)),
        ("carry_of_another_row", CLAUSE_1, {}, (2, 9, 1)),
        ("carry_lost_at_second_chunk", CLAUSE_1, {}, (1, 9, 1)),
        ("neighbouring_channel_leaks", CLAUSE_1, {}, (1, 1, 2)),
        ("state_for_previous_state", CLAUSE_2, {}, (1, 1, 1)),
        ("carry_lost_at_second_chunk", CLAUSE_3, {"cuts": [3, 9, 12]}, (1, 9, 1)),
    ],
)
def test_the_kept_case_fails_and_is_the_least(fault, test, params, shape):
    """Fewer rows, steps or channels do not show the fault: that is what a reader learns from the case."""
    kept = failing(fault, test, **params)
    subject = load(kept.subject)
    smallest = minimized(kept, subject)
    assert smallest is not None
    assert smallest.case.shape == shape
    assert not replay(smallest).holds
    assert smallest.verdict == replay(smallest).text
    reducer = Reducer(CONTRACT[test], subject, "cpu", "accurate")
    assert not reducer.removable((smallest.case, smallest.params))


def test_what_does_not_matter_is_gone_from_the_case():
    """Resets, the state, cotangents and odd numbers that a fault does not need would mislead."""
    kept = failing("c_is_7_99", recipe=replace(LARGE, dtype="bfloat16"))
    smallest = minimized(kept, load(kept.subject))
    assert smallest is not None
    case = smallest.case
    assert (case.segment_pos, case.h0, case.dy, case.dh_last, case.dtype) == (None, None, None, None, "float32")
    assert case.x.ravel().tolist() == [1.0]
    assert case.gate_a.ravel().tolist() == [0.0]


def test_what_does_matter_stays():
    """A fault of resets keeps one, a fault of h0 keeps h0."""
    reset, state = failing("resets_ignored"), failing("h0_lost_in_long_sequences")
    by_reset, by_state = minimized(reset, load(reset.subject)), minimized(state, load(state.subject))
    assert by_reset is not None
    assert by_state is not None
    assert by_reset.case.reset.sum() == 1
    assert by_state.case.h0 is not None


def test_the_same_case_is_reduced_to_the_same():
    """Two people who minimize one find speak of one case."""
    kept = failing("future_leaks")
    first, second = (minimized(kept, load(kept.subject)) for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.file_name == second.file_name


def test_what_fails_sometimes_is_reduced_and_said_to():
    """A kernel with a race: every case is tried as often as the first one was."""
    calls = []

    def every_other_time(x, *gates, segment_pos=None, h0=None):
        calls.append(x.shape)
        y, h_last = right(x, *gates, segment_pos=segment_pos, h0=h0)
        return y + len(calls) % 2, h_last

    flaky = minimized(failing("c_is_7_99"), Subject(every_other_time, "flaky"))
    assert flaky is not None
    assert flaky.case.shape == (1, 1, 1)
    assert re.search(r"\nnot always: the first case failed \d of 3 times$", flaky.verdict)


# --- what it leaves alone


def test_what_holds_is_not_reduced():
    """A flaky failure may hold when it is asked again: then the one that was kept is the only witness."""
    kept = failing("c_is_7_99")
    assert minimized(kept, Subject(right, "right")) is None


def test_what_an_honest_loop_fails_too_is_not_reduced(monkeypatch):
    """After a fault that leaves a device unusable every case fails, the least one too, and means nothing."""

    def unusable(self, case, **call):
        raise AssertionError("the subject raised AcceleratorError")

    kept = failing("c_is_7_99")
    monkeypatch.setattr(Trial, "run", unusable)
    assert minimized(kept, load(kept.subject)) is None


def test_what_gives_no_answer_ends_the_search(monkeypatch):
    """A hang costs its time limit once: what was found before it is kept."""
    calls = []

    def hangs_when_small(x, gate_x, gate_a, a_param, *, segment_pos=None, h0=None):
        calls.append(x.shape)
        if x.shape[1] == 1:
            raise NoAnswer("no answer")
        y, h_last = right(x, gate_x, gate_a, a_param, segment_pos=segment_pos, h0=h0)
        return y + 1, h_last

    kept = failing("c_is_7_99")
    smallest = minimized(kept, Subject(hangs_when_small, "hangs"))
    assert sum(shape[1] == 1 for shape in calls) == 1
    assert smallest is None or smallest.case.shape[1] > 1


def test_the_search_ends_in_time_however_long_a_call_takes():
    """A call gets what is left of the time, and not a minute."""

    def slow(x, gate_x, gate_a, a_param, *, segment_pos=None, h0=None):
        time.sleep(0.05 if x.shape[0] == 3 else 30)
        y, h_last = right(x, gate_x, gate_a, a_param, segment_pos=segment_pos, h0=h0)
        return y + 1, h_last

    kept, start = failing("c_is_7_99"), time.monotonic()
    minimized(kept, Subject(slow, "slow"), seconds=1.0)
    assert time.monotonic() - start < 4


def test_a_case_is_not_reduced_to_one_that_is_not_promised():
    """A kernel for widths of 4 raises at a width of 1: that is no smaller case of its fault."""

    def wide(x, *gates, segment_pos=None, h0=None):
        assert x.shape[2] % 4 == 0
        y, h_last = right(x, *gates, segment_pos=segment_pos, h0=h0)
        return y + 1, h_last

    kept = failing("c_is_7_99", recipe=replace(LARGE, width=8))
    smallest = minimized(kept, Subject(wide, "wide", width_multiple=4))
    assert smallest is not None
    assert smallest.case.shape == (1, 1, 4)


# --- the file


def test_the_original_is_there_until_the_smaller_one_is(tmp_path, monkeypatch):
    """Whatever ends the reducer, a case is on disk; and in the end there is one, not two."""
    kept = failing("c_is_7_99")
    path = kept.write(tmp_path / kept.file_name)
    seen = []
    write = Kept.write

    def watched(self, target):
        seen.append(sorted(os.listdir(tmp_path)))
        return write(self, target)

    monkeypatch.setattr(Kept, "write", watched)
    target, smallest = minimize_file(path, kept, load(kept.subject))
    assert seen == [[path.name]]
    assert os.listdir(tmp_path) == [target.name] == [smallest.found_name]
    assert not replay(read(target)).holds


def test_an_interrupt_leaves_the_original(tmp_path, monkeypatch):
    """Ctrl-C in the reducer loses nothing."""

    def interrupted(*_):
        raise KeyboardInterrupt

    kept = failing("c_is_7_99")
    path = kept.write(tmp_path / kept.file_name)
    monkeypatch.setattr(Reducer, "_fails", interrupted)
    with pytest.raises(KeyboardInterrupt):
        minimize_file(path, kept, load(kept.subject))
    assert os.listdir(tmp_path) == [path.name]
    assert read(path).case.shape == kept.case.shape


def test_the_recorder_minimizes_what_it_kept(tmp_path):
    """The line under a failed test replays the smallest case, and the text above is that case's."""
    recorder, subject = Recorder(tmp_path), Subject(WRONG["c_is_7_99"], "c_is_7_99")
    clause, case = CONTRACT[CLAUSE_1], LARGE.build()
    recorder.begin(clause, Trial(subject), LARGE, case, {})
    recorder.failed(AssertionError("?"))
    assert recorder.minimize() is None  # not before it is kept
    recorder.keep()
    found = recorder.minimize()
    assert found is not None
    line, verdict = found
    (name,) = os.listdir(tmp_path)
    assert line.endswith(name)
    kept = read(tmp_path / name)
    assert (kept.case.shape, kept.verdict) == ((1, 1, 1), verdict)


# --- the command


def test_the_command_minimizes_a_file(tmp_path, capsys, request):
    """By hand, for a case that somebody sends."""
    kept = replace(failing("c_is_7_99"), device=request.config.stash[DEVICE])
    path = kept.write(tmp_path / kept.file_name)
    assert command.main(["minimize", str(path)]) == 0
    (name,) = os.listdir(tmp_path)
    said = capsys.readouterr().out
    assert said.startswith("1 rows, 1 steps, 1 channels: y: DEVIATES")
    assert said.endswith(f"{name}\n")


def test_the_command_says_that_a_case_does_not_fail(tmp_path, capsys):
    """Nothing is written where nothing fails."""
    kept = failing("c_is_7_99")
    path = kept.write(tmp_path / kept.file_name)
    assert command.main(["minimize", str(path), "--subject", "properties.mutants.plain:right"]) == 4
    assert "does not fail: holds" in capsys.readouterr().err
    assert os.listdir(tmp_path) == [path.name]


# --- reductions


def everything(reduction) -> list:
    """What a reduction proposes where nothing fails."""
    return list(reduction)


def test_every_reduction_proposes_something_simpler_and_ends():
    """Else the reducer would turn in circles."""
    case = ordinary(0)
    params = {"cuts": [1, 3], "step": 2, "zero": True, "layouts": [("x", "strided"), ("h0", "offset")]}
    for reduction in (absent, fewer, simpler_params, simpler_values):
        for simpler, _ in everything(reduction((case, params))):
            sizes = [simpler.shape[n] <= case.shape[n] for n in range(3)]
            assert all(sizes)
        whole = reduction((case, params))
        candidate, count = next(whole), 0
        while True:  # everything fails: it must come to the simplest and end
            count += 1
            try:
                candidate = whole.send(True)
            except StopIteration:
                break
        assert count < 2000
        assert candidate is not None


@pytest.mark.parametrize("shape", [(1, 0, 1), (0, 2, 1), (2, 3, 0), (0, 0, 0)], ids=str)
def test_nothing_can_be_taken_from_nothing(shape):
    """A fault that shows where T = 0 ends there, and not with the time."""
    rows, steps, width = shape
    case = Recipe(rows=rows, steps=steps, width=width).build()
    assert len(everything(fewer((case, {})))) < 20


@pytest.mark.parametrize("letter", LETTERS)
def test_params_follow_what_is_taken_away(letter):
    """A step, row or channel keeps pointing at what it pointed at."""
    case = Recipe(rows=4, steps=4, width=4).build()
    params = {
        "T": {"step": 3, "place": ("x", 3), "cuts": [1, 2, 4], "steps": 4},
        "B": {"row": 3, "rows": [0, 1, 3, 3]},
        "D": {"channel": 3, "channels": [0, 1, 3, 3]},
    }[letter]
    wanted = {
        "T": {"step": 2, "place": ("x", 2), "cuts": [1, 3], "steps": 3},
        "B": {"row": 2, "rows": [0, 2, 2]},
        "D": {"channel": 2, "channels": [0, 2, 2]},
    }[letter]
    smaller = without((case, params), letter, range(1, 2))
    assert smaller is not None
    assert smaller[1] == wanted
    kept = np.array([0, 2, 3])
    axis = {"B": 0, "T": 1, "D": 2}[letter]
    assert np.array_equal(smaller[0].x, case.x.take(kept, axis))


def test_a_reset_can_be_handed_on_to_the_next_step():
    """Else a step before which something is cut off could not be taken away."""
    case = Recipe(rows=1, steps=4).build().replace(segment_pos=np.array([[1, 0, 1, 1]]))
    for move, reset in ((False, [False, False, False]), (True, [False, True, False])):
        smaller = without((case, {}), "T", range(1, 2), move_resets=move)
        assert smaller is not None
        assert smaller[0].reset.tolist() == [reset]


def test_one_fewer_names_every_row_step_channel_and_size():
    """What it leaves out would not be checked."""
    case = Recipe(rows=2, steps=3, width=1).build()
    names = [what for what, _ in one_fewer((case, {"size": [2, 0, 1]}))]
    assert names == [
        "step 0",
        "step 1",
        "step 2",
        "row 0",
        "row 1",
        "channel 0",
        "row of the size",
        "channel of the size",
    ]


def test_simple_values_come_before_odd_ones():
    """0, -0, 1, -1, powers of two, short mantissas, long ones, infinity."""
    values = np.array([0.0, -0.0, 1.0, -1.0, 4.0, 1.5, 1 / 3, np.inf], np.float32)
    ranks = rank(values).tolist()
    assert ranks == sorted(set(ranks))
