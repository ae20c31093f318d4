"""One subject in one setting: what it cannot do, its times and memory, the verdict on what it computed."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from kernels.bench.clock import Timing, TooSlow, bandwidth, first_line
from kernels.bench.judging import Judge
from kernels.bench.setting import KINDS, Inputs, Setting
from kernels.subjects import Subject
from kernels.subjects.run import NoAnswer, time_limit
from oracle import GRADIENTS, Verdict

SKIPPED = "skipped"
PLAUSIBLE = 2.0
"""Times the bandwidth of a copy beyond which a call did its work where the clock does not look."""
JUDGED_GRADIENTS = GRADIENTS[:4]
"""Gradients of the leaves, in their order: dx, dgate_x, dgate_a, da_param."""


class DeviceLost(RuntimeError):
    """The device answers no longer: nothing more can be measured in this process."""


@dataclass(frozen=True)
class Measurement:
    """Times of one kind of call, and bytes allocated at most beyond inputs and results; or why there are none."""

    timing: Timing | None = None
    extra_bytes: int | None = None
    reason: str | None = None


@dataclass
class Row:
    """A subject in a setting. `reason`: why it was not run at all. `failed`: it raised."""

    name: str
    grade: str
    profile: str
    versions: dict[str, str] = field(default_factory=dict)
    reason: str | None = None
    failed: bool = False
    measurements: dict[str, Measurement] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)  # "training": outputs and gradients; "inference"
    wrong: str | None = None  # the verdict's worst element, or the rule that was broken

    @property
    def ranked(self) -> bool:
        """Whether it may be compared: something of it was timed, and all of it that was judged is right."""
        timed = any(measurement.timing for measurement in self.measurements.values())
        return timed and self.right

    @property
    def right(self) -> bool:
        """Whether something of it was judged, and nothing of it is wrong."""
        judged = bool(self.verdicts) and all(verdict.holds for verdict in self.verdicts.values())
        return judged and self.wrong is None

    @property
    def ratio(self) -> float:
        """The worst ratio to its bound of anything judged."""
        return max((verdict.ratio for verdict in self.verdicts.values()), default=0.0)

    @property
    def order(self) -> tuple:
        """Sorts rows: the fastest right one first, right but incomplete ones, wrong ones, those not run."""
        timings = [self.measurements[kind].timing for kind in ("forward", "backward") if kind in self.measurements]
        complete = len(timings) == 2 and all(timings)
        group = (0 if complete else 1) if self.ranked else 2 if self.wrong else 3
        return group, sum(timing.ms for timing in timings if timing)


def unable(subject: Subject, setting: Setting) -> str | None:
    """What `setting` asks for that the subject does not promise, or None."""
    _, steps, width = setting.shape
    reasons = {
        "it knows no resets": bool(setting.resets) and not subject.resets,
        f"it does not take {setting.dtype}": setting.dtype not in subject.dtypes,
        f"its width must be a multiple of {subject.width_multiple}": width % subject.width_multiple != 0,
        f"it needs at least {subject.min_length} steps": steps < subject.min_length,
    }
    return next((f"not comparable: {what}" for what, missing in reasons.items() if missing), None)


def measure(
    subject: Subject,
    setting: Setting,
    sets: Sequence[Inputs],
    clock,
    judge: Judge,
    *,
    repeats: int,
    budget: float,
    warm_up: float,
    copy: float,
) -> Row:
    """Time and judge `subject` on `sets` of inputs, the first of which `judge` knows; a copy moves `copy` GB/s.

    The calls that are timed may take `budget` seconds for each number, the first calls, which compile, `warm_up`. A
    subject that exceeds either in one kind of call is not asked for the kinds that follow.

    Raises
    ------
    DeviceLost
        Where the device answers no longer; its `row` tells what was measured before.
    """
    row = Row(subject.name, subject.grade, subject.profile.name, versions=dict(subject.versions()))
    row.reason = unable(subject, setting)
    if row.reason:
        return row
    promised_h_last = getattr(subject, "h_last", True)
    # a subject that runs in a process of its own offers its function for timing in this one
    session = _Session(getattr(subject, "direct", None) or subject.function, sets, clock, promised_h_last, warm_up)
    seen: dict[str, dict[str, np.ndarray]] = {"training": {}, "inference": {}}
    for kind in KINDS:
        if kind == "backward" and not subject.backward:
            row.measurements[kind] = Measurement(reason="it has no backward")
            continue
        slow = next((k for k, m in row.measurements.items() if m.reason and m.reason.startswith(SKIPPED)), None)
        if slow:
            row.measurements[kind] = Measurement(reason=f"{SKIPPED}, as its {slow} takes too long")
            continue
        try:
            outputs, extra, calls = getattr(session, kind)()
            seen["inference" if kind == "inference" else "training"].update(judge.cut(outputs))
            outputs = None  # its graph may hold many arrays
            timing = clock.time(calls, repeats, budget)
            speed = bandwidth(timing, setting.bytes(kind))
            if speed > PLAUSIBLE * copy:
                raise RuntimeError(
                    f"{speed:.0f} GB/s where a copy moves {copy:.0f}: its work is not on the timed stream"
                )
            row.measurements[kind] = Measurement(timing, extra)
        except (TooSlow, NoAnswer) as error:
            row.measurements[kind] = Measurement(reason=f"{SKIPPED}: {error}")
        except BrokenRule as error:
            row.wrong = str(error)
            row.measurements[kind] = Measurement(reason=f"wrong: {error}")
        except Exception as error:
            row.failed = True
            row.measurements[kind] = Measurement(reason=f"failed with {first_line(error)}")
            try:
                clock.finish()
            except Exception as lost:
                broken = DeviceLost(f"the device was lost in {kind} of {subject.name} ({first_line(lost)})")
                broken.row = row  # type: ignore[attr-defined]
                raise broken from error
        finally:
            outputs = calls = None
            session.drop()
    if not promised_h_last:
        for outputs in seen.values():
            outputs.pop("h_last", None)
    _judge(row, subject, judge, seen)
    return row


def _judge(row: Row, subject: Subject, judge: Judge, seen):
    for name, outputs in seen.items():
        if not outputs:
            continue
        if name == "inference" and all(_same(outputs[n], seen["training"].get(n)) for n in outputs):
            continue  # the same bits: the same verdict
        try:
            verdict = judge.verdict(subject, outputs)
        except ValueError as error:  # a wrong shape
            row.wrong = str(error)
            continue
        row.verdicts[name] = verdict
        worst = max(verdict.outputs, key=lambda output: output.ratio)
        if verdict.deviates and row.wrong is None:
            row.wrong = f"{worst.worst}{' (under no_grad)' if name == 'inference' else ''}"


def _same(left: np.ndarray, right: np.ndarray | None) -> bool:
    return right is not None and left.shape == right.shape and np.array_equal(left, right)


class BrokenRule(Exception):
    """An output that no oracle is needed to see wrong."""


class _Session:
    """Sets up the three kinds of calls: (outputs of one for the first set, its extra bytes, warm calls to time)."""

    def __init__(self, function: Callable, sets: Sequence[Inputs], clock, h_last: bool, warm_up: float):
        self.function, self.sets, self.clock, self.h_last = function, sets, clock, h_last
        # no Exception, or torch.compile would report it as its own
        self.limit = partial(time_limit, warm_up, NoAnswer(f"its first calls take more than {warm_up:g} s"))
        self.alive: list = []

    def drop(self):
        """Forget graphs that backward kept."""
        self.alive.clear()
        with contextlib.suppress(RuntimeError):  # a lost device has been noticed already
            self.clock.release()

    def forward(self):
        return self._forward(with_grad=True)

    def inference(self):
        return self._forward(with_grad=False)

    def backward(self):
        with self.limit():
            self.alive += [self._call(inputs)[0] for inputs in self.sets]
            self._grad(self.alive[0], self.sets[0])
            self.clock.finish()
            gradients, extra = self.clock.peak(lambda: self._grad(self.alive[0], self.sets[0]))
        for leaf, gradient in zip(self.sets[0].leaves, gradients, strict=True):
            if gradient.shape != leaf.shape or gradient.dtype != leaf.dtype:
                raise BrokenRule(f"a gradient is {gradient.dtype} {list(gradient.shape)}, its input is not")
        outputs = dict(zip(JUDGED_GRADIENTS, gradients, strict=True))
        calls = [partial(self._grad, y, inputs) for y, inputs in zip(self.alive, self.sets, strict=True)]
        return outputs, extra - _nbytes(gradients), calls

    def _forward(self, *, with_grad: bool):
        def call(inputs):
            with torch.set_grad_enabled(with_grad):
                return self._call(inputs)

        with self.limit():
            call(self.sets[0])
            self.clock.finish()
            (y, h_last), extra = self.clock.peak(lambda: call(self.sets[0]))
        x = self.sets[0].x
        if y.shape != x.shape or y.dtype != x.dtype:
            raise BrokenRule(f"y must be {x.dtype} {list(x.shape)}; got {y.dtype} {list(y.shape)}")
        outputs = {"y": y, "h_last": h_last}
        outputs = {name: tensor for name, tensor in outputs.items() if tensor is not None}
        if self.h_last and h_last is None:
            raise BrokenRule("h_last is None, which the subject does not declare")
        return outputs, extra - _nbytes(outputs.values()), [partial(call, inputs) for inputs in self.sets]

    def _call(self, inputs: Inputs):
        return self.function(*inputs.leaves, segment_pos=inputs.segment_pos, h0=None)

    def _grad(self, y, inputs: Inputs):
        return torch.autograd.grad(y, inputs.leaves, inputs.dy, retain_graph=True)


def _nbytes(tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
