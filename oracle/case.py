"""One case: validated inputs and cotangents. One result: what an implementation made of them. No arithmetic here."""

from dataclasses import dataclass, fields, replace

import numpy as np

from oracle.formats import FORMATS, round_to

OUTPUTS = ("y", "h_last", "dx", "dgate_x", "dgate_a", "da_param", "dh0")
GRADIENTS = OUTPUTS[2:]
IN_CASE_DTYPE = frozenset({"y", "dx", "dgate_x", "dgate_a"})
"""Outputs in x.dtype; the others are float32."""


@dataclass(frozen=True, eq=False)
class Case:
    """Inputs and cotangents of one RG-LRU call (oracle/SEMANTICS.md).

    Parameters
    ----------
    x, gate_x, gate_a : array [B, T, D]
        Recurrent input, input-gate logits, recurrence-gate logits; every value representable in `dtype`.
    a_param : array [D]
        Decay parameter before softplus, float32 values.
    segment_pos : int32 or int64 array [B, T], optional
        Position in the document; a reset is where it is 0. None: no reset anywhere.
    h0 : array [B, D], optional
        State before the first token, float32 values. None: zeros.
    dy : array [B, T, D], optional
        Cotangent of y, values of `dtype`. None: y is not used.
    dh_last : array [B, D], optional
        Cotangent of h_last, float32 values. None: h_last is not used.
    dtype : str
        "float32", "bfloat16" or "float16": the dtype of x, gate_x, gate_a and dy.

    Arrays are kept as read-only float32 (which holds all three dtypes exactly). Any size may be 0.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, the rule and what came.
    """

    x: np.ndarray
    gate_x: np.ndarray
    gate_a: np.ndarray
    a_param: np.ndarray
    segment_pos: np.ndarray | None = None
    h0: np.ndarray | None = None
    dy: np.ndarray | None = None
    dh_last: np.ndarray | None = None
    dtype: str = "float32"

    def __post_init__(self):
        if self.dtype not in FORMATS:
            raise ValueError(f"dtype must be one of {', '.join(FORMATS)}; got {self.dtype!r}")
        x = np.asarray(self.x)
        if x.ndim != 3:
            raise ValueError(f"x must have shape [B, T, D]; got {x.shape}")
        batch, steps, width = x.shape
        for name, shape in {
            "x": x.shape,
            "gate_x": x.shape,
            "gate_a": x.shape,
            "a_param": (width,),
            "h0": (batch, width),
            "dy": x.shape,
            "dh_last": (batch, width),
        }.items():
            value = getattr(self, name)
            if value is None and name in ("h0", "dy", "dh_last"):
                continue
            in_dtype = name in ("x", "gate_x", "gate_a", "dy")
            object.__setattr__(self, name, _floats(name, value, shape, self.dtype if in_dtype else "float32"))
        if self.segment_pos is not None:
            object.__setattr__(self, "segment_pos", _positions(self.segment_pos, (batch, steps)))

    @property
    def shape(self) -> tuple[int, int, int]:
        """(B, T, D)."""
        return self.x.shape

    @property
    def reset(self) -> np.ndarray:
        """Boolean [B, T]: where the past is selected away."""
        return np.zeros(self.shape[:2], bool) if self.segment_pos is None else self.segment_pos == 0

    @property
    def has_cotangents(self) -> bool:
        return self.dy is not None or self.dh_last is not None

    def replace(self, **changes) -> "Case":
        """The same case with some arrays exchanged."""
        return replace(self, **changes)

    def take(self, *, rows=slice(None), steps=slice(None), channels=slice(None)) -> "Case":
        """The part of every array that belongs to some rows, steps and channels (slices or index arrays)."""
        index = {"B": rows, "T": steps, "D": channels}

        def cut(name):
            array = getattr(self, name)
            if array is None:
                return None
            for axis, letter in enumerate(AXES[name]):
                array = array[(slice(None),) * axis + (index[letter],)]
            return array

        return Case(**{name: cut(name) for name in AXES}, dtype=self.dtype)


AXES = {
    "x": "BTD",
    "gate_x": "BTD",
    "gate_a": "BTD",
    "a_param": "D",
    "segment_pos": "BT",
    "h0": "BD",
    "dy": "BTD",
    "dh_last": "BD",
}
"""The axes of every array of a case."""


@dataclass(frozen=True, eq=False)
class Result:
    """What an implementation returned: float64 arrays that hold its outputs exactly; None where it returned nothing."""

    y: np.ndarray | None = None
    h_last: np.ndarray | None = None
    dx: np.ndarray | None = None
    dgate_x: np.ndarray | None = None
    dgate_a: np.ndarray | None = None
    da_param: np.ndarray | None = None
    dh0: np.ndarray | None = None

    def items(self):
        """(name, array) of every output that is there."""
        pairs = ((field.name, getattr(self, field.name)) for field in fields(self))
        return [(name, array) for name, array in pairs if array is not None]


def _floats(name: str, value, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{name} must hold real numbers; got dtype {array.dtype}")
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {list(shape)}; got {list(array.shape)}")
    exact = array.astype(np.float64)
    rounded = round_to(exact, FORMATS[dtype])
    wrong = ~((rounded == exact) | np.isnan(exact))
    if wrong.any():
        where = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise ValueError(f"{name} must hold values of {dtype}; got {exact[where]!r} at {list(where)}")
    stored = exact.astype(np.float32)
    stored.flags.writeable = False
    return stored


def _positions(value, shape: tuple[int, int]) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype not in (np.int32, np.int64):
        raise TypeError(f"segment_pos must be int32 or int64; got dtype {array.dtype}")
    if array.shape != shape:
        raise ValueError(f"segment_pos must have shape {list(shape)}; got {list(array.shape)}")
    array = array.copy()
    array.flags.writeable = False
    return array
