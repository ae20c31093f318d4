"""What is timed: a shape, a dtype, a density of resets; the inputs drawn for it. Nothing here is timed or judged."""

import math
from dataclasses import dataclass
from fractions import Fraction

import torch

ELEMENTS = {"forward": 4, "inference": 4, "backward": 7}
"""Arrays [B, T, D] that cross memory at least once: x, gate_x, gate_a and y; the three, dy and three gradients."""
KINDS = tuple(ELEMENTS)
"""forward: through autograd, what backward needs saved. inference: under no_grad. backward: autograd.grad alone."""
CACHE_FILLS = 4
"""Sets of inputs are as many as fill the L2 cache so many times: a call finds nothing of its own there."""
MOST_SETS = 256
LONG = (
    (1, 8192, 2560),
    (1, 32768, 2560),
    (8, 8192, 2560),
    (32, 2048, 2560),
    (64, 1024, 4096),
    (1, 131072, 1024),
)
"""From few chains and many steps to many and few: what the project's figures are made at."""
SWEPT = 2**30
"""Elements B T D of a shape of the sweep at most: x, both logits and dy take 8 GiB in bfloat16."""
SWEEP = tuple((rows, 2**k, 2560) for rows in (1, 8, 32) for k in range(9, 18) if rows * 2**k * 2560 <= SWEPT)
"""T from 512 to 131072 for three B D: what is plotted."""
SHAPES = {"long": LONG, "sweep": SWEEP}
A_PARAM = (-9.0, -4.3)
"""Decays at initialisation, a in 0.9 .. 0.999 with an open gate (Griffin, arXiv 2402.19427, section 2.4)."""


@dataclass(frozen=True)
class Setting:
    """Shape [B, T, D], dtype of x and the probability of a reset at a step (0: segment_pos is None)."""

    shape: tuple[int, int, int]
    dtype: str
    resets: Fraction

    def bytes(self, kind: str) -> int:
        """Bytes that a call of `kind` must move at least."""
        return ELEMENTS[kind] * self.array_bytes

    @property
    def array_bytes(self) -> int:
        """Bytes of one array [B, T, D]."""
        return math.prod(self.shape) * getattr(torch, self.dtype).itemsize

    def sets(self, cache_bytes: int) -> int:
        """How many sets of inputs the calls rotate among; a set is x, gate_x and gate_a."""
        wanted = math.ceil(CACHE_FILLS * cache_bytes / (3 * self.array_bytes))
        return min(max(2, wanted), MOST_SETS)

    def __str__(self) -> str:
        resets = f"resets {self.resets}" if self.resets else "no resets"
        return f"({', '.join(map(str, self.shape))}) {self.dtype}, {resets}"


@dataclass(frozen=True, eq=False)
class Inputs:
    """One set: the differentiable inputs as leaves, segment_pos int64 or None, the cotangent dy."""

    x: torch.Tensor
    gate_x: torch.Tensor
    gate_a: torch.Tensor
    a_param: torch.Tensor
    segment_pos: torch.Tensor | None
    dy: torch.Tensor

    @property
    def leaves(self) -> tuple:
        return self.x, self.gate_x, self.gate_a, self.a_param


def draw(setting: Setting, device: str, seed: int) -> Inputs:
    """Normal x, logits and dy, decays as at initialisation, documents of random length."""
    generator = torch.Generator(device).manual_seed(seed)
    batch, steps, width = setting.shape

    def normal():
        values = torch.randn(setting.shape, generator=generator, device=device)
        return values.to(getattr(torch, setting.dtype))

    low, high = A_PARAM
    x, gate_x, gate_a = normal(), normal(), normal()
    a_param = low + (high - low) * torch.rand(width, generator=generator, device=device)
    segment_pos = None
    if setting.resets:
        starts = torch.rand((batch, steps), generator=generator, device=device) < float(setting.resets)
        step = torch.arange(steps, device=device).expand(batch, steps)
        segment_pos = step - torch.where(starts, step, 0).cummax(1).values
    for leaf in (x, gate_x, gate_a, a_param):
        leaf.requires_grad_()
    return Inputs(x, gate_x, gate_a, a_param, segment_pos, normal())


def shape(text: str) -> tuple[int, int, int]:
    """B,T,D from the command line."""
    try:
        batch, steps, width = (int(size) for size in text.split(","))
    except ValueError:
        raise ValueError(f"a shape is three whole numbers B,T,D, as in 32,2048,2560; got {text!r}") from None
    if min(batch, steps, width) < 1:
        raise ValueError(f"the sizes of a shape must be at least 1; got {text!r}")
    return batch, steps, width


def density(text: str) -> Fraction:
    """A probability from the command line, as a fraction or a decimal number."""
    try:
        value = Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"a density of resets is a number or a fraction, as in 1/512; got {text!r}") from None
    if not 0 <= value <= 1:
        raise ValueError(f"a density of resets must lie between 0 and 1; got {text!r}")
    return value
