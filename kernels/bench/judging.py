"""Judges full-size outputs by some of their rows and channels, for which the float64 oracle takes seconds.

Channels are independent and rows are, but for da_param, which sums over rows: it is judged where all rows are taken.
"""

from dataclasses import dataclass, field

import numpy as np
import torch

from kernels.bench.setting import Inputs, Setting
from kernels.subjects import Subject
from oracle import Case, Reference, Result, Verdict, judge, solve

JUDGED = 2**20
"""Elements that are judged at most, but for one row of one channel: about 5 s of the float64 oracle."""
AXES = {"y": "BTD", "h_last": "BD", "dx": "BTD", "dgate_x": "BTD", "dgate_a": "BTD", "da_param": "D"}


@dataclass(frozen=True)
class Part:
    """Rows and channels that are judged, in ascending order: the first, the last, and others drawn."""

    rows: np.ndarray
    channels: np.ndarray

    @classmethod
    def of(cls, shape: tuple[int, int, int], judged: int = JUDGED) -> "Part":
        """All rows where there is room for them in one channel, then as many channels as there is room for."""
        batch, steps, width = shape
        generator = np.random.default_rng(0)
        rows = max(1, min(batch, judged // steps))
        channels = max(1, min(width, judged // (rows * steps)))
        return cls(_some(batch, rows, generator), _some(width, channels, generator))

    def cut(self, tensor, axes: str) -> np.ndarray:
        """The part of a tensor with these axes, as float64 on the host."""
        for axis, letter in enumerate(axes):
            chosen = {"B": self.rows, "D": self.channels}.get(letter)
            if chosen is not None:
                tensor = tensor.index_select(axis, torch.from_numpy(chosen).to(tensor.device))
        return tensor.detach().double().cpu().numpy()


def _some(size: int, count: int, generator) -> np.ndarray:
    """`count` of range(size), both ends among them where there is room."""
    ends = [0, size - 1][: min(count, size)]
    inner = generator.permutation(np.arange(1, max(1, size - 1)))[: count - len(ends)]
    return np.unique(np.concatenate([np.array(ends, np.int64), inner.astype(np.int64)]))


@dataclass
class Judge:
    """Judges outputs for one set of inputs; the reference is computed once for all subjects."""

    setting: Setting
    inputs: Inputs
    judged: int = JUDGED
    part: Part = field(init=False)
    case: Case = field(init=False)
    _reference: Reference | None = field(init=False, default=None)

    def __post_init__(self):
        self.part = part = Part.of(self.setting.shape, self.judged)
        inputs, positions = self.inputs, self.inputs.segment_pos
        self.case = Case(
            **{name: part.cut(getattr(inputs, name), "BTD") for name in ("x", "gate_x", "gate_a", "dy")},
            a_param=part.cut(inputs.a_param, "D"),
            segment_pos=None if positions is None else part.cut(positions, "B").astype(np.int64),
            dtype=self.setting.dtype,
        )

    @property
    def reference(self) -> Reference:
        if self._reference is None:
            self._reference = solve(self.case)
        return self._reference

    def cut(self, outputs: dict) -> dict[str, np.ndarray]:
        """The judged part of full-size outputs by name; da_param only where all rows are judged."""
        whole = len(self.part.rows) == self.setting.shape[0]
        return {n: self.part.cut(t, AXES[n]) for n, t in outputs.items() if n != "da_param" or whole}

    def verdict(self, subject: Subject, outputs: dict[str, np.ndarray]) -> Verdict:
        """On outputs that `cut` returned, in the subject's own grade and profile."""
        return judge(
            self.case,
            Result(**outputs),
            profile=subject.profile,
            grade=subject.grade,
            reference=self.reference,
        )
