"""A trial: one subject on one device in one grade, tried on the examples of one clause."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernels.subjects import Subject
from kernels.subjects.run import Call, Misbehaviour, run
from oracle import Case, Result, Verdict, judge
from properties.strategies import Scope

MOST_UNJUDGED = 0.05
"""Share of elements that may be unjudged before a test says nothing."""

PROGRAMS = 10
"""Programs that an interpreted example may take; each 0.1 s forward and 0.3 s with its backward (Triton 3.7.1)."""


class Failure(AssertionError):
    """A clause that does not hold for a case; the text says where and by how much."""


@dataclass
class Trial:
    """Runs a subject and holds it to account; every clause gets one.

    Parameters
    ----------
    subject, device, grade
        What is tried, where, and by which bound ("accurate" or "canonical").
    limit
        Seconds a call may take; None: as many as any subject gets.
    """

    subject: Subject
    device: str = "cpu"
    grade: str = "accurate"
    elements: int = 0
    unjudged: int = 0
    examples: int = 0
    ratios: dict[str, float] = field(default_factory=dict)
    limit: float | None = None

    @property
    def slow(self) -> bool:
        """Whether one example costs so much that few and small ones are drawn."""
        return self.subject.program is not None and self.device == "cpu"

    @property
    def scope(self) -> Scope:
        """What may be drawn for this subject here."""
        subject, tile = self.subject, max(self.subject.tiles)
        size: dict[str, Any] = {}
        if self.device != "cpu":
            size = {"max_steps": max(300, 2 * tile + 1), "max_long": 3000, "max_width": 257, "max_programs": 20_000}
        elif subject.program is not None:
            longest = PROGRAMS * subject.program[0]
            size = {"max_rows": 2, "max_steps": longest, "max_long": longest}
            size |= {"program": subject.program, "max_programs": PROGRAMS}
        return Scope(
            dtypes=subject.dtypes,
            resets=subject.resets,
            h0=subject.h0,
            h_last=subject.h_last,
            width_multiple=subject.width_multiple,
            min_length=subject.min_length,
            split=subject.split,
            tiles=subject.tiles,
            **size,
        )

    def unpromised(self, case: Case) -> str | None:
        """Which promise `case` asks for that the subject does not make, or None."""
        subject = self.subject
        _, steps, width = case.shape
        reasons = {
            f"dtype {case.dtype}": case.dtype not in subject.dtypes,
            "segment_pos": case.segment_pos is not None and not subject.resets,
            "an initial state": case.h0 is not None and not subject.h0,
            "the last state": case.dh_last is not None and not subject.h_last,
            f"width {width}": width % subject.width_multiple != 0,
            f"length {steps}": steps < subject.min_length,
        }
        return next((f"not promised: {what}" for what, missing in reasons.items() if missing), None)

    def run(self, case: Case, **call) -> Result:
        """The subject's outputs, and gradients where the case has a cotangent; keywords are those of `Call`."""
        return run(self.subject, case, Call(device=self.device, limit=self.limit, **call))

    def judge(self, case: Case, result: Result) -> Verdict:
        """Fail where an output of `result` lies outside its bound; what cannot be judged is counted."""
        verdict = judge(case, result, profile=self.subject.profile, grade=self.grade)
        self.elements += verdict.elements
        self.unjudged += verdict.unjudged
        for output in verdict.outputs:
            self.ratios[output.name] = max(self.ratios.get(output.name, 0.0), output.ratio)
        if verdict.deviates:
            raise Failure(str(verdict))
        return verdict

    def expect_right(self, case: Case, **call) -> Result:
        """Run and judge."""
        result = self.run(case, **call)
        self.judge(case, result)
        return result

    def expect_same(self, got: Result, wanted: Result, why: str, **where):
        """Fail unless outputs are equal bit for bit (+0 = -0, NaN = NaN), each at the index given for it by name.

        Outputs that `where` does not name are not compared.
        """
        for name, index in where.items():
            left, right = getattr(got, name), getattr(wanted, name)
            if left is None or right is None:
                continue
            left, right = left[index], right[index]
            different = ~((left == right) | (np.isnan(left) & np.isnan(right)))
            if different.any():
                at = tuple(int(i) for i in np.argwhere(different)[0])
                self.ratios[name] = np.inf
                raise Failure(
                    f"{name} is not the same bit for bit: {why}. {int(different.sum())} of {different.size} elements "
                    f"differ; the first at {list(at)}: {float(left[at])!r} instead of {float(right[at])!r}"
                )

    def check_that_it_judged(self):
        """Fail where so much may overflow that the examples say nothing."""
        if self.unjudged > MOST_UNJUDGED * self.elements:
            raise Failure(f"vacuous: {self.unjudged} of {self.elements} elements could not be judged")


__all__ = ["Failure", "Misbehaviour", "Trial"]
