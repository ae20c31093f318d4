"""Seeded cases for the oracle's own tests: the same seed and kind give the same case on every machine with one NumPy.

The properties of kernels have their own strategies; nothing here depends on Hypothesis.
"""

from collections.abc import Iterator

import numpy as np

from oracle.case import Case
from oracle.formats import FORMATS, round_to

DTYPES = tuple(FORMATS)
FINITE_KINDS = ("realistic", "adversarial", "extreme", "clipped", "single", "all_reset")


def cases(
    count: int, *, kinds=FINITE_KINDS, elements: int = 40, dtype: str | None = None, first_seed: int = 0
) -> Iterator[Case]:
    """`count` cases of at most `elements` elements, the kinds in turn, with seeds from `first_seed` on."""
    for seed in range(first_seed, first_seed + count):
        yield case(seed, kinds[seed % len(kinds)], elements=elements, dtype=dtype)


def case(seed: int, kind: str, *, elements: int = 40, dtype: str | None = None) -> Case:
    """The case of a seed.

    Parameters
    ----------
    kind
        realistic: decays of 0.9 to 0.999, normal data. adversarial: scales, logits and densities of resets drawn far
        apart. extreme: saturated gates, |a_param| up to 100, zeros, subnormals, huge x. clipped: a_param in -22..-17,
        where the slope bound acts. single: one token. all_reset. empty: one size is 0. non_finite: an adversarial
        case with a few NaN and infinities.
    elements
        Most elements B T D.
    dtype
        None draws one.
    """
    rng = np.random.default_rng([seed, *kind.encode()])
    dtype = DTYPES[rng.integers(3)] if dtype is None else dtype
    batch, width = int(rng.integers(1, 4)), int(rng.integers(1, 5))
    steps = 1 if kind == "single" else int(rng.integers(1, max(1, elements // (batch * width)) + 1))
    shape = [batch, steps, width]
    if kind == "empty":
        shape[rng.integers(3)] = 0
    maker = {"realistic": _realistic, "extreme": _extreme, "clipped": _clipped}.get(kind, _adversarial)
    arrays = maker(rng, tuple(shape), dtype)
    if kind == "all_reset":
        arrays["reset"] = np.ones_like(arrays["reset"])
    if kind == "non_finite":
        _spoil(rng, arrays)
    return _build(rng, arrays, dtype)


def ordinary(seed: int, *, dtype: str = "float32", shape=(2, 12, 3), reset_at: int | None = 7) -> Case:
    """A realistic case with every array present and at most one reset (in row 0), so that no output is trivial."""
    rng = np.random.default_rng(seed)
    arrays = _realistic(rng, shape, dtype)
    arrays["reset"] = np.zeros(shape[:2], bool)
    if reset_at is not None:
        arrays["reset"][0, reset_at] = True
    return _build(rng, arrays, dtype, drop=False)


def _realistic(rng, shape, dtype):
    batch, steps, width = shape
    decay = rng.uniform(0.9, 0.999, width)
    return {
        **{name: rng.standard_normal(shape) for name in ("x", "gate_x", "gate_a", "dy")},
        "a_param": np.log(np.expm1(-np.log(decay) / 8)),
        "h0": rng.standard_normal((batch, width)),
        "dh_last": rng.standard_normal((batch, width)),
        "reset": rng.random((batch, steps)) < rng.choice([0, 0.05]),
    }


def _adversarial(rng, shape, dtype):
    batch, steps, width = shape
    decades = 3 if dtype == "float16" else 12
    spread = 10.0 ** (rng.uniform(-1, 1, shape) * rng.integers(0, 2 if dtype == "float16" else 5))
    write_scale, cotangent_scale = 10.0 ** rng.uniform(-decades, decades), 10.0 ** rng.uniform(-3, 1 + decades / 3)
    return {
        "x": rng.standard_normal(shape) * spread * write_scale,
        "gate_x": _logits(rng, shape),
        "gate_a": _logits(rng, shape),
        "a_param": [
            lambda: rng.uniform(-40, 40, width),
            lambda: 3 * rng.standard_normal(width),
            lambda: 2 * rng.standard_normal(width) - 7,
            lambda: rng.standard_normal(width) - 15,
        ][rng.integers(4)](),
        "h0": rng.standard_normal((batch, width)) * rng.choice([0, 1, 1e-8, 1e6, 1e15, 1e-30]),
        "dy": rng.standard_normal(shape) * cotangent_scale,
        "dh_last": rng.standard_normal((batch, width)) * cotangent_scale * rng.choice([0, 1, 100]),
        "reset": rng.random((batch, steps)) < rng.choice([0, 0.01, 0.1, 0.5]),
    }


def _logits(rng, shape):
    return [
        lambda: rng.standard_normal(shape),
        lambda: 4 * rng.standard_normal(shape) + rng.integers(-6, 7),
        lambda: rng.uniform(-30, 30, shape),
        lambda: rng.uniform(-100, 100, shape),
        lambda: rng.standard_normal(shape) - rng.integers(0, 31),
        lambda: rng.choice([-100.0, -30.0, 30.0, 100.0], shape),
    ][rng.integers(6)]()


def _extreme(rng, shape, dtype):
    batch, steps, width = shape
    gates = [0.0, -0.0, 1e-40, -17.0, 17.0, -88.0, 88.0, -100.0, 100.0]
    huge = rng.choice([1e20, 1e30, 3e38])
    values = [0.0, -0.0, 1e-45, -1e-40, 2.0**-126, 1.0, -1.0, 1e4, huge, -huge]
    return {
        "x": rng.choice(values, shape),
        "gate_x": rng.choice(gates, shape),
        "gate_a": rng.choice(gates, shape),
        "a_param": rng.choice([-100.0, -88.0, -20.0, -1e-40, 0.0, 20.0, 88.0, 100.0], width),
        "h0": rng.choice(values, (batch, width)),
        "dy": rng.choice([0.0, -0.0, 1e-45, 1e-39, 1.0, -1.0, 1e4], shape),
        "dh_last": rng.choice([0.0, 1e-45, 1.0, -1e4], (batch, width)),
        "reset": rng.random((batch, steps)) < rng.choice([0, 0.3]),
    }


def _clipped(rng, shape, dtype):
    return _realistic(rng, shape, dtype) | {"a_param": rng.uniform(-22, -17, shape[2])}


def _spoil(rng, arrays):
    for _ in range(rng.integers(1, 4)):
        array = arrays[rng.choice(["x", "gate_x", "gate_a", "h0", "dy", "dh_last"])]
        array[tuple(int(rng.integers(size)) for size in array.shape)] = rng.choice([np.nan, np.inf, -np.inf])


def _build(rng, arrays, dtype, drop: bool = True) -> Case:
    """Round to the dtypes; with `drop`, leave out optional arrays now and then (never both cotangents)."""
    reset = arrays.pop("reset")
    rounded = {}
    for name, value in arrays.items():
        fmt = FORMATS[dtype if name in ("x", "gate_x", "gate_a", "dy") else "float32"]
        clipped = np.where(np.isinf(value), value, np.clip(value, -fmt.largest, fmt.largest))
        rounded[name] = round_to(clipped, fmt)
    elsewhere = rng.choice([1, 7, -1, 2**40], reset.shape)
    rounded["segment_pos"] = np.where(reset, 0, elsewhere)
    if drop:
        for name in [*(["segment_pos"] if not reset.any() else []), "h0", rng.choice(["dy", "dh_last"])]:
            if rng.random() < 0.2:
                del rounded[name]
    return Case(**rounded, dtype=dtype)
