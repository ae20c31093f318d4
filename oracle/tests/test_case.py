"""Cases and results: what they accept, what they refuse and in which words, and how they are cut."""

import re

import numpy as np
import pytest

from oracle.bounds import LIBM, bound
from oracle.case import AXES, OUTPUTS, Case, Result
from oracle.formats import FORMATS
from oracle.reference import solve
from oracle.tests.cases import DTYPES, FINITE_KINDS, case, cases, ordinary

ARRAYS = ("x", "gate_x", "gate_a", "a_param", "h0", "dy", "dh_last")


def exactly(text: str) -> str:
    return f"^{re.escape(text)}$"


@pytest.mark.parametrize("name", [*ARRAYS[1:], "segment_pos"])
def test_a_wrong_shape_is_refused_by_name_rule_and_value(name):
    """Broadcasting would silently test another case."""
    good = ordinary(0)
    array = np.array(getattr(good, name))
    rule, got = list(array.shape), [1, *array.shape]
    with pytest.raises(ValueError, match=exactly(f"{name} must have shape {rule}; got {got}")):
        good.replace(**{name: array[None]})


def test_x_must_have_three_axes():
    """x gives B, T and D to everything else."""
    with pytest.raises(ValueError, match=r"^x must have shape \[B, T, D\]; got \(2, 3\)$"):
        Case(np.zeros((2, 3)), np.zeros((2, 3)), np.zeros((2, 3)), np.zeros(3))


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("dtype", [bool, complex, object], ids=lambda dtype: dtype.__name__)
def test_what_is_no_real_number_is_refused(name, dtype):
    """A mask passed as x, say."""
    good = ordinary(0)
    with pytest.raises(TypeError, match=f"^{name} must hold real numbers; got dtype {np.dtype(dtype)}$"):
        good.replace(**{name: np.asarray(getattr(good, name)).astype(dtype)})


@pytest.mark.parametrize("dtype", [np.float32, np.int16, np.uint32, bool], ids=lambda dtype: dtype.__name__)
def test_positions_are_int32_or_int64(dtype):
    """The public call takes these two; anything else would test a conversion."""
    good = ordinary(0)
    with pytest.raises(TypeError, match=f"^segment_pos must be int32 or int64; got dtype {np.dtype(dtype)}$"):
        good.replace(segment_pos=good.segment_pos.astype(dtype))


def test_an_unknown_dtype_is_refused():
    """With the list of those that are known."""
    with pytest.raises(ValueError, match=r"^dtype must be one of float32, bfloat16, float16; got 'float64'$"):
        ordinary(0).replace(dtype="float64")


@pytest.mark.parametrize(
    ("name", "dtype", "value"),
    [
        ("x", "float32", 1 + 2.0**-24),
        ("x", "bfloat16", 1 + 2.0**-8),
        ("gate_x", "float16", 1 + 2.0**-11),
        ("gate_a", "float16", 65520.0),
        ("dy", "bfloat16", 2.0**-134),
        ("a_param", "bfloat16", 1 + 2.0**-24),
        ("h0", "float16", 1e39),
        ("dh_last", "float16", 2.0**-150),
    ],
)
def test_a_value_outside_its_dtype_is_refused_with_its_place(name, dtype, value):
    """The oracle would judge x where the kernel saw a rounded x."""
    good = ordinary(0, dtype=dtype)
    array = np.array(getattr(good, name), np.float64)
    array.flat[-1] = value
    place = [size - 1 for size in array.shape]
    kind = dtype if name in ("x", "gate_x", "gate_a", "dy") else "float32"
    with pytest.raises(
        ValueError, match=exactly(f"{name} must hold values of {kind}; got {np.float64(value)!r} at {place}")
    ):
        good.replace(**{name: array})


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_value_of_a_dtype_is_accepted_and_kept_exactly(dtype):
    """Float32 holds the three dtypes: largest, smallest subnormal, signed zero, NaN and infinities included."""
    fmt = FORMATS[dtype]
    smallest = 2.0 ** (fmt.min_exponent - fmt.precision + 1)
    values = np.array([fmt.largest, -fmt.largest, smallest, -0.0, np.nan, np.inf, -np.inf]).reshape(1, 7, 1)
    kept = Case(values, values, values, [0], dtype=dtype).x
    assert kept.dtype == np.float32
    assert np.array_equal(kept, values, equal_nan=True)
    assert np.array_equal(np.signbit(kept), np.signbit(values))


def test_arrays_are_read_only_copies():
    """A kernel that writes to its inputs must not change what it is judged by; nor may the caller's arrays."""
    x = np.ones((1, 2, 1), np.float32)
    positions = np.ones((1, 2), np.int64)
    kept = Case(x, x, x, [0], positions)
    x[:] = 2
    positions[:] = 0
    assert (kept.x == 1).all()
    assert not kept.reset.any()
    for name in ("x", "gate_x", "gate_a", "a_param", "segment_pos"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(kept, name)[...] = 0


def test_only_position_zero_resets():
    """Negative positions, and those that vanish in 32 bits, are no resets; None means none anywhere."""
    x = np.zeros((1, 4, 1))
    assert Case(x, x, x, [0], np.array([[0, -1, 2**32, 5]])).reset.tolist() == [[True, False, False, False]]
    assert not Case(x, x, x, [0]).reset.any()


def test_a_part_of_a_case_is_made_of_the_same_parts_of_its_arrays():
    """Rows, steps and channels are cut in every array that has the axis, and in no other."""
    whole = ordinary(0, shape=(4, 12, 5))
    part = whole.take(rows=slice(1, 3), steps=slice(2, None, 3), channels=np.array([4, 0]))
    assert part.shape == (2, 4, 2)
    cut = {"B": slice(1, 3), "T": slice(2, None, 3), "D": [4, 0]}
    for name, axes in AXES.items():
        expected = np.asarray(getattr(whole, name))
        for axis, letter in enumerate(axes):
            expected = np.moveaxis(np.moveaxis(expected, axis, 0)[cut[letter]], 0, axis)
        assert np.array_equal(getattr(part, name), expected), name


def test_a_part_keeps_dtype_and_absent_arrays():
    """None stays None: absent and zero are different calls."""
    bare = ordinary(0, dtype="float16").replace(segment_pos=None, h0=None, dy=None)
    part = bare.take(rows=[0])
    assert part.dtype == "float16"
    assert part.segment_pos is part.h0 is part.dy is None
    assert part.has_cotangents
    assert not part.replace(dh_last=None).has_cotangents


def test_channels_and_rows_are_solved_alone():
    """`take` and the reference agree on what is independent: a part of the solution solves the part.

    To rounding only: NumPy sums in another order, and its functions differ in a bit with the place in an array.
    """
    for drawn in cases(30, elements=60):
        reference, bounds = solve(drawn), bound(solve(drawn), LIBM)
        for d in range(drawn.shape[2]):
            alone = solve(drawn.take(channels=[d]))
            for name in OUTPUTS:
                apart = np.abs(getattr(alone, name)[..., 0] - getattr(reference, name)[..., d])
                assert (apart <= 1e-8 * getattr(bounds, name)[..., d]).all(), name
        apart = np.abs(solve(drawn.take(rows=[-1])).y - reference.y[-1:])
        assert (apart <= 1e-8 * bounds.y[-1:]).all()


def test_a_result_lists_what_is_there():
    """Forward-only subjects return no gradients; those are not judged."""
    result = Result(y=np.zeros(1), dh0=np.ones(1))
    assert [name for name, _ in result.items()] == ["y", "dh0"]


@pytest.mark.parametrize("kind", [*FINITE_KINDS, "empty", "non_finite"])
def test_drawn_cases_repeat_and_are_what_they_say(kind):
    """The tests of the oracle stand on this generator: seeded, small, and of the kind asked for."""
    for seed in range(20):
        drawn, again = case(seed, kind), case(seed, kind)
        for name in AXES:
            a, b = getattr(drawn, name), getattr(again, name)
            assert (a is None and b is None) or np.array_equal(a, b, equal_nan=True)
        finite = all(getattr(drawn, name) is None or np.isfinite(getattr(drawn, name)).all() for name in ARRAYS)
        assert finite or kind == "non_finite"
        assert drawn.x.size <= 40
        assert (drawn.x.size == 0) == (kind == "empty")
        assert drawn.has_cotangents
