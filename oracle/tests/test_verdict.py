"""Verdicts: how outputs round, what counts as inside, the three classes of elements, and that wrong outputs fail."""

import numpy as np
import pytest

from oracle.bounds import DEFAULT, LIBM, bound
from oracle.case import GRADIENTS, IN_CASE_DTYPE, OUTPUTS, Case, Result
from oracle.formats import FORMATS, LAM, distance_to_cell, interval, round_to, spacing
from oracle.reference import solve
from oracle.tests.cases import DTYPES, cases, ordinary
from oracle.verdict import MOST_ANY_ORDER_TERMS, judge

BFLOAT16, FLOAT16 = FORMATS["bfloat16"], FORMATS["float16"]


def truth(case: Case) -> dict[str, np.ndarray]:
    """What a perfect kernel returns: the reference rounded once to each output's dtype."""
    reference = solve(case)
    return {
        n: round_to(getattr(reference, n), FORMATS[case.dtype if n in IN_CASE_DTYPE else "float32"]) for n in OUTPUTS
    }


def verdict_on(case: Case, *, profile=LIBM, grade="accurate", **outputs):
    return judge(case, Result(**outputs), profile=profile, grade=grade)


# --- rounding


def reals(seed: int, fmt, count: int = 20_000):
    """Float64 values of every kind rounding must handle: all binades, subnormals, powers of two, ties, overflow, 0."""
    rng = np.random.default_rng(seed)
    exponents = rng.uniform(fmt.min_exponent - fmt.precision - 2, np.log2(fmt.largest) + 0.1, count)
    value = rng.choice([-1.0, 1.0], count) * 2.0**exponents
    value[0::6] = 2.0 ** np.floor(exponents[0::6])
    on_grid = np.clip(round_to(value[1::3], fmt), -fmt.largest, fmt.largest)
    value[1::3] = on_grid
    value[1::6] += spacing(on_grid[::2], fmt) / 2  # ties
    value[::100] = 0.0
    return value


def test_rounding_to_float16_and_float32_is_numpys():
    """NumPy casts float64 to both correctly; an independent implementation for every kind of value."""
    for name, dtype in (("float16", np.float16), ("float32", np.float32)):
        value = reals(0, FORMATS[name])
        with np.errstate(over="ignore"):
            assert np.array_equal(round_to(value, FORMATS[name]), value.astype(dtype).astype(np.float64))


def test_rounding_to_bfloat16_is_a_search_for_the_nearest():
    """No library rounds float64 to bfloat16 in one step: compare with a table of all its values, ties to even."""
    patterns = np.arange(0x7F80, dtype=np.uint32)
    table = np.append((patterns << 16).view(np.float32).astype(np.float64), 2.0**128)  # past the largest: infinity
    value = np.abs(reals(1, BFLOAT16))
    above = np.searchsorted(table, value).clip(1, len(table) - 1)
    to_above, to_below = table[above] - value, value - table[above - 1]
    nearest = np.where((to_above < to_below) | ((to_above == to_below) & (above % 2 == 0)), above, above - 1)
    expected = np.where(table[nearest] == 2.0**128, np.inf, table[nearest])
    assert np.array_equal(round_to(value, BFLOAT16), expected)
    assert np.array_equal(round_to(-value, BFLOAT16), -expected)
    assert np.array_equal(round_to([np.nan, np.inf, -np.inf], BFLOAT16), [np.nan, np.inf, -np.inf], equal_nan=True)


def test_bfloat16_is_not_reached_through_float32():
    """Through float32 this value would become a tie and round to 1: the classic double rounding."""
    value = 1 + 2.0**-8 + 2.0**-30
    assert round_to(value, BFLOAT16) == 1.0078125
    assert round_to(np.float64(np.float32(value)), BFLOAT16) == 1.0
    assert distance_to_cell(value, 1.0078125, BFLOAT16) == 0
    assert distance_to_cell(value, 1.0, BFLOAT16) == 2.0**-30


@pytest.mark.parametrize("fmt", [BFLOAT16, FLOAT16], ids=lambda fmt: fmt.name)
def test_an_output_is_inside_exactly_where_it_lies_in_the_rounding_interval(fmt):
    """Distance to the cell <= E is RN(exact - E) <= output <= RN(exact + E), by brute force on every kind of value.

    A tie belongs to both neighbours: the ends are moved outward by one float64. A bfloat16 zero may be a flushed value.
    """
    exact = reals(2, fmt, 60_000)
    rng = np.random.default_rng(3)
    relative = rng.choice([0, 1e-9, 2.0**-12, 2.0**-9, 2.0**-8, 2.0**-7, 0.1], exact.size)
    error = np.maximum(np.abs(exact), 2.0**fmt.min_exponent) * relative * rng.uniform(0, 1, exact.size)
    low, high = round_to(np.nextafter(exact - error, -np.inf), fmt), round_to(np.nextafter(exact + error, np.inf), fmt)
    near = np.clip(round_to(exact, fmt), -fmt.largest, fmt.largest)
    steps = [round_to(near + k * spacing(near, fmt), fmt) for k in range(-3, 4)]
    flushable = fmt.flushes & (np.abs(exact) - error <= LAM)
    seen = np.zeros(2, int)
    for output in [*steps, 0 * exact, 0 * exact + np.inf, 0 * exact - np.inf]:
        inside = ((low <= output) & (output <= high)) | (flushable & (output == 0))
        with np.errstate(all="ignore"):
            assert np.array_equal(distance_to_cell(exact, output, fmt) <= error, inside)
        seen += np.bincount(inside, minlength=2)
    assert (seen > exact.size / 2).all(), "the brute force must see both answers"
    assert (distance_to_cell(exact, exact * np.nan, fmt) == np.inf).all()


# --- the ratio


def test_an_output_exactly_at_its_bound_holds_and_one_step_outside_fails():
    """The bound is closed: an honest kernel may attain it."""
    zero = np.zeros((1, 1, 1))
    case = Case(x=zero, gate_x=zero, gate_a=zero, a_param=[0])
    error = bound(solve(case), LIBM).h_last
    at, outside = verdict_on(case, h_last=error), verdict_on(case, h_last=np.nextafter(error, 1))
    assert at.holds
    assert at.ratio == 1
    assert not outside.holds
    assert outside.ratio > 1


def test_the_ratio_is_the_distance_to_the_nearest_real_that_rounds_to_the_output():
    """Not the distance to the output itself: half a bfloat16 step is no error of the kernel."""
    case = ordinary(0, dtype="bfloat16")
    perfect = truth(case)["y"]
    assert verdict_on(case, y=perfect).ratio == 0
    assert (np.abs(perfect - solve(case).y) > bound(solve(case), LIBM).y).any()


def test_a_difference_where_the_bound_is_zero_is_infinitely_wrong():
    """dgate_a at a reset is selected to 0: the smallest float there is a fault."""
    case = ordinary(0)
    dgate_a = truth(case)["dgate_a"]
    dgate_a[0, 7, 1] = 1e-45
    verdict = verdict_on(case, dgate_a=dgate_a)
    assert verdict.ratio == np.inf
    assert verdict.outputs[0].failed == 1


@pytest.mark.parametrize("name", ["y", "dx", "dgate_x", "dgate_a"])
def test_the_first_diverging_step_is_the_first_to_be_computed(name):
    """An error runs forward from its cause in y and backward in gradients; the cause is what one looks for."""
    case = ordinary(0)
    output = truth(case)[name]
    output[1, 3, 0] += 1
    output[1, 8, 2] += 1e3
    assert verdict_on(case, **{name: output}).outputs[0].first_diverging_step == (3 if name == "y" else 8)


def test_the_text_names_output_element_values_interval_and_multiple():
    """The verdict is read by somebody who did not write the kernel."""
    case = ordinary(0)
    y = truth(case)["y"]
    y[1, 5, 2] = 7
    text = str(verdict_on(case, y=y, h_last=truth(case)["h_last"]))
    should = f"{solve(case).y[1, 5, 2]:.9g}"
    assert text.startswith("y: DEVIATES, worst ratio ")
    assert "of the accurate bound (libm profile)" in text
    assert f"1 of 72 elements fail; worst: y[b=1, t=5, d=2] is 7, should be {should}, between " in text
    assert " x the bound" in text
    assert "first diverging step: t = 5" in text
    assert "\nh_last: holds" in text


def test_the_interval_of_the_text_is_of_the_output_dtype():
    """A bfloat16 interval of one value says more than the bound before rounding."""
    low, high = interval(np.float64(1.001), np.float64(1e-6), BFLOAT16)
    assert low == high == 1
    low, high = interval(np.float64(1.001), np.float64(1e-6), FORMATS["float32"])
    assert (low, high) == (1.001 - 1e-6, 1.001 + 1e-6)
    assert interval(np.float64(LAM), np.float64(LAM / 8), BFLOAT16)[0] == 0, "a subnormal may be flushed"


def test_what_cannot_be_judged_is_refused_by_name():
    """Broadcasting a wrong shape would judge something else."""
    case = ordinary(0)
    with pytest.raises(ValueError, match=r"h_last must have shape \[2, 3\]; got \[2, 1\]"):
        verdict_on(case, h_last=np.zeros((2, 1)))
    for name in GRADIENTS:
        with pytest.raises(ValueError, match=f"{name} cannot be judged: the case has neither dy nor dh_last"):
            verdict_on(case.replace(dy=None, dh_last=None), **{name: truth(case)[name]})


def test_da_param_of_many_terms_is_judged_only_with_declared_additions():
    """Any order of many terms leaves a bound above the value: silence would pass everything, so a note says it."""
    case = ordinary(0, shape=(1, MOST_ANY_ORDER_TERMS + 1, 1), reset_at=None)
    verdict = verdict_on(case, da_param=truth(case)["da_param"])
    assert (verdict.elements, verdict.unjudged) == (1, 1)
    assert str(verdict) == "da_param: not judged, 601 terms in any order leave no bound worth the name"
    assert not verdict.holds, "nothing was judged"
    assert not verdict.deviates
    assert verdict_on(case, da_param=truth(case)["da_param"], y=truth(case)["y"]).holds, "y was"
    with pytest.raises(ValueError, match=r"da_param must have shape \[1\]; got \[2\]"):
        verdict_on(case, da_param=np.zeros(2))


def test_a_result_without_outputs_is_refused():
    """Whoever passes one has lost what was to be judged: it must not hold."""
    with pytest.raises(ValueError, match=r"^result must hold an output, or there is nothing to judge; got none$"):
        verdict_on(ordinary(0))


@pytest.mark.parametrize("shape", [(0, 3, 2), (2, 0, 2), (2, 3, 0)], ids=str)
def test_outputs_of_empty_sizes_hold(shape):
    """Their shape is all that can be right of them; where T is 0 the last state has elements, and is judged."""
    case = ordinary(0, shape=shape, reset_at=None)
    verdict = verdict_on(case, **truth(case))
    assert verdict.holds
    assert not verdict.unjudged
    assert verdict_on(case, y=truth(case)["y"]).holds


def test_an_output_that_may_overflow_everywhere_neither_holds_nor_deviates():
    """Whatever stands there would pass."""
    one = np.ones((1, 1, 1))
    case = Case(x=2.0**127 * one, gate_x=9 * one, gate_a=9 * one, a_param=[0])
    verdict = verdict_on(case, y=np.nan * one)
    assert (verdict.elements, verdict.unjudged) == (1, 1)
    assert not verdict.holds
    assert not verdict.deviates
    assert str(verdict).startswith("y: NOT JUDGED, ")


# --- the three classes


def test_elements_that_may_overflow_are_counted_and_not_judged():
    """Float32 may overflow where float64 does not: whatever stands there is accepted, and shown."""
    x = np.ones((1, 4, 1))
    x[0, 1] = 2.0**127
    case = Case(x=x, gate_x=0 * x, gate_a=0 * x, a_param=[0], segment_pos=[[1, 1, 0, 1]])
    y = truth(case)["y"]
    for value in (np.nan, np.inf, 0.0):
        y[0, 1] = value
        verdict = verdict_on(case, y=y)
        assert verdict.holds
        assert verdict.ratio < 1
        assert verdict.unjudged == 1
        assert verdict.elements == 4
        assert "1 of 4 elements not judged" in str(verdict)
    y[0, 3] = np.inf
    assert not verdict_on(case, y=y).holds


def test_float16_may_overflow_where_the_state_rounds_to_infinity():
    """y in float16 is rightly infinite beyond 65520; h_last, the same number in float32, is not."""
    one = np.ones((1, 1, 1))
    case = Case(x=one, gate_x=0 * one, gate_a=9 * one, a_param=[-20], h0=[[1e5]], dtype="float16")
    assert verdict_on(case, y=[[[np.inf]]]).holds
    assert not verdict_on(case, y=[[[65504]]]).holds
    assert not verdict_on(case, h_last=[[np.inf]]).holds


def test_a_non_finite_decay_leaves_its_channel_unjudged_and_the_others_unharmed():
    """The semantics ask a_param to be finite; a case that is not must not condemn or excuse its neighbours."""
    case = ordinary(0)
    for value in (np.nan, np.inf, -np.inf):
        a_param = np.array(case.a_param)
        a_param[1] = value
        spoiled = case.replace(a_param=a_param)
        for name, output in truth(case).items():
            at_reset = output[0, 7, 1] if name in ("y", "dgate_a") else None
            output[..., 1] = 5.0
            if at_reset is not None:
                output[0, 7, 1] = at_reset
            verdict = verdict_on(spoiled, **{name: output})
            assert verdict.holds, f"{value}: {verdict}"
            assert verdict.unjudged > 0
            output[..., 2] += 1
            assert not verdict_on(spoiled, **{name: output}).holds


X1, RESET, NAN, INF = (0, 1, 0), (0, 3, 0), np.nan, np.inf
NON_FINITE = [
    # what is spoiled, where, by what, changes; then y, dx, dgate_x, dgate_a (t = 0..5, reset at 3), da_param, dh0
    ("x", X1, NAN, {}, ".XX...", "......", ".X....", ".XX...", "X", "."),
    ("x", X1, INF, {}, ".XX...", "......", ".X....", ".XX...", "X", "."),
    ("gate_x", X1, NAN, {}, ".XX...", ".X....", ".X....", ".XX...", "X", "."),
    ("gate_a", X1, NAN, {}, ".XX...", "XX....", "XX....", "XXX...", "X", "X"),
    ("dy", X1, NAN, {}, "......", "XX....", "XX....", "XX....", "X", "X"),
    ("dy", (0, 4, 0), NAN, {}, "......", "...XX.", "...XX.", "....X.", "X", "."),
    ("x", RESET, NAN, {}, "...XXX", "......", "...X..", "....XX", "X", "."),
    ("gate_a", RESET, NAN, {}, "......", "......", "......", "......", ".", "."),
    ("h0", (0, 0), NAN, {}, "XXX...", "......", "......", "XXX...", "X", "."),
    ("h0", (0, 0), INF, {}, "XXX...", "......", "......", "XXX...", "X", "."),
    ("h0", (0, 0), NAN, {"segment_pos": [[0, 1, 1, 0, 1, 1]]}, "......", "......", "......", "......", ".", "."),
    ("dy", X1, NAN, {"segment_pos": [[0, 1, 1, 0, 1, 1]]}, "......", "XX....", "XX....", ".X....", "X", "."),
    ("dh_last", (0, 0), NAN, {}, "......", "...XXX", "...XXX", "....XX", "X", "."),
    ("a_param", (0,), NAN, {"segment_pos": [[0] * 6]}, "......", "......", "......", "......", ".", "."),
    ("gate_x", X1, INF, {}, "......", "......", "......", "......", ".", "."),
    ("gate_x", X1, -INF, {}, "......", "......", "......", "......", ".", "."),
    ("gate_a", X1, INF, {}, "......", "......", "......", "......", ".", "."),
    ("gate_a", X1, -INF, {}, "......", "......", "......", "......", ".", "."),
]


@pytest.mark.parametrize(
    ("name", "index", "value", "changes", "y", "dx", "dgate_x", "dgate_a", "da_param", "dh0"), NON_FINITE
)
def test_non_finite_values_show_exactly_where_the_semantics_say(
    name, index, value, changes, y, dx, dgate_x, dgate_a, da_param, dh0
):
    """The table of the semantics, row by row: in the reference and in what a verdict demands; channel 1 stays clean."""
    case = ordinary(0, shape=(1, 6, 2), reset_at=3).replace(**changes)
    spoiled = np.array(getattr(case, name))
    spoiled[index] = value
    case = case.replace(**{name: spoiled})
    expected = {"y": y, "dx": dx, "dgate_x": dgate_x, "dgate_a": dgate_a, "da_param": da_param, "dh0": dh0}
    expected["h_last"] = y[-1]
    perfect = truth(case)
    for output, marks in expected.items():
        non_finite = np.array([mark == "X" for mark in marks])
        first = (slice(None), ..., 0) if output != "da_param" else (slice(0, 1),)
        assert np.array_equal(~np.isfinite(perfect[output][first].ravel()), non_finite), output
        verdict = verdict_on(case, **{output: perfect[output]})
        assert verdict.holds, verdict
        assert verdict.unjudged == 0, output
        assert verdict.outputs[0].non_finite == non_finite.sum(), output
        other = np.where(np.isfinite(perfect[output]), perfect[output], -np.inf)
        assert verdict_on(case, **{output: other}).holds, "NaN or infinity, of any sign"
        for place in np.ndindex(*other.shape):
            changed = perfect[output].copy()
            changed[place] = np.nan if np.isfinite(changed[place]) else 1.0
            assert verdict_on(case, **{output: changed}).ratio == np.inf, f"{output}{list(place)}"


def test_cases_with_non_finite_values_always_have_a_verdict():
    """A NaN bound beside a finite reference would be a fault of the oracle; hunt for one at random."""
    for case in cases(150, kinds=("non_finite", "extreme", "single"), elements=60):
        perfect = truth(case)
        for profile in (LIBM, DEFAULT):
            verdict = verdict_on(case, profile=profile, **perfect)
            assert verdict.holds, verdict


# --- negative controls


def constant(case, name, right):
    return np.full_like(right, right.mean())


def shuffled(case, name, right):
    return np.random.default_rng(0).permutation(right.ravel()).reshape(right.shape)


def zero(case, name, right):
    return np.zeros_like(right)


def off_by_one_step(case, name, right):
    if right.ndim == 3:
        return np.roll(right, 1, axis=1)
    return truth(case.take(steps=slice(0, -1) if name == "h_last" else slice(1, None)))[name]


def of_the_previous_case(case, name, right):
    return truth(ordinary(40, dtype=case.dtype))[name]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize(
    "wrong", [constant, shuffled, zero, off_by_one_step, of_the_previous_case], ids=lambda f: f.__name__
)
def test_a_wrong_output_fails_where_the_right_one_holds(wrong, name, dtype):
    """A judge that passes nonsense is worse than none: each nonsense, in each output, under the loosest assumptions."""
    case = ordinary(41, dtype=dtype)
    right = truth(case)[name]
    assert verdict_on(case, profile=LIBM, grade="accurate", **{name: right}).holds
    assert not verdict_on(case, profile=DEFAULT, grade="canonical", **{name: wrong(case, name, right)}).holds


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_forward_pass_without_gradients_fails_in_every_gradient(dtype):
    """The commonest half-done kernel returns zeros for gradients: each must be named."""
    case = ordinary(41, dtype=dtype)
    outputs = {name: 0 * value if name in GRADIENTS else value for name, value in truth(case).items()}
    verdict = verdict_on(case, profile=DEFAULT, grade="canonical", **outputs)
    assert {output.name for output in verdict.outputs if not output.holds} == set(GRADIENTS)
