"""Edits of a case that must not change some of its outputs."""

import numpy as np

from oracle import Case
from oracle.case import AXES

POISONS = ("other", "nan", "inf")
"""What values that must not matter are replaced by: other finite ones, NaN, infinity."""
TOKENS = ("x", "gate_x", "gate_a")


def poison(case: Case, kind: str, names, *, rows=None, steps=None, channels=None) -> Case:
    """The case with elements of the arrays `names` replaced where the boolean masks given for axes all hold."""
    masks = {"B": rows, "T": steps, "D": channels}
    changes = {}
    for name in names:
        array = getattr(case, name)
        if array is None:
            continue
        mask = np.ones(array.shape, bool)
        for axis, letter in enumerate(AXES[name]):
            if masks[letter] is not None:
                shape = [1] * array.ndim
                shape[axis] = -1
                mask &= np.reshape(masks[letter], shape)
        replacement = -array if kind == "other" else np.full_like(array, {"nan": np.nan, "inf": np.inf}[kind])
        changes[name] = np.where(mask, replacement, array)
    return case.replace(**changes)


def with_reset(case: Case, step: int) -> Case:
    """The case with a reset in every row at `step`."""
    positions = np.ones(case.shape[:2], np.int64) if case.segment_pos is None else np.array(case.segment_pos)
    positions[:, step] = 0
    return case.replace(segment_pos=positions)


def all_but(size: int, kept) -> np.ndarray:
    """Boolean mask of `size`, false at `kept`."""
    mask = np.ones(size, bool)
    mask[kept] = False
    return mask
