"""From outputs to a verdict: which elements lie outside what an honest kernel may write, and by how much."""

from dataclasses import dataclass

import numpy as np

from oracle.bounds import DEFAULT, Bounds, Profile, bound
from oracle.case import GRADIENTS, IN_CASE_DTYPE, Case, Result
from oracle.formats import FORMATS, distance_to_cell, interval
from oracle.reference import Reference, solve

MOST_ANY_ORDER_TERMS = 600
"""With any-order sums the bound of da_param passes its value beyond about this many terms: then it is not judged."""


@dataclass(frozen=True)
class OutputVerdict:
    """How one output fared.

    `ratio` is the worst distance from the reference to the nearest real that rounds to the output, over the bound:
    above 1 fails; infinite where the bound is 0 and the output differs, or finiteness is wrong. `unjudged` elements may
    overflow in float32; `non_finite` ones must be, and are counted when they are.
    """

    name: str
    elements: int
    failed: int
    unjudged: int
    non_finite: int
    ratio: float
    worst: str | None = None
    first_diverging_step: int | None = None

    @property
    def holds(self) -> bool:
        return self.failed == 0


@dataclass(frozen=True)
class Verdict:
    """The verdict on one result; `str()` of it is the text a person reads."""

    outputs: tuple[OutputVerdict, ...]
    grade: str
    profile: str
    notes: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return all(output.holds for output in self.outputs)

    @property
    def ratio(self) -> float:
        """The worst ratio over all outputs; 0 where nothing was judged."""
        return max((output.ratio for output in self.outputs), default=0.0)

    @property
    def elements(self) -> int:
        return sum(output.elements for output in self.outputs)

    @property
    def unjudged(self) -> int:
        return sum(output.unjudged for output in self.outputs)

    def __str__(self) -> str:
        lines = []
        for output in self.outputs:
            head = f"{output.name}: " + ("holds" if output.holds else "DEVIATES")
            lines.append(f"{head}, worst ratio {output.ratio:.3g} of the {self.grade} bound ({self.profile} profile)")
            if not output.holds:
                lines.append(f"  {output.failed} of {output.elements} elements fail; worst: {output.worst}")
                if output.first_diverging_step is not None:
                    lines.append(f"  first diverging step: t = {output.first_diverging_step}")
            if output.unjudged:
                lines.append(f"  {output.unjudged} of {output.elements} elements not judged (float32 may overflow)")
        return "\n".join([*lines, *self.notes])


def judge(
    case: Case,
    result: Result,
    *,
    profile: Profile = DEFAULT,
    grade: str = "accurate",
    reference: Reference | None = None,
) -> Verdict:
    """Judge every output that `result` holds.

    Parameters
    ----------
    case, result
        The inputs and cotangents, and what an implementation made of them (arrays of the outputs' shapes).
    profile, grade
        What is assumed of the implementation (see `oracle.bounds`).
    reference
        `solve(case)`, where it is already at hand.

    Raises
    ------
    ValueError
        Where an output has the wrong shape, or a gradient came although the case has no cotangent.
    """
    reference = solve(case) if reference is None else reference
    bounds = bound(reference, profile, grade)
    batch, steps, _ = case.shape
    outputs, notes = [], []
    for name, output in result.items():
        if name in GRADIENTS and not case.has_cotangents:
            raise ValueError(f"{name} cannot be judged: the case has neither dy nor dh_last")
        if name == "da_param" and profile.da_param_additions is None and batch * steps > MOST_ANY_ORDER_TERMS:
            notes.append(f"da_param: not judged, {batch * steps} terms in any order leave no bound worth the name")
            continue
        outputs.append(_judge_output(name, np.asarray(output, np.float64), reference, bounds, case))
    return Verdict(tuple(outputs), grade, profile.name, tuple(notes))


def _judge_output(name: str, output: np.ndarray, reference: Reference, bounds: Bounds, case: Case) -> OutputVerdict:
    exact, error = getattr(reference, name), getattr(bounds, name)
    if output.shape != exact.shape:
        raise ValueError(f"{name} must have shape {list(exact.shape)}; got {list(output.shape)}")
    fmt = FORMATS[case.dtype if name in IN_CASE_DTYPE else "float32"]
    usable = np.broadcast_to(np.isfinite(case.a_param) | ~np.isinf(error), exact.shape)
    must_be_non_finite = ~np.isfinite(exact) & usable
    unjudged = ~must_be_non_finite & np.isinf(error)
    if np.isnan(error[np.isfinite(exact)]).any():
        raise AssertionError(
            f"the bound of {name} is not a number where its reference is finite: a fault of the oracle"
        )
    with np.errstate(all="ignore"):
        distance = distance_to_cell(exact, output, fmt)
        ratio = np.where(distance > 0, distance / error, 0.0)
    ratio = np.where(must_be_non_finite, np.where(np.isfinite(output), np.inf, 0.0), ratio)
    ratio = np.where(unjudged, 0.0, ratio)
    wrong = ratio > 1
    worst = step = None
    if wrong.any():
        worst = _describe(name, np.unravel_index(np.argmax(ratio), ratio.shape), output, exact, error, ratio, fmt)
        if output.ndim == 3:
            diverging = np.flatnonzero(wrong.any((0, 2)))
            step = int(diverging[0] if name == "y" else diverging[-1])
    return OutputVerdict(
        name=name,
        elements=output.size,
        failed=int(wrong.sum()),
        unjudged=int(unjudged.sum()),
        non_finite=int(must_be_non_finite.sum()),
        ratio=float(ratio.max(initial=0.0)),
        worst=worst,
        first_diverging_step=step,
    )


def _describe(name, index, output, exact, error, ratio, fmt) -> str:
    letters = {3: "btd", 2: "bd", 1: "d"}[output.ndim]
    where = ", ".join(f"{letter}={int(i)}" for letter, i in zip(letters, index, strict=True))
    text = f"{name}[{where}] is {output[index]:.9g}, should be {exact[index]:.9g}"
    if not np.isfinite(exact[index]):
        return f"{text}: a non-finite value must show"
    low, high = interval(exact[index], error[index], fmt)
    return f"{text}, between {low:.9g} and {high:.9g}: {ratio[index]:.3g} x the bound"
