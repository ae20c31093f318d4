"""Campaigns: a planted fault is found, minimized and told once; neither a death nor an interrupt loses a case."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fuzz.__main__ as command
from fuzz.campaign import Campaign, Find, State, kind_of, resume
from fuzz.kept import ROOT, Kept, KeptError, read
from oracle.tests.cases import ordinary
from properties.command_line import WrongUsage
from properties.strategies import Recipe

CLAUSE_1 = "test_y_and_h_last_lie_within_their_bounds"
CLAUSE_6 = "test_later_tokens_never_change_earlier_outputs"
SUBJECTS = """
import os, signal, time
from properties.mutants.plain import right


def planted(x, *gates, segment_pos=None, h0=None):
    y, h_last = right(x, *gates, segment_pos=segment_pos, h0=h0)
    return (y * 1.01 if x.shape[1] > 5 else y), h_last


def crashes(x, *gates, segment_pos=None, h0=None):
    if x.shape[1] > 20:
        os.kill(os.getpid(), signal.SIGSEGV)
    return right(x, *gates, segment_pos=segment_pos, h0=h0)


def hangs(x, *gates, segment_pos=None, h0=None):
    if x.shape[1] > 20:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        time.sleep(1000)
    return right(x, *gates, segment_pos=segment_pos, h0=h0)
"""


@pytest.fixture
def place(tmp_path):
    """A folder with the subjects, and one for the campaign."""
    (tmp_path / "planted_subjects.py").write_text(SUBJECTS)
    return tmp_path


def campaign_on(place: Path, name: str, clauses=((1, CLAUSE_1),), workers: int = 1) -> Campaign:
    subject = f"{place / 'planted_subjects.py'}:{name}"
    return Campaign(State(subject, "cpu", "accurate", seed=3), place / "found", list(clauses), workers)


def until(condition, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


# --- what it finds


def test_a_planted_fault_is_found_minimized_and_told_once(place):
    """Two workers meet it again and again: one case, the least, and the search goes on around it."""
    campaign = campaign_on(place, "planted", workers=2)
    campaign.begin()
    until(lambda: campaign.state.finds and campaign.state.repeated > 5)
    campaign.end()
    (find,) = [find for find in campaign.state.finds if find.kind == "y deviates"]
    assert (find.clause, find.test) == (1, CLAUSE_1)
    kept = read(place / "found" / find.file)
    assert kept.case.shape == (1, 6, 1)
    assert "y: DEVIATES" in kept.verdict
    assert len({find.key for find in campaign.state.finds}) == len(campaign.state.finds)
    files = sorted(path.name for path in (place / "found").glob("*.json"))
    assert files == sorted({"campaign.json", *(find.file for find in campaign.state.finds)})
    assert campaign.state.deaths == 0
    assert 0 < campaign.state.worst[CLAUSE_1] <= 1
    assert not read(place / "found" / "worst" / f"{CLAUSE_1}.json").verdict.startswith("y: DEVIATES")


def test_the_command_finds_it_and_goes_on_where_it_was(place):
    """The lines at the end are copied and run; a second call adds to the first."""

    def run() -> str:
        line = f"run --minutes 0.12 --subject {place}/planted_subjects.py:planted --workers 1 --clauses 1 --device cpu"
        done = subprocess.run(
            [sys.executable, "-m", "fuzz", *line.split(), "--into", str(place / "found")],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (1, "")
        return done.stdout

    first = run()
    (replay,) = set(re.findall(r"python -m (fuzz replay \S+/y-and-h-last\S+)", first))
    assert command.main(replay.split()[1:]) == 1
    state = State.read(place / "found")
    assert state is not None
    second = run()
    assert f"going on after {state.tried} examples" in " ".join(second.split())
    after = State.read(place / "found")
    assert after is not None
    assert after.tried > state.tried
    assert after.unit > state.unit
    assert [find.key for find in after.finds][: len(state.finds)] == [find.key for find in state.finds]


# --- what it survives


def test_a_segmentation_fault_leaves_its_case_and_the_campaign_goes_on(place):
    """In a fresh worker, with what comes next."""
    campaign = campaign_on(place, "crashes")
    campaign.begin()
    until(lambda: campaign.state.deaths >= 1 and campaign.state.examples.get(CLAUSE_1, 0) > 0, 90)
    first = campaign.state.unit
    until(lambda: campaign.state.unit > first or campaign.state.deaths >= 2, 90)
    campaign.end()
    (find,) = campaign.state.finds
    assert find.kind == "died of SIGSEGV"
    kept = read(place / "found" / find.file)
    assert kept.case.shape[1] > 20
    assert kept.verdict == "the process ended with SIGSEGV"
    assert not list((place / "found").glob("running-*"))


def test_a_hang_is_ended_and_leaves_its_case(place, monkeypatch):
    """Where no alarm reaches it."""
    monkeypatch.setattr("fuzz.campaign.HANG", 8.0)
    campaign = campaign_on(place, "hangs")
    campaign.begin()
    until(lambda: campaign.state.finds, 60)
    campaign.end(patience=0)
    find = campaign.state.finds[0]
    assert find.kind == "died of SIGKILL"
    assert read(place / "found" / find.file).case.shape[1] > 20


def test_a_killed_worker_is_replaced(place):
    """By whatever killed it."""
    campaign = campaign_on(place, "right_here", clauses=[(6, CLAUSE_6)])
    campaign.state.subject = "properties.mutants.plain:right"
    campaign.begin()
    until(lambda: campaign.state.tried > 0)
    process = campaign.seats[0].process
    assert process is not None
    process.send_signal(signal.SIGTERM)
    tried = campaign.state.tried
    until(lambda: campaign.state.tried > tried + 20)
    campaign.end()
    assert campaign.state.deaths == 1


def test_ctrl_c_ends_with_the_summary_and_loses_nothing(place):
    """The state is written, the find is kept, and no worker is left."""
    line = f"run --minutes 5 --subject {place}/planted_subjects.py:planted --workers 1 --clauses 1 --device cpu"
    process = subprocess.Popen(
        [sys.executable, "-m", "fuzz", *line.split(), "--into", str(place / "found")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: list((place / "found").glob("y-and-h-last*.json")))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (1, "")
    assert "interrupted; the same command goes on" in out
    state = State.read(place / "found")
    assert state is not None
    assert state.finds[0].kind == "y deviates"
    assert not list((place / "found").glob("running-*"))


def test_what_an_interrupted_worker_left_as_failing_is_kept(place):
    """It was on disk, under the name of its process."""
    campaign = campaign_on(place, "planted")
    folder = place / "found"
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    kept = Kept(1, CLAUSE_1, ordinary(0), {}, "s", verdict="y: DEVIATES")
    kept.write(folder / f"failing-{ended.pid}.json")
    kept.write(folder / f"running-{ended.pid}.json")
    kept.write(folder / f"running-{os.getpid()}.json")  # of one that lives
    campaign.sweep()
    assert sorted(os.listdir(folder)) == sorted([kept.found_name, f"running-{os.getpid()}.json"])
    assert [(find.kind, find.file) for find in campaign.state.finds] == [("y deviates", kept.found_name)]


# --- the state


def test_a_second_find_of_the_same_kind_is_no_find(place):
    """Its file goes, unless it is the first one's."""
    campaign = campaign_on(place, "planted")
    for steps in (2, 3):
        kept = Kept(1, CLAUSE_1, Recipe(steps=steps).build(), {}, "s", verdict="y: DEVIATES")
        kept.write(place / "found" / kept.file_name)
        campaign.note(Find(1, CLAUSE_1, "y deviates", kept.file_name, kept.verdict))
        campaign.note(Find(1, CLAUSE_1, "y deviates", kept.file_name, kept.verdict))
    assert len(campaign.state.finds) == len(os.listdir(place / "found")) == 1
    campaign.note(Find(1, CLAUSE_1, "h_last deviates", "", "?"))
    assert len(campaign.state.finds) == 2


def test_the_state_survives_the_round_trip(tmp_path):
    """Else a campaign would begin anew."""
    state = State("s", "cpu", "accurate", 7, unit=5, examples={"a": 3}, finds=[Find(1, "a", "k", "f", "v")])
    state.write(tmp_path)
    assert State.read(tmp_path) == state
    assert os.listdir(tmp_path) == ["campaign.json"]
    assert State.read(tmp_path / "nowhere") is None
    (tmp_path / "campaign.json").write_text(json.dumps({"other": 1}))
    with pytest.raises(KeptError, match=r"campaign\.json is no campaign's state"):
        State.read(tmp_path)


@pytest.mark.parametrize("change", [{"subject": "t"}, {"device": "cuda"}, {"grade": "canonical"}, {"seed": 8}])
def test_a_folder_of_another_campaign_is_refused(tmp_path, change):
    """Its counts and finds would be mixed with others."""
    given = {"subject": "s", "device": "cpu", "grade": "accurate"}
    State(**given, seed=7).write(tmp_path)
    assert resume(tmp_path, **given, seed=None).seed == 7
    with pytest.raises(WrongUsage, match=r"^--into: .* holds a campaign with"):
        resume(tmp_path, **{**given, "seed": None} | change)


def test_units_differ_and_come_again_in_turn(place):
    """Every test gets its turn with another seed; what is always tried is tried once."""
    campaign = campaign_on(place, "planted", clauses=[(1, "a"), (2, "b")])
    units = [campaign.next_unit() for _ in range(4)]
    assert [unit["test"] for unit in units] == ["a", "b", "a", "b"]
    assert [unit["always"] for unit in units] == [True, True, False, False]
    assert len({unit["seed"] for unit in units}) == 4
    again = campaign_on(place, "planted", clauses=[(1, "a"), (2, "b")])
    assert [again.next_unit() for _ in range(4)] == units


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("y: holds, worst ratio 1\nh_last: DEVIATES, worst ratio 3", "h_last deviates"),
        ("the subject raised ValueError: no 3", "raised ValueError"),
        ("the subject's backward raised KeyError: 4", "raised KeyError"),
        ("y is not the same bit for bit: tokens from t = 4 on", "y is not the same bit for bit: tokens from t"),
        ("mine gave no answer within 60 s", "mine gave no answer within"),
        ("", ""),
    ],
)
def test_failures_that_differ_in_numbers_only_are_of_one_kind(text, kind):
    """What a campaign tells once."""
    assert kind_of(text) == kind


def test_a_campaign_that_tried_nothing_is_no_success(place, capsys, monkeypatch):
    """Its time was over before a worker had started, or it promises nothing of the clauses."""
    into = ["--into", str(place / "found"), "--workers", "1"]
    assert command.main(["run", "--minutes", "1e-9", "--subject", "eager", "--device", "cpu", *into]) == 3
    assert "nothing was tried: give more --minutes" in capsys.readouterr().out
    (place / "planted_subjects.py").write_text(
        "from kernels.subjects import Subject\nfrom properties.mutants.plain import right\n"
        "SUBJECT = Subject(right, 'f', resets=False)\n"
    )
    named = ["--subject", f"{place / 'planted_subjects.py'}:SUBJECT", "--clauses", "9", "--into", str(place / "other")]
    assert command.main(["run", "--minutes", "1", *named]) == 3
    assert "promises nothing of clauses 9" in capsys.readouterr().out
