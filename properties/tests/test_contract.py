"""The contract's machinery: clauses, what convicts a subject and what does not, and what a failure tells."""

import contextlib
import re
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from conftest import PROFILES
from kernels.subjects import Subject, eager
from oracle import DEFAULT, Result, solve
from oracle.verdict import MOST_ANY_ORDER_TERMS
from properties import test_extremes, test_layout, test_structure, test_values
from properties.contract import CONTRACT, FEWER_IF_SLOW, Clause, Session, explore, search
from properties.mutants.plain import WRONG, right
from properties.strategies import Recipe
from properties.trial import MOST_UNJUDGED, PROGRAMS, Failure, Trial

MODULES = (test_values, test_structure, test_layout, test_extremes)
EVERY_CLAUSE = sorted(CONTRACT.values(), key=lambda clause: (clause.number, clause.name))
GENERATE = settings(
    max_examples=20,
    phases=(Phase.generate,),
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)
SHRINK = settings(GENERATE, phases=(Phase.generate, Phase.shrink), max_examples=100)
RIGHT = Subject(right, "right")


class Notes:
    """A recorder that remembers what it was told, in order."""

    def __init__(self):
        self.said: list[tuple] = []
        self.kept = self.minimized = 0
        self.smaller: tuple[str, str] | None = None

    def begin(self, clause, trial, recipe, case, params):
        self.said.append(("begin", recipe, params))

    def end(self):
        self.said.append(("end",))

    def failed(self, error):
        self.said.append(("failed", error))

    def keep(self):
        self.kept += 1
        return "python -m fuzz replay FILE"

    def minimize(self):
        self.minimized += 1
        return self.smaller

    def counts(self) -> Counter:
        return Counter(what for what, *_ in self.said)


@dataclass
class Noted(Session):
    """A session whose recorder is `Notes`."""

    recorder: Notes


def session_on(subject: Subject, seed: int = 0, **trial) -> Noted:
    return Noted(Trial(subject, **trial), seed, Notes())


def plain(check, number: int = 1, **fields) -> Clause:
    """A clause outside the contract."""
    return Clause(number, "test_of_the_machinery", check, fields.pop("draws", {}), fields.pop("params", {}), **fields)


def holds(trial, case):
    """A check that any subject passes."""


def expect_right(trial, case):
    trial.expect_right(case)


# --- the list of clauses


@pytest.mark.parametrize("number", range(1, 16))
def test_every_number_of_the_contract_has_a_test(number):
    """A clause without a test is a promise that nobody checks; 16 and 17 are our own operator's and the GPU's."""
    assert [clause for clause in EVERY_CLAUSE if clause.number == number]


@pytest.mark.parametrize("clause", EVERY_CLAUSE, ids=lambda clause: clause.name)
def test_every_clause_is_a_test_with_its_name_mark_and_reason(clause):
    """pytest collects the test, --clauses selects by its mark, and a failure shows its docstring's reason."""
    (test,) = [vars(module)[clause.name] for module in MODULES if clause.name in vars(module)]
    assert test.__name__ == clause.name == clause.check.__name__
    assert [mark.args for mark in test.pytestmark if mark.name == "clause"] == [(clause.number,)]
    assert test.__doc__ == clause.check.__doc__
    assert len(test.__doc__.strip()) > 30


def test_names_of_clauses_are_short_enough_to_be_told_apart():
    """A kept case's file name has their first 60 characters."""
    assert len({name.removeprefix("test_")[:60] for name in CONTRACT}) == len(CONTRACT)


@pytest.mark.parametrize(
    ("need", "promise", "reason"),
    [
        ("resets", {"resets": False}, "segment_pos"),
        ("h0", {"h0": False}, "an initial state"),
        ("h_last", {"h_last": False}, "the last state"),
        ("backward", {"backward": False}, "gradients"),
        ("split", {"split": None}, "equal bits across splits"),
        ("B", {"bitwise": {"T", "D", "strides"}}, "equal bits in a batch of another size"),
        ("T", {"bitwise": {"B", "D", "strides"}}, "equal bits in a longer sequence"),
        ("D", {"bitwise": {"B", "T", "strides"}}, "equal bits at another width"),
        ("strides", {"bitwise": {"B", "T", "D"}}, "equal bits at other strides"),
    ],
)
def test_a_promise_that_is_missing_is_named(need, promise, reason):
    """The skip's text is what the author reads to know what was not judged."""
    everything = Subject(right, "f", bitwise=frozenset({"B", "T", "D", "strides"}), split=8)
    clause = plain(holds, needs=(need,))
    assert clause.missing_promise(Trial(everything)) is None
    assert clause.missing_promise(Trial(replace(everything, **promise))) == f"not promised: {reason}"
    assert plain(holds).missing_promise(Trial(replace(everything, **promise))) is None


@pytest.mark.parametrize("clause", EVERY_CLAUSE, ids=lambda clause: clause.name)
def test_every_need_of_a_clause_can_be_said(clause):
    """A subject that promises least gets a reason for each clause, or the clause applies; never a KeyError."""
    least = Subject(right, "f", resets=False, h0=False, backward=False)
    reason = clause.missing_promise(Trial(least))
    assert (reason is None) == (not clause.needs)
    assert reason is None or reason.startswith("not promised: ")


# --- what convicts and what does not


@pytest.mark.parametrize("clause", EVERY_CLAUSE, ids=lambda clause: clause.name)
def test_a_right_function_passes_every_clause(clause):
    """A suite that convicts the innocent is of no use to anybody."""
    session = session_on(replace(RIGHT, split=None))
    if clause.missing_promise(session.trial) is None:
        search(clause, session, settings(GENERATE, max_examples=5))
        assert session.recorder.counts()["begin"] == session.recorder.counts()["end"] == session.trial.examples


PROMISES = {
    "long": {"min_length": 4},
    "one token at least": {"min_length": 1, "dtypes": ("float16",), "tiles": (4,)},
    "longer than what is drawn otherwise": {"min_length": 100, "dtypes": ("float32",)},
    "wide": {"width_multiple": 4, "dtypes": ("bfloat16",)},
    "no resets": {"resets": False},
    "no state": {"h0": False},
    "no last state": {"h_last": False, "min_length": 1},
    "neither": {"resets": False, "h0": False, "min_length": 2},
    "forward": {"backward": False},
    "bits": {"split": 4, "min_length": 3, "width_multiple": 2, "bitwise": frozenset({"B", "T", "D", "strides"})},
    "tile of one": {"tiles": (1,)},
}


@pytest.mark.parametrize("promises", PROMISES.values(), ids=PROMISES)
def test_a_subject_is_held_to_what_it_promises_and_no_more(promises):
    """One that refuses whatever it did not promise, and is right in the rest, holds every clause."""

    def strict(x, gate_x, gate_a, a_param, *, segment_pos=None, h0=None):
        assert subject.resets or segment_pos is None, "segment_pos was given"
        assert subject.h0 or h0 is None, "h0 was given"
        assert str(x.dtype).removeprefix("torch.") in subject.dtypes, x.dtype
        assert x.shape[1] >= subject.min_length, f"length {x.shape[1]}"
        assert x.shape[2] % subject.width_multiple == 0, f"width {x.shape[2]}"
        y, h_last = eager.rglru(x.double(), gate_x, gate_a, a_param, segment_pos=segment_pos, h0=h0)
        y = y.to(x.dtype)
        if not subject.h_last:
            return y if subject.backward else y.detach(), None
        return (y, h_last) if subject.backward else (y.detach(), h_last.detach())

    subject = Subject(strict, "strict", **promises)
    for clause in EVERY_CLAUSE:
        # whether its bits are equal, which depends on how PyTorch vectorises, is not the question here
        unequal = contextlib.suppress(Failure if subject.bitwise else ())
        if clause.missing_promise(Trial(subject)) is None:
            with unequal:
                search(clause, session_on(subject), settings(GENERATE, max_examples=8))


@pytest.mark.parametrize(
    ("fault", "clause"),
    [
        ("c_is_7_99", "test_y_and_h_last_lie_within_their_bounds"),
        ("dh0_is_zero", "test_every_gradient_lies_within_its_bound"),
        ("reset_by_multiplying", "test_nothing_before_a_reset_reaches_what_follows"),
        ("writes_behind_x", "test_any_strides_are_right_and_memory_around_is_left_alone"),
        ("last_bit_varies", "test_a_call_repeated_after_others_gives_the_same_bits"),
    ],
)
def test_a_wrong_function_is_convicted_by_the_clause_it_breaks(fault, clause):
    """Each by an AssertionError that names output and place, not by a crash of the search."""
    session = session_on(Subject(WRONG[fault], fault))
    with pytest.raises(AssertionError):
        search(CONTRACT[clause], session, settings(GENERATE, max_examples=50))
    assert session.recorder.counts()["failed"]


def third_channel_is_wrong(x, gate_x, gate_a, a_param, *, segment_pos=None, h0=None):
    """Half is added to what belongs to it."""
    y, h_last = right(x, gate_x, gate_a, a_param, segment_pos=segment_pos, h0=h0)
    return y + 0.5 * (torch.arange(x.shape[2], device=x.device) == 2).to(y.dtype), h_last


def test_a_failure_is_shrunk_and_its_text_is_complete():
    """Clause, subject, grade, output, element, got, should be, interval, step, and the line that replays it."""
    session = session_on(Subject(third_channel_is_wrong, "third"))
    settings.register_profile("shrink", SHRINK)
    before = settings.get_current_profile_name()
    settings.load_profile("shrink")
    try:
        with pytest.raises(pytest.fail.Exception) as failure:
            explore(CONTRACT["test_y_and_h_last_lie_within_their_bounds"], session)
    finally:
        settings.load_profile(before)
    assert re.fullmatch(
        r"clause 1, test_y_and_h_last_lie_within_their_bounds\n"
        r"subject third, accurate grade: y: DEVIATES, worst ratio \S+ of the accurate bound \(default profile\)\n"
        r"  1 of 3 elements fail; worst: y\[b=0, t=0, d=2\] is \S+, should be \S+, between \S+ and \S+: "
        r"\S+ x the bound\n"
        r"  first diverging step: t = 0\n"
        r"h_last: holds, [^\n]*\n"
        r"replay: python -m fuzz replay FILE",
        failure.value.msg,
    )
    last = [said for said in session.recorder.said if said[0] == "begin"][-1]
    assert last[1] == Recipe(cotangents="absent", width=3)
    assert session.report == {
        "examples": session.trial.examples,
        "ratio": session.report["ratio"],
        "found": "python -m fuzz replay FILE",
    }
    assert session.report["ratio"] > 1
    assert session.recorder.kept == 1


def test_a_failure_shows_the_minimized_case():
    """The line that replays it, and what that case says; what the corpus holds is not minimized again."""

    def wrong(trial, case):
        raise Failure("y is wrong")

    for kept, shown in (
        ((), "y[0] is wrong\nreplay: SMALLER"),
        (((None, Recipe().build(), {}),), "y is wrong\nreplay: "),
    ):
        session = session_on(RIGHT)
        session.kept, session.recorder.smaller = kept, ("SMALLER", "y[0] is wrong")
        with pytest.raises(pytest.fail.Exception) as failure:
            explore(plain(wrong), session)
        assert shown in failure.value.msg
        assert session.recorder.minimized == (not kept)


def test_what_is_passed_over_is_no_failure():
    """A campaign goes on behind what it has found."""

    def sometimes_wrong(trial, case):
        if case.shape[1] > 2:
            raise Failure("known")

    session = session_on(RIGHT)
    session.passed_over = lambda error: str(error) == "known"
    search(plain(sometimes_wrong), session, GENERATE)
    assert session.recorder.counts()["failed"] == 0
    assert session.trial.examples >= GENERATE.max_examples
    session.passed_over = lambda error: False
    with pytest.raises(Failure, match="known"):
        search(plain(sometimes_wrong), session, GENERATE)


def test_an_error_of_the_suite_itself_is_no_verdict():
    """A bug in a check must look like one; the case that shows it is kept all the same."""

    def broken(trial, case):
        raise ZeroDivisionError("a bug")

    session = session_on(RIGHT)
    with pytest.raises(ZeroDivisionError):
        explore(plain(broken), session)
    assert session.recorder.kept == 1
    assert session.recorder.counts()["failed"] >= 1


def test_a_flaky_subject_is_convicted_in_clear_words():
    """Hypothesis calls it an unreliable test; it is an unreliable kernel."""
    calls = Counter()

    def once(trial, case):
        calls["check"] += 1
        if calls["check"] == 7:
            raise Failure("y is wrong at t = 3")

    session = session_on(RIGHT)
    with pytest.raises(Failure) as failure:
        search(plain(once), session, SHRINK)
    assert str(failure.value) == (
        "the same example failed once and held when it was repeated. The failure was: y is wrong at t = 3"
    )


def test_a_flaky_subject_keeps_the_example_that_failed():
    """It is the only witness."""
    calls = Counter()

    def flaky(x, gate_x, gate_a, a_param, *, segment_pos=None, h0=None):
        calls["call"] += 1
        y, h_last = right(x, gate_x, gate_a, a_param, segment_pos=segment_pos, h0=h0)
        return (y + 1 if calls["call"] == 9 else y), h_last

    session = session_on(Subject(flaky, "flaky"))
    with pytest.raises(pytest.fail.Exception, match="the same example failed once and held") as failure:
        explore(CONTRACT["test_y_and_h_last_lie_within_their_bounds"], session)
    assert "y: DEVIATES" in failure.value.msg
    assert failure.value.msg.endswith("\nreplay: python -m fuzz replay FILE")


@pytest.mark.parametrize("share", [0.9, 1.1])
def test_examples_that_say_nothing_fail_as_vacuous(share):
    """A bound of infinity passes everything: too many such elements are no evidence."""

    def mostly_unjudged(trial, case):
        trial.elements += 10_000
        trial.unjudged += int(10_000 * MOST_UNJUDGED * share)

    session = session_on(RIGHT)
    if share < 1:
        search(plain(mostly_unjudged), session, GENERATE)
        return
    with pytest.raises(Failure, match=r"^vacuous: 11000 of 200000 elements could not be judged$"):
        search(plain(mostly_unjudged), session, GENERATE)


def test_elements_that_may_overflow_count_as_unjudged():
    """The count comes from the verdicts themselves."""

    def huge(trial, case):
        trial.expect_right(case.replace(x=np.full(case.shape, 2.0**127)))

    session = session_on(replace(RIGHT, dtypes=("float32",)))
    with pytest.raises(Failure, match=r"^vacuous: "):
        search(plain(huge, draws={"overrides": False}), session, GENERATE)


def test_a_da_param_without_a_bound_counts_as_unjudged():
    """A sum over so many tokens in any order: left out of the count, it would be left out in silence."""
    trial = Trial(replace(RIGHT, profile=DEFAULT))
    case = Recipe(steps=MOST_ANY_ORDER_TERMS + 1).build()
    trial.judge(case, Result(da_param=np.zeros(1)))
    assert (trial.elements, trial.unjudged) == (1, 1)
    with pytest.raises(Failure, match=r"^vacuous: 1 of 1 elements could not be judged$"):
        trial.check_that_it_judged()


# --- how much is tried, and in which order


def count(subject: Subject, profile, clause=None, **trial) -> int:
    session = session_on(subject, **trial)
    search(plain(holds) if clause is None else clause, session, profile)
    return session.trial.examples


@pytest.mark.parametrize("name", PROFILES)
def test_each_clause_gets_as_many_examples_as_the_profile_says(name):
    """Quick, default and thorough differ in this alone."""
    assert settings.get_profile(name).max_examples == PROFILES[name]
    if name != "thorough":
        profile = settings(GENERATE, max_examples=settings.get_profile(name).max_examples)
        assert count(RIGHT, profile) == PROFILES[name]


def test_an_interpreted_subject_gets_fewer_examples_on_the_cpu_only():
    """There a step costs milliseconds; on a GPU it is compiled like any other."""
    interpreted = replace(RIGHT, program=(8, 64))
    assert count(interpreted, GENERATE) == 20 // FEWER_IF_SLOW
    assert count(interpreted, GENERATE, device="cuda") == 20
    assert count(interpreted, settings(GENERATE, max_examples=2)) == 1


def test_a_long_memory_is_always_tried_at_full_length():
    """One row of ten programs, and five of each of two rows or tiles of channels; what is cheap, to the end and beyond.

    Beyond what is drawn lie more channels than a tile has at more steps, more than 64 rows and more than 1,024 steps.
    """
    clause = CONTRACT["test_a_long_memory_is_carried_over_every_border"]
    interpreted, cheap = (
        [recipe.build().shape for recipe, _ in clause.always(Trial(subject).scope)]
        for subject in (replace(RIGHT, program=(16, 64)), RIGHT)
    )
    assert interpreted == [(1, 160, 1), (2, 80, 1), (1, 80, 65)]
    assert cheap == [(1, 260, 1), (2, 260, 1), (1, 260, 2), (2, 150, 130), (70, 9, 2), (1, 1100, 1)]


def test_an_interpreted_subject_gets_cases_of_few_programs_on_the_cpu_only():
    """Its cost is its programs, and not its elements; on a GPU it is tried at full size."""
    interpreted = replace(RIGHT, program=(8, 64))
    assert (Trial(interpreted).scope.program, Trial(interpreted).scope.max_programs) == ((8, 64), PROGRAMS)
    assert Trial(interpreted, "cuda").scope == Trial(RIGHT, "cuda").scope
    (clause,) = (clause for clause in EVERY_CLAUSE if "size" in clause.params)
    costs = []

    def cost(trial, case, size):
        costs.append(trial.scope.programs(*size))

    search(replace(clause, check=cost), session_on(interpreted), settings(GENERATE, max_examples=500))
    assert PROGRAMS / 2 < max(costs) <= PROGRAMS


def test_what_is_always_tried_comes_first_and_is_not_counted_off():
    """The few cases that matter most do not depend on luck."""
    fixed = [(Recipe(steps=steps), {"step": steps}) for steps in (1, 2)]
    clause = plain(
        lambda trial, case, step: None, always=lambda scope: fixed, params={"step": lambda case, scope: st.just(1)}
    )
    session = session_on(RIGHT)
    search(clause, session, GENERATE)
    begun = [said[1:] for said in session.recorder.said if said[0] == "begin"]
    assert begun[:2] == fixed
    assert len(begun) == session.trial.examples == 2 + 20


@pytest.mark.parametrize("promises", PROMISES.values(), ids=PROMISES)
def test_what_is_always_tried_is_promised(promises):
    """A fixed list must keep to the subject's promises as the drawn cases do."""
    trial = Trial(Subject(right, "f", **promises))
    for clause in EVERY_CLAUSE:
        if clause.missing_promise(trial) is None:
            for recipe, _ in clause.always(trial.scope):
                assert trial.unpromised(recipe.build()) is None


def test_what_failed_before_is_tried_first():
    """A ledger of known deviations must not depend on what is drawn."""
    kept = [(None, Recipe(steps=steps).build(), {}) for steps in (5, 6)]
    session = replace(session_on(RIGHT), kept=tuple(kept))
    search(plain(holds), session, GENERATE)
    begun = [said[1:] for said in session.recorder.said if said[0] == "begin"]
    assert begun[:2] == [(None, {}), (None, {})]
    assert len(begun) == session.trial.examples == 2 + 20


def test_what_is_always_tried_remembers():
    """With a decay of 1e-11 the smallest case is right whatever became of its state; a given a_param is meant."""
    for clause in EVERY_CLAUSE:
        for recipe, _ in clause.always(Trial(RIGHT).scope):
            assert not recipe.steps or recipe.overrides or solve(recipe.build()).a.max() > 0.5


def examples_of(seed: int) -> list:
    session = session_on(RIGHT, seed)
    search(CONTRACT["test_any_split_with_the_state_handed_on_is_one_call"], session, GENERATE)
    return [said for said in session.recorder.said if said[0] == "begin"]


def test_the_same_seed_gives_the_same_examples():
    """--hypothesis-seed reruns what another machine saw; another seed sees something else."""
    assert examples_of(5) == examples_of(5)
    assert examples_of(5) != examples_of(6)


# --- a trial


def test_equal_bits_are_equal_with_either_zero_and_any_nan():
    """+0 = -0 and NaN = NaN; anything else that differs is named with its place and both values."""
    trial = Trial(RIGHT)
    left, right_ = (Result(y=np.array([[[0.0, np.nan, 1.0]]])), Result(y=np.array([[[-0.0, np.nan, 1.5]]])))
    trial.expect_same(left, right_, "why", y=np.s_[..., :2])
    trial.expect_same(left, Result(), "why", y=np.s_[...])
    trial.expect_same(left, right_, "why")
    text = "y is not the same bit for bit: why. 1 of 3 elements differ; the first at [0, 0, 2]: 1.0 instead of 1.5"
    with pytest.raises(Failure, match=f"^{re.escape(text)}$"):
        trial.expect_same(left, right_, "why", y=np.s_[...])
    assert trial.ratios == {"y": np.inf}


def test_a_finite_value_is_not_a_nan():
    """The comparison must not hide the commonest leak."""
    for value in (np.nan, np.inf):
        with pytest.raises(Failure, match=r"0\.0 instead of (nan|inf)$"):
            Trial(RIGHT).expect_same(Result(y=np.zeros(1)), Result(y=np.array([value])), "why", y=np.s_[...])


@pytest.mark.parametrize(
    ("promise", "recipe", "reason"),
    [
        ({"dtypes": ("float32",)}, Recipe(dtype="float16"), "dtype float16"),
        ({"resets": False}, Recipe(resets="none"), "segment_pos"),
        ({"h0": False}, Recipe(state="zeros"), "an initial state"),
        ({"h_last": False}, Recipe(), "the last state"),
        ({"width_multiple": 4}, Recipe(width=6), "width 6"),
        ({"min_length": 3}, Recipe(steps=2), "length 2"),
    ],
)
def test_what_a_case_asks_for_beyond_the_promises_is_named(promise, recipe, reason):
    """A replay of somebody else's case says why it does not apply."""
    assert Trial(RIGHT).unpromised(recipe.build()) is None
    assert Trial(replace(RIGHT, **promise)).unpromised(recipe.build()) == f"not promised: {reason}"


def test_a_trial_judges_in_its_grade():
    """1 - exp(2 L) is canonical, and no more."""
    session = session_on(Subject(WRONG["one_minus_exp"], "f"), grade="accurate")
    clause = CONTRACT["test_y_and_h_last_lie_within_their_bounds"]
    with pytest.raises(Failure, match="of the accurate bound"):
        search(clause, session, settings(GENERATE, max_examples=100))
    search(clause, session_on(Subject(WRONG["one_minus_exp"], "f"), grade="canonical"), GENERATE)
