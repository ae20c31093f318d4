"""Every command ends one mistake with one code and one sentence, and where nothing was judged none with success."""

import subprocess
import sys
from pathlib import Path

import pytest

import fuzz.__main__ as fuzzing
from fuzz.kept import Kept
from kernels.bench import __main__ as bench
from kernels.subjects import Unavailable
from oracle.tests.cases import ordinary
from properties import command_line, conformance
from properties.clauses import CONTRACT
from properties.command_line import CANNOT_RUN, CLAUSES, FAILED, HELD, NOTHING_JUDGED, USAGE, WrongUsage
from properties.conformance import Finding

ROOT = Path(__file__).parents[2]
CLAUSE_1 = "test_y_and_h_last_lie_within_their_bounds"


@pytest.fixture
def kept(tmp_path) -> str:
    case = Kept(1, CLAUSE_1, ordinary(0), {}, "eager")
    return str(case.write(tmp_path / "kept.json"))


def code(main, *arguments: str):
    """What a command ends with, by argparse or by itself."""
    try:
        return main(list(arguments))
    except SystemExit as end:
        return end.code


def test_the_codes_differ_and_wrong_usage_is_argparses():
    """Whoever scripts a command tells them apart."""
    codes = [HELD, FAILED, USAGE, NOTHING_JUDGED, CANNOT_RUN]
    assert codes == [0, 1, 2, 3, 4]
    assert (bench.NOTHING_TIMED, bench.CANNOT_RUN) == (NOTHING_JUDGED, CANNOT_RUN)
    assert pytest.ExitCode.USAGE_ERROR == 4


def test_the_numbers_of_clauses_are_the_contracts():
    """An option is read before the contract can be imported."""
    assert {clause.number for clause in CONTRACT.values()} == set(CLAUSES)


MATRIX = conformance.main


@pytest.mark.parametrize(
    ("main", "arguments", "text"),
    [
        (fuzzing.main, ["replay", "KEPT", "--subject", "nobody"], "--subject: no subject is called 'nobody'"),
        (fuzzing.main, ["minimize", "KEPT", "--subject", "nobody"], "--subject: no subject is called 'nobody'"),
        (fuzzing.main, ["minimize", "KEPT", "--seconds", "0"], "--seconds: must be a positive number; got '0'"),
        (fuzzing.main, ["run", "--minutes", "1", "--subject", "nobody"], "--subject: no subject is called 'nobody'"),
        (fuzzing.main, ["run", "--minutes", "0"], "--minutes: must be a positive number; got '0'"),
        (fuzzing.main, ["run", "--minutes", "soon"], "--minutes: must be a positive number; got 'soon'"),
        (fuzzing.main, ["run", "--minutes", "1", "--workers", "0"], "--workers: must be a whole number of at least 1"),
        (fuzzing.main, ["run", "--minutes", "1", "--clauses", "1,99"], "--clauses: must be among 1 to 15; got 99"),
        (fuzzing.main, ["run", "--minutes", "1", "--clauses", ""], "--clauses: must be numbers of clauses, as in"),
        (fuzzing.main, ["mutants", "--seeds", "0"], "--seeds: must be a whole number of at least 1; got '0'"),
        (fuzzing.main, ["mutants", "--workers", "0"], "--workers: must be a whole number of at least 1; got '0'"),
        (fuzzing.main, ["mutants", "--only", "c_is_8"], "--only: no mutant is called c_is_8"),
        (MATRIX, ["--subject", "nobody"], "--subject: no subject is called 'nobody'"),
        (MATRIX, ["--require", "nobody"], "no subject is called 'nobody'"),
        (MATRIX, ["--clauses", "99"], "--clauses: must be among 1 to 15; got 99"),
        (MATRIX, ["--clauses", ""], "--clauses: must be numbers of clauses, as in 1,2,13; got ''"),
        (MATRIX, ["--profile", "slow"], "--profile: invalid choice: 'slow'"),
        (bench.main, ["--subject", "nobody"], "no subject is called 'nobody'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_ends_with_2_and_a_sentence(main, arguments, text, kept, capsys):
    """Before anything is tried; the sentence has the option, the rule and what came."""
    assert code(main, *(kept if word == "KEPT" else word for word in arguments)) == USAGE
    printed = capsys.readouterr()
    assert text in printed.err
    assert printed.out == ""


def test_what_is_not_here_ends_with_4(monkeypatch, capsys, kept):
    """Options that are right somewhere else: a checkout, a device."""

    def absent(name):
        raise Unavailable("fattori needs a checkout")

    monkeypatch.setattr("kernels.subjects.load", absent)
    assert code(fuzzing.main, "run", "--minutes", "1", "--subject", "fattori") == CANNOT_RUN
    assert code(fuzzing.main, "replay", kept, "--subject", "fattori") == CANNOT_RUN
    assert code(conformance.main, "--subject", "fattori") == CANNOT_RUN
    monkeypatch.setattr("properties.device.available", lambda device: device == "cpu")
    assert code(fuzzing.main, "run", "--minutes", "1", "--device", "cuda") == CANNOT_RUN
    assert code(conformance.main, "--device", "cuda") == CANNOT_RUN
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("outcomes", "ends"),
    [
        (["holds", "not supported"], HELD),
        (["deviates", "holds"], FAILED),
        (["not supported", "NOT COMPARABLE"], NOTHING_JUDGED),
        ([], NOTHING_JUDGED),
    ],
)
def test_the_matrix_ends_with_what_was_judged(monkeypatch, capsys, outcomes, ends):
    """An empty table, or one of dots, is no success."""
    found = [Finding(9, f"test_{n}", outcome, "accurate") for n, outcome in enumerate(outcomes)]
    monkeypatch.setattr(conformance, "_run", lambda name, grade, extra, progress: found)
    assert conformance.main(["--subject", "eager"]) == ends
    assert ("nothing was judged" in capsys.readouterr().out) == (ends == NOTHING_JUDGED)


def test_the_matrix_without_what_was_not_asked_for_is_a_success(monkeypatch, capsys):
    """By default every built-in subject is judged that is here; one that is named must be."""
    here = command_line.subject

    def one(name):
        if name != "eager":
            raise Unavailable(f"{name} needs a package")
        return here(name)

    monkeypatch.setattr(command_line, "subject", one)
    monkeypatch.setattr(conformance, "_run", lambda *_: [Finding(9, "test", "holds", "accurate")])
    assert conformance.main([]) == HELD
    assert conformance.main(["--require", "fattori"]) == CANNOT_RUN
    assert conformance.main(["--subject", "eager", "--subject", "fattori"]) == CANNOT_RUN
    assert "fattori not run: fattori needs a package" in capsys.readouterr().out


def test_help_says_what_a_command_is_for_and_how_it_ends(capsys):
    """And which values an option takes."""
    assert code(conformance.main, "--help") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Draw the conformance matrix" in said
    assert "{quick,default,thorough}" in said
    assert "Exit code: 0;" in said


def test_numbers_and_clauses_are_read():
    """What is right is taken as it is."""
    assert command_line.clauses("13,1, 2,1") == [1, 2, 13]
    assert (command_line.count("3"), command_line.duration("0.5")) == (3, 0.5)
    for read, text in ((command_line.clauses, "0"), (command_line.count, "-1"), (command_line.duration, "nan")):
        with pytest.raises(WrongUsage):
            read(text)


def test_reading_options_imports_no_triton():
    """A device must be chosen before it is imported, or the interpreter is not switched on."""
    code = "import sys, properties.command_line; sys.exit('triton' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
