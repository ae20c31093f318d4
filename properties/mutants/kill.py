"""Which clauses convict a subject: the contract without pytest, one clause's test after another."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, settings

from kernels.subjects import Subject
from kernels.subjects.run import NoAnswer
from oracle import Case
from properties.clauses import CONTRACT
from properties.contract import Clause, Session, search
from properties.trial import Trial


@dataclass(frozen=True)
class Kill:
    """A clause's test that failed: after how many examples and seconds, what it said, and on what."""

    clause: Clause
    examples: int
    seconds: float
    text: str
    case: Case | None
    params: dict[str, Any]


class _First:
    """A recorder of nothing but the first failure, for functions that are known to be wrong."""

    def __init__(self) -> None:
        self.tried = 0
        self.failure: tuple[int, Case, dict] | None = None

    def begin(self, clause, trial, recipe, case, params):
        self.tried += 1
        self.example = case, params

    def end(self):
        pass

    def failed(self, error):
        self.failure = self.failure or (self.tried, *self.example)

    def keep(self):
        return None

    def minimize(self):
        return None


def clauses(subject: Subject, device: str = "cpu", grade: str = "accurate") -> list[Clause]:
    """Every test of the contract that applies to a subject, by clause."""
    trial = Trial(subject, device, grade)
    applying = [clause for clause in CONTRACT.values() if not clause.missing_promise(trial)]
    return sorted(applying, key=lambda clause: clause.number)


def kill_by(
    clause: Clause, subject: Subject, *, seed: int, examples: int, device: str = "cpu", grade: str = "accurate"
) -> Kill | None:
    """How a clause's test convicts a subject within so many examples, without database, corpus or shrinking."""
    profile = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    recorder, start = _First(), time.perf_counter()
    try:
        search(clause, Session(Trial(subject, device, grade), seed, recorder), profile)
    except (AssertionError, NoAnswer) as error:
        tried, case, params = recorder.failure or (recorder.tried, None, {})
        return Kill(clause, tried, time.perf_counter() - start, str(error), case, params)
    return None


def kills(subject: Subject, *, device: str = "cpu", first: str = "", **options) -> Iterator[Kill]:
    """Every clause's test that convicts a subject, in order, but the one named `first` first; keywords of `kill_by`."""
    for clause in sorted(clauses(subject, device), key=lambda clause: clause.name != first):
        kill = kill_by(clause, subject, device=device, **options)
        if kill is not None:
            yield kill


def first_kill(function: Callable, *, seed: int, examples: int, grade: str = "accurate") -> tuple[Clause, str] | None:
    """The first clause, by number, that `function` fails within `examples` examples a clause, and why."""
    subject = Subject(function, getattr(function, "__name__", "function"))
    kill = next(kills(subject, seed=seed, examples=examples, grade=grade), None)
    return None if kill is None else (kill.clause, kill.text)
