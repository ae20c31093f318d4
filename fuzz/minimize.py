"""The minimizer: from a failing case to one that fails no more when a row, a step or a channel is taken away.

It works on the case itself, after Hypothesis has shrunk the recipe it was drawn from, and keeps what failed: the same
clause's test on the same subject, whatever it says then.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from fuzz.kept import CASES, Kept, checksum
from fuzz.reductions import Example, Reduction, absent, fewer, one_fewer, simpler_params, simpler_values
from kernels.subjects import Subject, eager
from kernels.subjects.run import NoAnswer
from properties.clauses import CONTRACT
from properties.contract import Clause
from properties.trial import Trial

SECONDS = 20.0
"""How long a case is reduced."""
ASKED = 3
"""How often the first case is tried: where it does not fail every time, nor will a smaller one."""
FOR_SIZES = 0.6
"""Share of the time after which values are left as they are, so that the sizes are the least for those values."""


@dataclass
class Reducer:
    """Looks for a simpler example that still fails.

    Parameters
    ----------
    clause, subject, device, grade
        What failed, and where.
    seconds
        When to stop. A call may take what is left then, and one that gives no answer ends the search.
    alike
        Which verdicts are those of the same failure.
    """

    clause: Clause
    subject: Subject
    device: str
    grade: str
    seconds: float = SECONDS
    alike: Callable[[str], bool] = lambda text: True
    attempts: int = 0
    tries: int = 1
    stopped: bool = False
    seen: set[str] = field(default_factory=set)

    def reduce(self, example: Example) -> tuple[Example, str] | None:
        """The simplest failing example found and what it says; None where nothing simpler fails.

        Nor is anything reduced that an honest loop fails too (a device that answers no more, a case beyond the
        contract), or that fails no more. Where the first case fails sometimes only, every case is tried as often.
        """
        self.end = time.monotonic() + self.seconds
        self.asks_too_much = Trial(self.subject).unpromised(example[0]) is not None
        texts = [text for _ in range(ASKED) if (text := self._verdict(example)) is not None]
        if not texts or not self._proves_something(example):
            return None
        text, self.tries = texts[-1], 1 if len(texts) == ASKED else ASKED
        start = example
        values_end = self.end - (1 - FOR_SIZES) * self.seconds
        before = None
        while before is not example and not self.stopped:
            before = example
            for reduction, end in (
                (absent, self.end),
                (fewer, self.end),
                (simpler_params, self.end),
                (simpler_values, values_end),
            ):
                example, text = self._follow(reduction(example), example, text, end)
        if example is start or self._fails(example) is None:
            return None
        if self.tries > 1:
            text += f"\nnot always: the first case failed {len(texts)} of {ASKED} times"
        return example, text

    def removable(self, example: Example) -> list[str]:
        """Which rows, steps and channels can be taken away one at a time, and it still fails."""
        self.end = time.monotonic() + self.seconds
        self.asks_too_much = Trial(self.subject).unpromised(example[0]) is not None
        return [what for what, smaller in one_fewer(example) if self._fails(smaller) is not None]

    def _follow(self, reduction: Reduction, example: Example, text: str, end: float) -> tuple[Example, str]:
        """The last example of a reduction that fails, and what it says."""
        candidate = next(reduction, None)
        while candidate is not None and not self.stopped and time.monotonic() < end:
            said = self._fails(candidate) if self._is_new(candidate) else None
            if said is not None:
                example, text = candidate, said
            try:
                candidate = reduction.send(said is not None)
            except StopIteration:
                break
        return example, text

    def _is_new(self, example: Example) -> bool:
        key = checksum(example[0]) + json.dumps(example[1])
        new = key not in self.seen
        self.seen.add(key)
        return new

    def _fails(self, example: Example) -> str | None:
        case, params = example
        if not self.asks_too_much and Trial(self.subject).unpromised(case) is not None:
            return None
        if "size" in params and 0 in case.shape:  # nothing to be repeated
            return None
        text = next((text for _ in range(self.tries) if (text := self._verdict(example)) is not None), None)
        return text if text is not None and self._proves_something(example) else None

    def _verdict(self, example: Example) -> str | None:
        """What the clause says where it fails, else None."""
        self.attempts += 1
        trial = Trial(self.subject, self.device, self.grade, limit=max(self.end - time.monotonic(), 1.0))
        try:
            self.clause.check(trial, example[0], **example[1])
        except AssertionError as error:
            return str(error) if self.alike(str(error)) else None
        except NoAnswer:
            self.stopped = True
        except Exception:  # the clause cannot be asked this
            return None
        return None

    def _proves_something(self, example: Example) -> bool:
        """Whether an honest loop passes, where it promises what the clause is about."""
        case, params = example
        trial = Trial(eager.SUBJECT, self.device, self.grade)
        try:
            if self.clause.missing_promise(trial):
                trial.expect_right(case)
            else:
                self.clause.check(trial, case, **params)
        except (Exception, NoAnswer):
            return False
        return True


def minimized(kept: Kept, subject: Subject, **options) -> Kept | None:
    """The same failure with a smaller case and simpler params; None where there is none, or nothing fails now.

    Parameters
    ----------
    kept
        A failing case.
    subject
        The subject to reduce it on.
    options
        `seconds` and `alike` of the `Reducer`.
    """
    reducer = Reducer(CONTRACT[kept.test], subject, kept.device, kept.grade, **options)
    simplest = reducer.reduce((kept.case, kept.params))
    if simplest is None:
        return None
    (case, params), verdict = simplest
    return replace(kept, case=case, params=params, recipe=None, verdict=verdict)


def minimize_file(path: Path, kept: Kept, subject: Subject, **options) -> tuple[Path, Kept]:
    """Put the minimized case in the place of the one at `path`, under a name of its own, once it is complete.

    The name is that of a find, or of the corpus where it lies in it.

    Returns the path and the case that are there now: those that were given, where nothing simpler fails.
    """
    smaller = minimized(kept, subject, **options)
    if smaller is None:
        return path, kept
    in_corpus = path.resolve().is_relative_to(CASES)
    target = smaller.write(path.with_name(smaller.file_name if in_corpus else smaller.found_name))
    if not path.samefile(target):
        path.unlink()
    return target, smaller
