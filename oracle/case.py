"""One case: validated inputs and cotangents. One result: what an implementation made of them. No arithmetic here."""

from dataclasses import dataclass, fields, replace

import numpy as np

from oracle.arrays import Array, beside, float64, is_array, namespace, zeros
from oracle.formats import FORMATS, round_to

OUTPUTS = ("y", "h_last", "dx", "dgate_x", "dgate_a", "da_param", "dh0")
GRADIENTS = OUTPUTS[2:]
IN_CASE_DTYPE = frozenset({"y", "dx", "dgate_x", "dgate_a"})
"""Outputs in x.dtype; the others are float32."""
OUTPUT_AXES = {
    "y": "BTD",
    "h_last": "BD",
    "dx": "BTD",
    "dgate_x": "BTD",
    "dgate_a": "BTD",
    "da_param": "D",
    "dh0": "BD",
}
"""The axes of every output."""


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

    Arrays are NumPy's (lists too), or all of them tensors of torch on one device, where the oracle then computes. They
    are copied and kept as float32 (which holds all three dtypes exactly), read-only in NumPy. Any size may be 0.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, the rule and what came.
    """

    x: Array
    gate_x: Array
    gate_a: Array
    a_param: Array
    segment_pos: Array | None = None
    h0: Array | None = None
    dy: Array | None = None
    dh_last: Array | None = None
    dtype: str = "float32"

    def __post_init__(self):
        if self.dtype not in FORMATS:
            raise ValueError(f"dtype must be one of {', '.join(FORMATS)}; got {self.dtype!r}")
        x = self.x if is_array(self.x) else np.asarray(self.x)
        if x.ndim != 3:
            raise ValueError(f"x must have shape [B, T, D]; got {tuple(x.shape)}")
        sizes = dict(zip("BTD", x.shape, strict=True))
        for name, axes in AXES.items():
            value = getattr(self, name)
            if value is None and name in ("segment_pos", "h0", "dy", "dh_last"):
                continue
            array, shape = beside(name, value, x), tuple(sizes[letter] for letter in axes)
            if name == "segment_pos":
                kept = _positions(array, shape)
            else:
                kept = _floats(name, array, shape, self.dtype if axes == "BTD" else "float32")
            object.__setattr__(self, name, kept)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(B, T, D)."""
        return tuple(self.x.shape)

    @property
    def reset(self) -> Array:
        """Boolean [B, T]: where the past is selected away."""
        return zeros(self.shape[:2], self.x) != 0 if self.segment_pos is None else self.segment_pos == 0

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
    """What an implementation returned: arrays that hold its outputs exactly; None where it returned nothing."""

    y: Array | None = None
    h_last: Array | None = None
    dx: Array | None = None
    dgate_x: Array | None = None
    dgate_a: Array | None = None
    da_param: Array | None = None
    dh0: Array | None = None

    def items(self):
        """(name, array) of every output that is there."""
        pairs = ((field.name, getattr(self, field.name)) for field in fields(self))
        return [(name, array) for name, array in pairs if array is not None]


def _floats(name: str, array: Array, shape: tuple[int, ...], dtype: str) -> Array:
    xp = namespace(array)
    if not xp.isdtype(array.dtype, ("real floating", "integral")):
        raise TypeError(f"{name} must hold real numbers; got dtype {array.dtype}")
    _check_shape(name, array, shape)
    exact = float64(array)
    rounded = round_to(exact, FORMATS[dtype])
    wrong = ~((rounded == exact) | xp.isnan(exact))
    if xp.any(wrong):
        where = tuple(int(places[0]) for places in xp.nonzero(wrong))
        got = np.float64(float(exact[where]))
        raise ValueError(f"{name} must hold values of {dtype}; got {got!r} at {list(where)}")
    return _read_only(xp.astype(exact, xp.float32))


def _positions(array: Array, shape: tuple[int, ...]) -> Array:
    xp = namespace(array)
    if array.dtype not in (xp.int32, xp.int64):
        raise TypeError(f"segment_pos must be int32 or int64; got dtype {array.dtype}")
    _check_shape("segment_pos", array, shape)
    return _read_only(xp.asarray(array, copy=True))


def _check_shape(name: str, array: Array, shape: tuple[int, ...]):
    if tuple(array.shape) != shape:
        raise ValueError(f"{name} must have shape {list(shape)}; got {list(array.shape)}")


def _read_only(array: Array) -> Array:
    if isinstance(array, np.ndarray):
        array.flags.writeable = False
    return array
