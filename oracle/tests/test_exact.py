"""The NumPy reference against its exact twin, and the exact twin against finite differences and certified balls."""

import importlib.util

import numpy as np
import pytest

from oracle.bounds import LIBM, bound
from oracle.case import OUTPUTS, Case
from oracle.exact import arb_arithmetic, forward, lift, mpmath_arithmetic, solve_exactly
from oracle.reference import MAX_SQRT_GRADIENT, solve
from oracle.tests.cases import FINITE_KINDS, cases, ordinary

MOST_OF_BOUND = 4e-9
"""What the reference may be off, as a part of the tightest float32 bound. Largest seen in 6,000 cases: 6.1e-10."""


def largest_shares(case: Case, distance, *results) -> dict[str, float]:
    """Largest `distance` between equal elements of `results` over the tightest bound, per output.

    Elements that float32 may overflow have no bound and do not count; where the bound is 0 nothing may differ.
    """
    bounds, shares = bound(solve(case), LIBM, "accurate"), {}
    for name in OUTPUTS:
        apart = np.array([float(distance(*pair)) for pair in zip(*(r[name].flat for r in results), strict=True)], float)
        error = getattr(bounds, name).ravel()
        assert (apart[error == 0] == 0).all(), f"{name}: the bound is 0 but the values differ"
        judged = (error > 0) & (error < np.inf)
        shares[name] = (apart[judged] / error[judged]).max(initial=0.0)
    return shares


def test_a_decay_known_by_hand_fixes_the_constants():
    """At a_param = gate_a = gate_x = 0 the decay is 1/16 and every derivative a simple number: pins C and the signs."""
    zero = np.zeros((1, 1, 1))
    by_hand = Case(x=zero, gate_x=zero, gate_a=zero, a_param=[0], h0=[[1]], dy=[[[1]]])
    expected = {
        "y": 1 / 16,
        "h_last": 1 / 16,
        "dx": np.sqrt(255) / 32,
        "dgate_x": 0.0,
        "dgate_a": -np.log(2) / 8,
        "da_param": -1 / 8,
        "dh0": 1 / 16,
    }
    exact, reference = solve_exactly(by_hand), solve(by_hand)
    for name, value in expected.items():
        assert float(exact[name].item()) == pytest.approx(value, rel=1e-15, abs=0)
        assert getattr(reference, name).item() == pytest.approx(value, rel=1e-15, abs=0)


@pytest.mark.parametrize("kind", [*FINITE_KINDS, "empty"])
def test_the_reference_is_far_inside_the_tightest_bound(kind):
    """Verdicts compare kernels with float64, not with the truth: the difference must not matter (100 cases a kind)."""
    for number, drawn in enumerate(cases(100, kinds=(kind,), elements=60)):
        shares = largest_shares(
            drawn, lambda exact, value: abs(exact - float(value)), solve_exactly(drawn, digits=50), vars(solve(drawn))
        )
        assert max(shares.values()) < MOST_OF_BOUND, f"case({number}, {kind!r}, elements=60): {shares}"


def test_fifty_digits_are_enough():
    """Where cotangents cancel, the twin loses digits as everyone does: thirty more must not matter."""
    for drawn in cases(30, kinds=("adversarial", "extreme", "clipped")):
        few, many = solve_exactly(drawn, digits=50), solve_exactly(drawn, digits=80)
        assert max(largest_shares(drawn, lambda a, b: abs(a - b), few, many).values()) < 1e-30


def slopes(case: Case, numbers):
    """(name, index, slope, clipped): central differences of sum(dy y) + sum(dh_last h_last) by every input.

    `clipped`: the input acts through a multiplier inside the clip, where the adjoint is bounded on purpose.
    """
    arrays, step = lift(case, numbers), numbers.number(10) ** -30
    _, _, tape = forward(arrays, case.reset, numbers)
    inside = np.frompyfunc(lambda token: not token.is_reset and 4 * MAX_SQRT_GRADIENT**2 * token.z < 1, 1, 1)(tape)
    clipped = {"gate_a": inside, "a_param": inside.any((0, 1))}

    def loss():
        y, h_last, _ = forward(arrays, case.reset, numbers)
        return (y * arrays["dy"]).sum() + (h_last * arrays["dh_last"]).sum()

    for name in ("x", "gate_x", "gate_a", "a_param", "h0"):
        for index in np.ndindex(arrays[name].shape):
            middle = arrays[name][index]
            arrays[name][index] = middle + step
            above = loss()
            arrays[name][index] = middle - step
            below = loss()
            arrays[name][index] = middle
            yield name, index, (above - below) / (2 * step), name in clipped and clipped[name][index]


@pytest.mark.parametrize("kind", ["realistic", "adversarial", "extreme"])
def test_the_adjoint_is_the_slope_of_the_forward_pass(kind):
    """The gradients are derived by hand: differences of the exact forward pass know nothing of that derivation.

    With 200 digits and steps of 1e-30, 1e-60 of the slope is left out, and at most 1e-120 (of values to 1e45) lost.
    """
    numbers, compared = mpmath_arithmetic(200), 0
    for number, drawn in enumerate(cases(12, kinds=(kind,), elements=10)):
        adjoint = solve_exactly(drawn, digits=200)
        for name, index, slope, clipped in slopes(drawn, numbers):
            if not clipped:
                got = adjoint["d" + name][index]
                assert abs(got - slope) <= 1e-40 * abs(slope) + 1e-120, (
                    f"case({number}, {kind!r}, elements=10): d{name}{list(index)} is {got}, the slope is {slope}"
                )
                compared += 1
    assert compared > 100


def test_inside_the_clip_the_adjoint_is_the_bounded_one():
    """Where z < 2.5e-7 the derivative of sqrt(z) counts as 1000: gradients shrink by exactly 1000 * 2 sqrt(z)."""
    numbers, one = mpmath_arithmetic(100), np.ones((1, 1, 1))
    single = Case(x=one, gate_x=one, gate_a=one, a_param=[-19], dy=one)
    adjoint, (_, _, tape) = solve_exactly(single, digits=100), forward(lift(single, numbers), single.reset, numbers)
    shrinkage = 2 * MAX_SQRT_GRADIENT * numbers.sqrt(tape.item().z)
    assert shrinkage < 0.9
    clipped = {name: slope for name, _, slope, clipped in slopes(single, numbers) if clipped}
    assert clipped.keys() == {"gate_a", "a_param"}
    for name, slope in clipped.items():
        got = adjoint["d" + name].item()
        assert abs(got - slope * shrinkage) <= 1e-40 * abs(got)


@pytest.mark.parametrize("name", ["x", "gate_x", "gate_a", "a_param", "h0", "dy", "dh_last"])
def test_non_finite_numbers_are_refused(name):
    """Selection, not precision, decides what becomes of a NaN: the twin says so rather than answer."""
    drawn = ordinary(0)
    spoiled = np.array(getattr(drawn, name))
    spoiled.flat[-1] = np.nan
    with pytest.raises(ValueError, match=rf"^{name} must be finite .* got nan at \["):
        solve_exactly(drawn.replace(**{name: spoiled}))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("flint") is None, reason='python-flint is not installed: extra "exact"')
def test_certified_balls_hold_the_reference():
    """mpmath promises no digits; arb does: over several hundred elements its balls are tiny and pin the reference."""
    numbers, elements = arb_arithmetic(50), 0
    for drawn in cases(60, kinds=("realistic", "adversarial", "extreme", "clipped"), elements=60, first_seed=900):
        balls = solve_exactly(drawn, digits=50, arithmetic=arb_arithmetic)
        with numbers.precision():
            radii = largest_shares(drawn, lambda ball: ball.rad(), balls)
            shares = largest_shares(
                drawn,
                lambda ball, value: (ball - numbers.number(float(value))).abs_upper(),
                balls,
                vars(solve(drawn)),
            )
        assert max(radii.values()) < 1e-30, radii
        assert max(shares.values()) < MOST_OF_BOUND, shares
        elements += drawn.x.size
    assert elements > 300
