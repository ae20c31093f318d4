"""The contract's clauses: what each checks, what is drawn for it, and the pytest test that explores it.

A clause is a function check(trial, case, **params). Hypothesis draws the recipe of the case and the params; a replay
passes stored ones: both run the same function.
"""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import pytest
from hypothesis import given, settings, target
from hypothesis import seed as with_seed
from hypothesis import strategies as st
from hypothesis.errors import FlakyFailure

from kernels.subjects.run import NoAnswer
from oracle import Case
from properties.strategies import Recipe, Scope, recipes
from properties.trial import Failure, Trial

FEWER_IF_SLOW = 5
"""Where an example costs a fraction of a second (interpreted kernels), draw so many times fewer."""


@dataclass(frozen=True)
class Clause:
    """One property of the contract.

    `always` gives (recipe, params) that are tried before any is drawn: the few that matter most, by name not by luck.
    `draws` are keywords of `strategies.recipes`; `params` maps a name to a strategy made of (case, scope); `needs`
    names promises of the subject without which the clause says nothing.
    """

    number: int
    name: str
    check: Callable
    draws: dict[str, Any]
    params: dict[str, Callable[[Case, Scope], st.SearchStrategy]]
    needs: tuple[str, ...] = ()
    always: Callable[[Scope], Iterable[tuple[Recipe, dict]]] = lambda scope: ()

    def missing_promise(self, trial: Trial) -> str | None:
        """Why the clause does not apply to the trial's subject, or None."""
        subject = trial.subject
        for need in self.needs:
            promised = need in subject.bitwise if need in ("B", "T", "D", "strides") else getattr(subject, need)
            if promised is False or promised is None:
                return f"not promised: {_NEEDS[need]}"
        return None


_NEEDS = {
    "resets": "segment_pos",
    "h0": "an initial state",
    "h_last": "the last state",
    "backward": "gradients",
    "split": "equal bits across splits",
    "B": "equal bits in a batch of another size",
    "T": "equal bits in a longer sequence",
    "D": "equal bits at another width",
    "strides": "equal bits at other strides",
}

CONTRACT: dict[str, Clause] = {}
"""Every clause's test by name, filled as the test modules are imported."""


class Recorder(Protocol):
    """Keeps cases: `begin` before an example is launched, `end` when it held, `keep` when the test failed.

    `keep` gives the command that replays what was kept; then `minimize` may find a smaller case: its command and
    verdict.
    """

    def begin(self, clause: Clause, trial: Trial, recipe: Recipe | None, case: Case, params: dict) -> None: ...

    def end(self) -> None: ...

    def failed(self, error: BaseException) -> None: ...

    def keep(self) -> str | None: ...

    def minimize(self) -> tuple[str, str] | None: ...


@dataclass
class Session:
    """What a test needs to explore a clause: the trial, the seed of the run, where cases are kept, and which are.

    `kept` are (recipe, case, params) that failed on the subject before: they are tried first. A failure that is
    `passed_over` counts for none: it is known.
    """

    trial: Trial
    seed: int
    recorder: Recorder
    kept: tuple[tuple[Recipe | None, Case, dict], ...] = ()
    report: dict[str, Any] = field(default_factory=dict)
    passed_over: Callable[[BaseException], bool] = lambda error: False


def clause(number: int, *, needs=(), params=None, always=lambda scope: (), **draws):
    """Make a check a clause of the contract and the pytest test that explores it (fixture: `session`)."""

    def decorate(check):
        entry = Clause(number, check.__name__, check, draws, params or {}, needs, always)
        CONTRACT[entry.name] = entry

        @pytest.mark.clause(number)
        def test(session):
            reason = entry.missing_promise(session.trial)
            if reason:
                pytest.skip(reason)
            explore(entry, session)

        test.__name__ = test.__qualname__ = check.__name__
        test.__doc__ = check.__doc__
        test.__module__ = check.__module__
        return test

    return decorate


def explore(entry: Clause, session: Session):
    """Hold the trial's subject to a clause as a pytest test: a failing case is shrunk, kept and shown."""
    failure: BaseException | None = None
    try:
        search(entry, session, settings())
    except (AssertionError, NoAnswer) as error:
        failure = error
    except BaseException:
        session.recorder.keep()
        raise
    finally:
        session.report["examples"] = session.trial.examples
    if failure is not None:
        trial, replay = session.trial, session.recorder.keep()
        # what gave no answer is not asked again, and what is in the corpus is small enough
        again = isinstance(failure, AssertionError) and not session.kept
        smaller = session.recorder.minimize() if again else None
        replay, verdict = smaller or (replay, str(failure))
        session.report["found"] = replay
        text = f"clause {entry.number}, {entry.name}\nsubject {trial.subject.title}, {trial.grade} grade: {verdict}"
        pytest.fail(f"{text}\nreplay: {replay}" if replay else text, pytrace=False)


def search(entry: Clause, session: Session, profile: settings):
    """Try what is always tried, then draw examples until one fails or the profile's number is reached.

    Raises what the smallest failing one raised.
    """
    trial = session.trial
    examples = max(1, profile.max_examples // (FEWER_IF_SLOW if trial.slow else 1))
    for known, case, params in session.kept:
        attempt(entry, session, known, case, params)
    for recipe, params in entry.always(trial.scope):
        attempt(entry, session, recipe, recipe.build(), params)

    @with_seed(session.seed)
    @settings(profile, max_examples=examples)
    @given(st.data())
    def example(data: st.DataObject):
        recipe = data.draw(recipes(trial.scope, **entry.draws), label="recipe")
        case = recipe.build()
        drawn = {name: data.draw(make(case, trial.scope), label=name) for name, make in entry.params.items()}
        attempt(entry, session, recipe, case, drawn)
        for name, ratio in trial.ratios.items():
            target(math.log2(ratio) if ratio > 0 else -60.0, label=name)

    # Hypothesis keys its database by the test's name
    name = re.sub(r"\W", "_", f"{entry.name}_{trial.subject.name}_{trial.grade}")
    inner = example.hypothesis.inner_test  # type: ignore[attr-defined]
    example.__name__ = inner.__name__ = name
    try:
        example()
    except FlakyFailure as error:
        first = error.exceptions[0]
        raise Failure(f"the same example failed once and held when it was repeated. The failure was: {first}") from None
    trial.check_that_it_judged()


def attempt(entry: Clause, session: Session, recipe: Recipe | None, case: Case, params: dict):
    """One example: on disk before it is launched, kept as failing when it fails."""
    trial, recorder = session.trial, session.recorder
    recorder.begin(entry, trial, recipe, case, params)
    trial.examples += 1
    trial.ratios.clear()
    try:
        entry.check(trial, case, **params)
    except (Exception, NoAnswer) as error:
        if not session.passed_over(error):
            recorder.failed(error)
            raise
        trial.ratios.clear()
    finally:
        session.report["ratio"] = max(session.report.get("ratio", 0.0), *trial.ratios.values(), 0.0)
    recorder.end()
