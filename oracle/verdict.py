"""From outputs to a verdict: which elements lie outside what an honest kernel may write, and by how much."""

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np

from oracle.arrays import Array, beside, float64, namespace
from oracle.bounds import DEFAULT, Bounds, Profile, bound
from oracle.case import GRADIENTS, IN_CASE_DTYPE, OUTPUT_AXES, Case, Result
from oracle.formats import FORMATS, distance_to_cell, interval
from oracle.reference import Reference, solve

MOST_ANY_ORDER_TERMS = 600
"""With any-order sums the bound of da_param passes its value beyond about this many terms: then it is not judged."""
AT_ONCE = 2**27
"""Elements B T D that are judged at once by default: a float64 array of them is 1 GiB."""
PEAK = 62
"""Float64 arrays of `at_once` elements that are live at the worst moment of a verdict on torch, 22 its reference.

A `Case`, which is checked whole, takes 8 of its size for a moment, and 2 (four of float32) for good.
"""


@dataclass(frozen=True)
class OutputVerdict:
    """How one output fared.

    `ratio` is the worst distance from the reference to the nearest real that rounds to the output, over the bound:
    above 1 fails; infinite where the bound is 0 and the output differs, or finiteness is wrong. `unjudged` elements may
    overflow in float32, or have no bound worth the name, which `no_bound` then says of all of them; `non_finite` ones
    must be, and are counted when they are.
    """

    name: str
    elements: int
    failed: int
    unjudged: int
    non_finite: int
    ratio: float
    worst: str | None = None
    first_diverging_step: int | None = None
    no_bound: str | None = None

    @property
    def deviates(self) -> bool:
        return self.failed > 0

    @property
    def holds(self) -> bool:
        """Whether all that was judged is right, and something was, or there is no element to judge (an empty size)."""
        return not self.deviates and (self.unjudged < self.elements or self.elements == 0)


@dataclass(frozen=True)
class Verdict:
    """The verdict on one result; `str()` of it is the text a person reads.

    It is no verdict of two values: a result of which no element could be judged neither holds nor deviates.
    """

    outputs: tuple[OutputVerdict, ...]
    grade: str
    profile: str

    @property
    def deviates(self) -> bool:
        return any(output.deviates for output in self.outputs)

    @property
    def holds(self) -> bool:
        """Whether all that was judged is right, and something was, or there is no element to judge (empty sizes)."""
        return not self.deviates and (self.unjudged < self.elements or self.elements == 0)

    @property
    def notes(self) -> tuple[str, ...]:
        """Outputs that have no bound, and why."""
        return tuple(f"{output.name}: not judged, {output.no_bound}" for output in self.outputs if output.no_bound)

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
            if output.no_bound:
                continue
            state = "DEVIATES" if output.deviates else "holds" if output.holds else "NOT JUDGED"
            head = f"{output.name}: {state}"
            lines.append(f"{head}, worst ratio {output.ratio:.3g} of the {self.grade} bound ({self.profile} profile)")
            if output.deviates:
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
    at_once: int = AT_ONCE,
) -> Verdict:
    """Judge every output that `result` holds, on the device where the arrays live.

    A case larger than `at_once` is judged in slices of channels, which are independent, and in which da_param's sums
    are whole; the verdict is that on the whole.

    Parameters
    ----------
    case, result
        The inputs and cotangents, and what an implementation made of them: arrays of the outputs' shapes in any
        floating-point dtype, of the case's library and device.
    profile, grade
        What is assumed of the implementation (see `oracle.bounds`).
    reference
        `solve(case)`, where it is already at hand: then nothing is sliced.
    at_once
        Elements B T D whose reference and bounds are held at once (but one channel at least): `PEAK` float64 arrays.

    Raises
    ------
    TypeError
        Where an output is of another library or device than the case.
    ValueError
        Where there is no output, one has the wrong shape, or a gradient came although the case has no cotangent.
    """
    batch, steps, width = case.shape
    outputs, unbounded = {}, {}
    for name, output in result.items():
        if name in GRADIENTS and not case.has_cotangents:
            raise ValueError(f"{name} cannot be judged: the case has neither dy nor dh_last")
        outputs[name] = beside(name, output, case.x)
        shape = [case.shape["BTD".index(letter)] for letter in OUTPUT_AXES[name]]
        if list(outputs[name].shape) != shape:
            raise ValueError(f"{name} must have shape {shape}; got {list(outputs[name].shape)}")
        if name == "da_param" and profile.da_param_additions is None and batch * steps > MOST_ANY_ORDER_TERMS:
            del outputs[name]
            why = f"{batch * steps} terms in any order leave no bound worth the name"
            unbounded[name] = OutputVerdict(name, width, 0, width, 0, 0.0, no_bound=why)
    if not outputs and not unbounded:
        raise ValueError("result must hold an output, or there is nothing to judge; got none")
    slices = 1 if reference is not None else max(1, min(width, math.ceil(batch * steps * width / at_once)))
    edges = [width * n // slices for n in range(slices + 1)]
    parts = [
        _judge_channels(case, outputs, slice(*ends), profile, grade, reference) for ends in itertools.pairwise(edges)
    ]
    joined = tuple(_joined(same) for same in zip(*parts, strict=True))
    return Verdict((*joined, *unbounded.values()), grade, profile.name)


Found = tuple[OutputVerdict, tuple[int, ...]]
"""How an output fared in some channels, and the place of its worst element."""


def _judge_channels(case: Case, outputs: dict[str, Array], channels: slice, profile, grade, reference) -> list[Found]:
    first = channels.start
    if reference is None:
        part = case if channels == slice(0, case.shape[2]) else case.take(channels=channels)
        reference = solve(part)
    bounds = bound(reference, profile, grade)
    return [_judge_output(n, float64(output[..., channels]), reference, bounds, first) for n, output in outputs.items()]


def _joined(found: tuple[Found, ...]) -> OutputVerdict:
    """One verdict on all channels; of equally bad elements the first in memory is shown, as in one slice."""
    verdicts = [verdict for verdict, _ in found]
    worst, _ = min(found, key=lambda part: (-part[0].ratio, part[1]))
    steps = [v.first_diverging_step for v in verdicts if v.first_diverging_step is not None]
    earliest = min if worst.name == "y" else max
    return replace(
        worst,
        **{
            count: sum(getattr(v, count) for v in verdicts)
            for count in ("elements", "failed", "unjudged", "non_finite")
        },
        first_diverging_step=earliest(steps, default=None),
    )


def _judge_output(name: str, output: Array, reference: Reference, bounds: Bounds, first_channel: int) -> Found:
    xp, case = namespace(output), reference.case
    exact, error = getattr(reference, name), getattr(bounds, name)
    fmt = FORMATS[case.dtype if name in IN_CASE_DTYPE else "float32"]
    must_be_non_finite = ~xp.isfinite(exact) & (xp.isfinite(case.a_param) | ~xp.isinf(error))
    unjudged = ~must_be_non_finite & xp.isinf(error)
    if xp.any(xp.isnan(error) & xp.isfinite(exact)):
        raise AssertionError(
            f"the bound of {name} is not a number where its reference is finite: a fault of the oracle"
        )
    with np.errstate(all="ignore"):
        distance = distance_to_cell(exact, output, fmt)
        ratio = xp.where(distance > 0, distance / error, 0.0)
    ratio = xp.where(must_be_non_finite, xp.where(xp.isfinite(output), math.inf, 0.0), ratio)
    ratio = xp.where(unjudged, 0.0, ratio)
    wrong = ratio > 1
    worst = step = None
    place: tuple[int, ...] = ()
    if xp.any(wrong):
        index = tuple(int(n) for n in np.unravel_index(int(xp.argmax(ratio)), ratio.shape))
        place = (*index[:-1], index[-1] + first_channel)
        at_worst = (np.float64(float(array[index])) for array in (output, exact, error, ratio))
        worst = _describe(name, place, fmt, *at_worst)
        if output.ndim == 3:
            diverging = xp.nonzero(xp.any(wrong, axis=(0, 2)))[0]
            step = int(diverging[0] if name == "y" else diverging[-1])
    found = OutputVerdict(
        name=name,
        elements=math.prod(output.shape),
        failed=int(xp.sum(wrong)),
        unjudged=int(xp.sum(unjudged)),
        non_finite=int(xp.sum(must_be_non_finite)),
        ratio=float(xp.max(ratio)) if math.prod(ratio.shape) else 0.0,
        worst=worst,
        first_diverging_step=step,
    )
    return found, place


def _describe(name, place, fmt, output, exact, error, ratio) -> str:
    letters = {3: "btd", 2: "bd", 1: "d"}[len(place)]
    where = ", ".join(f"{letter}={n}" for letter, n in zip(letters, place, strict=True))
    text = f"{name}[{where}] is {output:.9g}, should be {exact:.9g}"
    if not np.isfinite(exact):
        return f"{text}: a non-finite value must show"
    low, high = interval(exact, error, fmt)
    return f"{text}, between {low:.9g} and {high:.9g}: {ratio:.3g} x the bound"
