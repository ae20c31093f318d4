"""Which clause convicts a function first: the contract without pytest, one clause after another."""

from collections.abc import Callable

from hypothesis import HealthCheck, Phase, settings

from kernels.subjects import Subject
from kernels.subjects.run import NoAnswer
from properties.clauses import CONTRACT
from properties.contract import Clause, Session, search
from properties.trial import Trial


class _KeepsNothing:
    """A recorder for functions that are known to be wrong."""

    def begin(self, *_):
        pass

    def end(self):
        pass

    def failed(self, error):
        pass

    def keep(self):
        return None

    def minimize(self):
        return None


def first_kill(function: Callable, *, seed: int, examples: int, grade: str = "accurate") -> tuple[Clause, str] | None:
    """The first clause, by number, that `function` fails within `examples` examples a clause, and why."""
    profile = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    for clause in sorted(CONTRACT.values(), key=lambda clause: clause.number):
        trial = Trial(Subject(function, getattr(function, "__name__", "function")), grade=grade)
        if clause.missing_promise(trial):
            continue
        try:
            search(clause, Session(trial, seed, _KeepsNothing()), profile)
        except (AssertionError, NoAnswer) as error:
            return clause, str(error)
    return None
