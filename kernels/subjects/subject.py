"""What an implementation under test declares of itself."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from oracle import DEFAULT, Profile

DTYPES = ("float32", "bfloat16", "float16")
AXES = ("B", "T", "D", "strides")
UNDECLARED = replace(DEFAULT, da_param_additions=lambda batch, steps: max(batch * steps - 1, 0))
"""Of a subject that declares nothing: no order adds to a term of da_param more often than one term after another."""
_HASH = r"(?<=\b[0-9a-f]{12})[0-9a-f]{28}\b"


@dataclass(frozen=True)
class Deviation:
    """A known deviation of somebody else's kernel: the named test must go on failing, for this reason."""

    test: str
    reason: str


@dataclass(frozen=True)
class Subject:
    """An RG-LRU implementation and its promises.

    Parameters
    ----------
    function : callable
        f(x, gate_x, gate_a, a_param, *, segment_pos=None, h0=None) -> (y, h_last) on torch tensors, differentiable by
        autograd (shapes and dtypes as in `kernels.rglru`).
    name : str
        How it is called in reports, and the argument of --subject that loads it.
    resets, h0, h_last, backward : bool
        Whether it knows segment_pos, an initial state, the last state in float32 (else it may return None for it),
        gradients.
    dtypes : tuple of str
        Dtypes of x that it takes.
    width_multiple, min_length : int
        Widths D it takes, and the shortest T (0: empty inputs of every kind too).
    grade, profile
        The grade it is judged in unless --grade says otherwise, and its arithmetic (`oracle.bounds`).
    bitwise : set of str
        Changes that leave its bits alone: other B, T (a longer sequence has the same prefix), D, or "strides". At
        unchanged shapes and strides every subject is held to equal bits.
    split : int, optional
        Calls split at multiples of this, the state handed on, give the bits of one call (forward).
    tiles : tuple of int
        Numbers of steps it treats together: lengths around their multiples are drawn often.
    program : tuple of int, optional
        Steps and channels that one program of its kernels takes, where they run in Triton's interpreter without a GPU:
        that takes a fraction of a second for any part of a program, so cases of few programs are drawn there. Of
        programs that walk through time: a tile of theirs.
    deviations : tuple of Deviation
        The ledger, in the subject's own grade.
    versions : callable, optional
        () -> dict of what it was made of, for reports.
    direct : callable, optional
        Where `function` runs in another process: the same in this one, for timing.
    """

    function: Callable
    name: str
    resets: bool = True
    h0: bool = True
    h_last: bool = True
    backward: bool = True
    dtypes: tuple[str, ...] = DTYPES
    width_multiple: int = 1
    min_length: int = 0
    grade: str = "accurate"
    profile: Profile = UNDECLARED
    bitwise: frozenset[str] = frozenset()
    split: int | None = None
    tiles: tuple[int, ...] = (8, 16, 64)
    program: tuple[int, int] | None = None
    deviations: tuple[Deviation, ...] = ()
    versions: Callable[[], dict[str, str]] = field(default=dict)
    direct: Callable | None = None

    @property
    def title(self) -> str:
        """Its name and what it was made of, as reports show it; hashes are cut to 12 digits."""
        made_of = ", ".join(f"{name} {version}" for name, version in self.versions().items())
        return f"{self.name} ({re.sub(_HASH, '', made_of)})" if made_of else self.name

    def __post_init__(self):
        for name in self.dtypes:
            if name not in DTYPES:
                raise ValueError(f"dtypes must be among {', '.join(DTYPES)}; got {name!r}")
        for name in self.bitwise:
            if name not in AXES:
                raise ValueError(f"bitwise must be among {', '.join(AXES)}; got {name!r}")
        if self.program is not None and min(self.program) < 1:
            raise ValueError(f"program must be positive numbers of steps and channels; got {self.program!r}")
