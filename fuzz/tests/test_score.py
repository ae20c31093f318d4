"""The mutation score: what is counted, what survives, what takes its process down, and what the command says."""

import argparse
import json
import sys

import pytest

import fuzz.__main__ as command
from conftest import DEVICE
from fuzz.score import Row, _fill, _try, add_options, catalogue
from properties.mutants.chunked_faults import CHUNKED
from properties.mutants.patches import PATCHES
from properties.mutants.plain import WRONG
from properties.mutants.serial_faults import SERIAL

SETTINGS = {"device": "cpu", "examples": 5, "first": True, "minimize": False}


def test_the_catalogue_names_every_mutant():
    """At least 60 plain faults, and of our kernels 25 in the serial ones and 20 in those of chunks."""
    rows = catalogue("both", 5)
    assert {row.name for row in rows} == set(PATCHES) | set(WRONG)
    assert len(catalogue("plain", 1)) == len(WRONG) >= 60
    assert len(catalogue("triton", 1)) == len(PATCHES)
    assert len(SERIAL) >= 25
    assert len(CHUNKED) >= 20
    assert all(row.fault.endswith(".") for row in rows)


def test_the_quickest_test_of_each_seed_counts():
    """Two tests convict by seed 0, one by seed 1, none by seed 2."""
    row = Row("mutant", "plain", "It is wrong.", seeds=3)
    kill = {"test": "a", "clause": 2, "seconds": 1.0, "case": [1, 2, 3], "least": True}
    kills = [
        kill | {"seed": 0, "examples": 9},
        kill | {"seed": 0, "examples": 4, "clause": 7, "test": "b"},
        kill | {"seed": 1, "examples": 6, "seconds": 2.0},
    ]
    _fill(row, kills)
    assert (row.killed, row.clauses, row.tests, row.examples, row.seconds) == (2, [2, 7], ["a", "b"], 5, 1.5)
    assert (row.case, row.least) == ([1, 2, 3], True)


def test_the_command_writes_a_table_and_a_file(tmp_path, capfd):
    """Convicted by both seeds: exit code 0, and the case is the least."""
    path = tmp_path / "score.json"
    options = ["--only", "c_is_7_99", "--only", "carry_lost_at_second_chunk", "--seeds", "2", "--device", "cpu"]
    assert command.main(["mutants", *options, "--profile", "quick", "--minimize", "--json", str(path)]) == 0
    document = json.loads(path.read_text())
    rows = {row["name"]: row for row in document["rows"]}
    assert document["settings"]["seeds"] == 2
    assert (rows["c_is_7_99"]["killed"], rows["c_is_7_99"]["clauses"]) == (2, [1])
    assert (rows["carry_lost_at_second_chunk"]["case"], rows["carry_lost_at_second_chunk"]["least"]) == (
        [1, 9, 1],
        True,
    )
    assert "killed: 2 of 2" in capfd.readouterr().out


def test_a_survivor_is_named_and_ends_with_1(capfd, monkeypatch):
    """It is a property or a strategy that is missing."""
    monkeypatch.setattr("fuzz.score._try", lambda rows, settings: rows)
    assert command.main(["mutants", "--only", "nan_in_h0_is_zero", "--device", "cpu"]) == 1
    assert "SURVIVES 0/1: nan_in_h0_is_zero: NaN in h0 counts as zero." in capfd.readouterr().out


def test_what_cannot_be_seen_here_is_no_success(capsys, monkeypatch):
    """0 of 0 would pass."""
    rows = [Row("of_a_gpu", "triton", "A race.", seeds=1, shows="gpu")]
    monkeypatch.setattr("fuzz.score.catalogue", lambda kind, seeds: rows)
    assert command.main(["mutants", "--only", "of_a_gpu", "--device", "cpu"]) == 3
    assert "nothing was tried: what was asked for cannot be seen on cpu" in capsys.readouterr().out


def test_what_takes_its_process_down_is_convicted_of_it(monkeypatch):
    """By the test that was running; and one that cannot be imported is an error and no kill."""
    crash = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    said = {"what": "trying", "name": "crashes", "seed": 0, "clause": 6, "test": "t"}
    for code, killed, error in ((crash, 1, False), ("raise SystemExit('no such patch')", 0, True)):
        script = f"import json; print(json.dumps({said!r}), flush=True); {code}"
        monkeypatch.setattr("fuzz.score._command", lambda request, script=script: [sys.executable, "-c", script])
        row = Row("crashes", "triton", "It crashes.", seeds=1)
        _try([row], SETTINGS)
        assert (row.killed, bool(row.error)) == (killed, error)
        assert row.clauses == ([6] if killed else [])


def test_a_patched_kernel_is_tried_in_a_process_of_its_own(request):
    """From the name to the row."""
    row = Row("c_is_7_999", "triton", "C = 7.999 instead of 8.", seeds=1)
    _try([row], SETTINGS | {"device": request.config.stash[DEVICE]})
    assert (row.killed, row.clauses, row.error) == (1, [1], None)


def test_the_options_can_be_read():
    """argparse fails late on a % in a help text."""
    parser = argparse.ArgumentParser()
    add_options(parser)
    assert parser.parse_args([]).profile == "default"
    assert "--minimize" in parser.format_help()
    with pytest.raises(SystemExit):
        parser.parse_args(["--kind", "other"])
