"""Simpler examples: what may be taken from a case and the params of its clause. Nothing here runs a subject.

An example is (case, params). A reduction is a generator: it yields an example that is strictly simpler than the one at
hand, the simplest first, is sent whether that one still fails, and goes on from it if so.
"""

from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np

from oracle import Case
from oracle.case import AXES
from oracle.formats import FORMATS, round_to

Example = tuple[Case, dict[str, Any]]
Reduction = Generator[Example, bool, None]
LETTERS = "TBD"
SIZES = {"B": 0, "T": 1, "D": 2}
POINTS = {"T": ("cuts", "starts"), "B": (), "D": ()}
"""Params that lie between steps."""
PLACES = {"T": ("step", "place"), "B": ("row",), "D": ("channel",)}
"""Params that name a step, row or channel."""
SELECTIONS = {"T": (), "B": ("rows",), "D": ("channels",)}
"""Params that list rows or channels."""
MANTISSAS = (1, 2, 4, 8, 12, 16)
"""Bits to which values are shortened."""


# ------------------------------------------------------------------------------------------------------ fewer


def without(example: Example, letter: str, gone: range, *, move_resets: bool = False) -> Example | None:
    """The example without some rows ("B"), steps ("T") or channels ("D"), params adapted; None where none is left.

    With `move_resets` a reset that goes is handed on to the next step that stays.
    """
    case, params = example
    kept = [n for n in range(case.shape[SIZES[letter]]) if n not in gone]
    changed = dict(params)

    def before(point: int) -> int:
        return sum(n < point for n in kept)

    for name in set(POINTS[letter]) & set(params):
        changed[name] = sorted({before(point) for point in params[name]})
    for name in set(PLACES[letter]) & set(params):
        place = params[name] if name != "place" else params[name][1]
        there = min(before(place), len(kept) - 1)
        if there < 0:
            return None
        changed[name] = there if name != "place" else (params[name][0], there)
    for name in set(SELECTIONS[letter]) & set(params):
        changed[name] = [before(n) for n in params[name] if n in kept]
        if not changed[name]:
            return None
    if letter == "T" and "steps" in params:
        changed["steps"] = max(before(params["steps"]), 1)
    smaller = case.take(**{{"B": "rows", "T": "steps", "D": "channels"}[letter]: np.array(kept, int)})
    if move_resets and case.segment_pos is not None:
        positions = np.array(smaller.segment_pos)
        at = before(gone.stop)
        if at < len(kept):
            positions[case.reset[:, gone.start : gone.stop].any(1), at] = 0
        smaller = smaller.replace(segment_pos=positions)
    return smaller, changed


def fewer(example: Example) -> Reduction:
    """Without steps, rows and channels: all, powers of two, and at last single ones, from the end.

    Powers of two, because so are tiles: a length keeps its place between their borders.
    """
    for letter in LETTERS:
        size = example[0].shape[SIZES[letter]]
        powers = [2**power for power in range(size.bit_length() - 1, -1, -1)]
        for block in (size, *powers) if size else ():
            start = example[0].shape[SIZES[letter]] - block
            while start >= 0:
                for move in (False, True) if letter == "T" else (False,):
                    smaller = without(example, letter, range(start, start + block), move_resets=move)
                    if smaller is not None and (yield smaller):
                        example = smaller
                        break
                start -= block


def one_fewer(example: Example) -> Iterator[tuple[str, Example]]:
    """(what is left out, the example without it) for every row, step, channel, and unit of a `size`."""
    for letter, what in zip(LETTERS, ("step", "row", "channel"), strict=True):
        for n in range(example[0].shape[SIZES[letter]]):
            smaller = without(example, letter, range(n, n + 1))
            if smaller is not None:
                yield f"{what} {n}", smaller
    for n, what in enumerate(("row", "step", "channel") if "size" in example[1] else ()):
        size = list(example[1]["size"])
        if size[n]:
            size[n] -= 1
            yield f"{what} of the size", (example[0], example[1] | {"size": size})


def absent(example: Example) -> Reduction:
    """Without segment_pos, h0 or a cotangent; in float32."""
    for name in ("segment_pos", "h0", "dy", "dh_last"):
        case, params = example
        if getattr(case, name) is not None:
            changed = dict(params)
            for listing in set(params) & {"requires_grad", "layouts"}:
                changed[listing] = [item for item in params[listing] if name not in (item, item[0])]
            simpler = case.replace(**{name: None}), changed
            if (yield simpler):
                example = simpler
    case, params = example
    if case.dtype != "float32":
        yield case.replace(dtype="float32"), params


# ---------------------------------------------------------------------------------------------- simpler params


def simpler_params(example: Example) -> Reduction:
    """Shorter lists, smaller sizes and numbers, False for True."""
    case, params = example
    for name in params:
        tried = 0
        while tried < len(proposals := _simplifications(name, params[name])):
            simpler = params | {name: proposals[tried]}
            if (yield case, simpler):
                params, tried = simpler, 0
            else:
                tried += 1


def _simplifications(name: str, value) -> list:
    if name == "size":
        return [[*value[:n], less, *value[n + 1 :]] for n, count in enumerate(value) for less in _below(count)]
    if isinstance(value, list):
        return [[*value[:n], *value[n + 1 :]] for n in range(len(value))]
    if name == "place":
        return [(value[0], less) for less in _below(value[1])]
    if name in ("step", "row", "channel", "steps"):
        return list(_below(value))
    return [False] if value is True else []


def _below(count: int) -> list[int]:
    """Some smaller numbers, the smallest first."""
    return sorted({0, 1, 2, count // 2, count - 2, count - 1} & set(range(count)))


# ---------------------------------------------------------------------------------------------- simpler values


def rank(values: np.ndarray) -> np.ndarray:
    """How far from simple each value is: 0, then 1, then -1, powers of two, and by the length of the mantissa."""
    with np.errstate(all="ignore"):
        mantissa, _ = np.frexp(np.where(np.isfinite(values), values, 1.0).astype(np.float64))
    bits = np.ones(values.shape, int)
    for length in range(1, 25):
        bits = np.where(mantissa * 2.0**length != np.floor(mantissa * 2.0**length), length + 1, bits)
    ranks = np.where(np.isfinite(values), 3 + bits, 40)
    for simple, place in ((-1.0, 3), (1.0, 2), (0.0, 1)):
        ranks = np.where(values == simple, place, ranks)
    return np.where((values == 0) & ~np.signbit(values), 0, ranks)


def shortened(bits: int) -> Callable[[np.ndarray], np.ndarray]:
    """Rounding to a mantissa of so many bits."""

    def shorten(values):
        mantissa, exponent = np.frexp(values.astype(np.float64))
        return np.ldexp(np.round(mantissa * 2.0**bits) / 2.0**bits, exponent)

    return shorten


VALUES: tuple[Callable[[np.ndarray], np.ndarray], ...] = (np.zeros_like, np.ones_like, lambda v: np.copysign(1.0, v))
VALUES += tuple(shortened(bits) for bits in MANTISSAS)


def simpler_values(example: Example) -> Reduction:
    """Zeros, ones, powers of two and short mantissas, and no resets: in whole arrays, in halves, ... in one element."""
    case, params = example
    for name in ("segment_pos", "h0", "dh_last", "dy", "gate_a", "gate_x", "a_param", "x"):
        block = 0 if getattr(case, name) is None else getattr(case, name).size
        while block:
            for start in range(0, getattr(case, name).size, block):
                for changed in _simplified(name, getattr(case, name), slice(start, start + block), case.dtype):
                    simpler = case.replace(**{name: changed})
                    if (yield simpler, params):
                        case = simpler
                        break
            block //= 2


def _simplified(name: str, array: np.ndarray, part: slice, dtype: str) -> Iterator[np.ndarray]:
    flat = array.reshape(-1)
    values = flat[part]
    if name == "segment_pos":
        proposals = [np.ones_like(values), np.where(values == 0, 0, 1).astype(values.dtype)]
        ranks = [np.where(v == 1, 0, np.where(v == 0, 1, 2)) for v in (values, *proposals)]
    else:
        fmt = FORMATS[dtype if AXES[name] == "BTD" else "float32"]
        with np.errstate(all="ignore"):
            proposals = [round_to(np.asarray(simplify(values), np.float64), fmt) for simplify in VALUES]
        ranks = [rank(v) for v in (values, *proposals)]
    for proposal, its_rank in zip(proposals, ranks[1:], strict=True):
        simpler = its_rank < ranks[0]
        if simpler.any():
            changed = flat.copy()
            changed[part] = np.where(simpler, proposal, values)
            yield changed.reshape(array.shape)
