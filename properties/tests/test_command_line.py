"""The command line, as its users run it: exit codes, the lines people act on, and replays."""

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fuzz.kept import FOUND

ROOT = Path(__file__).parents[2]
CLAUSE_1 = "test_y_and_h_last_lie_within_their_bounds"
SUBJECTS = f"""
from kernels.subjects import Deviation, Subject
from properties.mutants.plain import c_is_7_99, right

KNOWN = (Deviation("{CLAUSE_1}", "C is 7.99"),)
def broken(x, gate_x, gate_a, a_param, *, segment_pos=None, h0=None):
    return x.reshape(7, 7, 7, 7), h0


MADE_OF = Subject(right, "made of", versions=lambda: {{"hawk": "1.2"}})
NO_RESETS = Subject(right, "no resets", resets=False)
STILL_WRONG = Subject(c_is_7_99, "still wrong", deviations=KNOWN)
RIGHT_BY_NOW = Subject(right, "right by now", deviations=KNOWN)
"""


@pytest.fixture
def house(tmp_path):
    """Runs commands in the repository's root with a Hypothesis database of its own; cleans up what they found."""
    path = tmp_path / "mine.py"
    path.write_text(SUBJECTS)
    house = House(path)
    yield house
    for found in house.found():
        found.unlink()


class House:
    """A place to run the suite's commands from."""

    def __init__(self, subjects: Path):
        self.subjects = subjects
        self.runs = 0

    def named(self, name: str) -> str:
        return f"{self.subjects}:{name}"

    def found(self) -> list[Path]:
        """Cases kept from subjects of this house."""
        kept = []
        for path in FOUND.glob("*.json"):
            with contextlib.suppress(FileNotFoundError):  # another process's running example
                if str(self.subjects) in path.read_text():
                    kept.append(path)
        return kept

    def run(self, *command: str) -> subprocess.CompletedProcess:
        # not what the outer pytest set, and no GPU: the same run everywhere
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        self.runs += 1
        database = str(self.subjects.parent / f"database {self.runs}")
        environment |= {"HYPOTHESIS_STORAGE_DIRECTORY": database, "CUDA_VISIBLE_DEVICES": ""}
        return subprocess.run(
            [sys.executable, "-m", *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )

    def judge(self, name: str, *options: str, clauses: str = "1") -> subprocess.CompletedProcess:
        """pytest on a subject of `SUBJECTS`, with few examples."""
        chosen = ["--subject", self.named(name), "--clauses", clauses, "--profile", "quick"]
        return self.run("pytest", "properties", "-p", "no:cacheprovider", *chosen, *options)


def printed_seed(done: subprocess.CompletedProcess) -> str:
    (seed,) = re.findall(r"the same examples again: (--hypothesis-seed=\d+)\n", done.stdout)
    return seed


def test_a_right_subject_exits_with_0_and_a_seed_repeats_its_examples(house):
    """The seed that is printed reruns what was run, in workers too: the worst ratio, of 16 digits, is the same."""
    report = house.subjects.parent / "report.xml"

    def ratio(*options: str) -> tuple[str, str]:
        done = house.judge("right", f"--junitxml={report}", *options)
        assert done.returncode == 0, done.stdout
        assert "\nclauses: 1 held\n" in done.stdout
        properties = {p.attrib["name"]: p.attrib["value"] for p in ElementTree.parse(report).iter("property")}
        assert (properties["clause"], properties["subject"]) == ("1", house.named("right"))
        assert (properties["grade"], properties["examples"]) == ("accurate", "10")
        return properties["ratio"], printed_seed(done)

    first, seed = ratio()
    assert ratio(seed, "-n", "2") == (first, seed)
    other, _ = ratio("--hypothesis-seed=12345")
    assert other != first
    assert not house.found(), "nothing failed: nothing may be left behind"


def test_a_wrong_subject_exits_with_1_and_a_line_that_replays_it(house):
    """The line is copied and run: the same failure, until the subject is mended."""
    done = house.judge("c_is_7_99")
    assert done.returncode == 1, done.stdout
    assert "\nclauses: 1 failed\n" in done.stdout
    assert f"subject {house.named('c_is_7_99')}, accurate grade: y: DEVIATES" in done.stdout
    (line,) = set(re.findall(r"replay: python -m (.*)", done.stdout))
    command = line.split()
    file = ROOT / command[2]
    kept = json.loads(file.read_text())
    assert (kept["clause"], kept["test"], kept["subject"]) == (1, CLAUSE_1, house.named("c_is_7_99"))

    again = house.run(*command)
    assert (again.returncode, again.stderr) == (1, "")
    assert f"clause 1, {CLAUSE_1}\nsubject {house.named('c_is_7_99')}, accurate grade, cpu\ny: DEVIATES" in again.stdout
    assert "\n".join(kept["verdict"]) in again.stdout

    mended = house.run(*command, "--subject", house.named("right"))
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert re.search(r"\nholds, worst ratio \S+\n$", mended.stdout)


def test_a_subject_that_raises_is_shown_by_its_own_lines(house):
    """Without file and line, its author knows that there is a fault and not where; in a replay, too."""
    done = house.judge("broken")
    assert done.returncode == 1, done.stdout
    where = rf'  File "{re.escape(str(house.subjects))}", line 7, in broken\n    return x\.reshape\(7, 7, 7, 7\), h0\n'
    assert re.search(rf"the subject raised RuntimeError: .*\n{where}", done.stdout)
    assert "site-packages" not in done.stdout
    (line,) = set(re.findall(r"replay: python -m (.*)", done.stdout))
    assert "-on-mine-py-broken-" in line
    again = house.run(*line.split())
    assert again.returncode == 1, again.stderr
    assert re.search(where, again.stdout)


@pytest.mark.parametrize("quiet", ["-v", "-q", "-qq", "--no-header"])
def test_every_output_says_what_a_subject_was_made_of(house, quiet):
    """Figures of one commit must not be taken for those of another."""
    done = house.judge("MADE_OF", quiet)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(f"{house.named('MADE_OF')} (hawk 1.2)") == 1


def test_where_nothing_is_judged_the_exit_code_is_3(house):
    """A green run that judged nothing would be a lie; the reason stands in the last line, with workers too."""
    done = house.judge("NO_RESETS", "-n", "2", clauses="9")
    assert done.returncode == 3, done.stdout
    assert "\nclauses: 1 not promised (segment_pos)\nnothing was judged: that is no success\n" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["--subject", "math:sin"],
            "--subject: math:sin cannot be called as f(x, gate_x, gate_a, a_param, *, segment_pos=None",
        ),
        (["--subject", "nobody"], "--subject: no subject is called 'nobody'"),
        (["--clauses", "1,two"], "--clauses must be numbers of clauses, as in 1,2,13; got '1,two'"),
        (["--clauses", ""], "--clauses must be numbers of clauses, as in 1,2,13; got ''"),
        (["--clauses", "1,99"], "--clauses must be among 1 to 15; got 99"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_run_exits_with_4_and_one_sentence(house, arguments, text):
    """Before anything is collected, without a traceback; 4 is what pytest says of its own options, too."""
    done = house.run("pytest", "properties", "-p", "no:cacheprovider", *arguments)
    assert done.returncode == 4, done.stdout
    assert f"ERROR: {text}" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_a_known_deviation_that_still_deviates_exits_with_0(house):
    """Somebody else's fault, on record, does not make a run fail."""
    done = house.judge("STILL_WRONG")
    assert done.returncode == 0, done.stdout
    assert "\nclauses: 1 known to deviate\n" in done.stdout


def test_a_known_deviation_that_is_gone_exits_with_1(house):
    """A ledger that is out of date is wrong."""
    done = house.judge("RIGHT_BY_NOW")
    assert done.returncode == 1, done.stdout
    assert "\nclauses: 1 failed\n" in done.stdout
    assert "[XPASS(strict)] C is 7.99" in done.stdout


def test_the_suites_own_tests_do_not_run_under_a_subject(house):
    """They say nothing about it; a run of them alone judged nothing."""
    done = house.run("pytest", "oracle/tests/test_case.py", "-p", "no:cacheprovider", "--subject", "eager")
    assert done.returncode == 3, done.stdout
    assert " deselected" in done.stdout
