"""Replay of a kept case: the same clause, on any subject, in any grade, on any device."""

from dataclasses import dataclass

from fuzz.kept import Kept, KeptError
from kernels.subjects import load
from kernels.subjects.run import NoAnswer
from properties.clauses import CONTRACT
from properties.trial import Trial


@dataclass(frozen=True)
class Outcome:
    """What came of a replay: the clause holds or fails, whether the subject promises it, and anything was judged."""

    holds: bool
    text: str
    promised: bool = True
    judged: bool = True


def replay(kept: Kept, *, subject: str | None = None, grade: str | None = None, device: str = "cpu") -> Outcome:
    """Run the clause of `kept` once more on its case and params.

    What the subject does not promise is not run, except where the case was found on it: then the text says what happens
    to those who ask anyway.

    Raises
    ------
    KeptError
        Where this version has no such clause.
    kernels.subjects.SubjectError
        Where the subject cannot be loaded.
    """
    clause = CONTRACT.get(kept.test)
    if clause is None:
        raise KeptError(f"there is no clause test {kept.test!r} in this version")
    if set(kept.params) != set(clause.params):
        raise KeptError(f"{kept.test} takes the params {sorted(clause.params)}; the case has {sorted(kept.params)}")
    trial = Trial(load(subject or kept.subject), device, grade or kept.grade)
    unpromised = clause.missing_promise(trial) or trial.unpromised(kept.case)
    if unpromised and not (kept.verdict and trial.subject.name == kept.subject):
        return Outcome(True, unpromised, promised=False)
    holds = judged = True
    try:
        clause.check(trial, kept.case, **kept.params)
        worst = max(trial.ratios.values(), default=0.0)
        text = f"holds, worst ratio {worst:.3g}" if trial.ratios else "holds, bit for bit"
        if trial.elements and trial.unjudged == trial.elements:
            holds = judged = False
            text = f"nothing judged: none of {trial.elements} elements has a bound, or float32 may overflow there"
    except (AssertionError, NoAnswer) as error:
        holds, text = False, str(error)
    text = f"{unpromised}; asked anyway: {text}" if unpromised else text
    return Outcome(holds, text, promised=not unpromised, judged=judged)
