"""Clause 13: values at the ends of the domain."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from oracle import Case
from oracle.formats import FORMATS, round_to
from properties.contract import clause
from properties.edits import poison
from properties.strategies import Scope, smallest
from properties.trial import Trial


@clause(13, decays=("extreme", "wide"), gates=("saturated", "wide", "closed"), cotangents=("both",))
def test_saturated_gates_and_extreme_decays_stay_within_their_bounds(trial: Trial, case: Case):
    """Gates at +-100 and |a_param| to 100: nothing overflows to NaN, nothing underflows that should not."""
    trial.expect_right(case)


@clause(
    13,
    decays=("mixed", "slow"),
    cotangents=("both",),
    params={
        "power": lambda case, scope: st.sampled_from(
            (-130, -140, -120, 60, 90) if case.dtype != "float16" else (-20, -24, 10)
        )
    },
)
def test_subnormal_and_huge_inputs_stay_within_their_bounds(trial: Trial, case: Case, power):
    """x and h0 from subnormal to 2^90: no clamp, no premature overflow; float16 y may overflow, h_last may not."""
    changes = {
        name: _scaled(getattr(case, name), power, case.dtype if name == "x" else "float32") for name in ("x", "h0")
    }
    trial.expect_right(case.replace(**changes))


def _scaled(array, power: int, dtype: str):
    if array is None:
        return None
    scaled = round_to(np.array(array, np.float64) * 2.0**power, FORMATS[dtype])
    return np.where(np.isfinite(scaled), scaled, 0.0)


@clause(13, needs=("backward",), decays=("slowest",), gates=("normal", "closed"), cotangents=("both", "y"), scales=(0,))
def test_the_slope_of_the_square_root_is_bounded(trial: Trial, case: Case):
    """Where 1 - a^2 is below 2.5e-7 the derivative of its root is 1000, and only the derivative is bounded."""
    trial.expect_right(case)


def _places(case: Case, scope: Scope):
    names = [name for name in ("x", "gate_x", "gate_a", "h0", "dy", "dh_last") if getattr(case, name) is not None]
    return st.tuples(st.sampled_from(names), st.integers(0, case.shape[1] - 1))


def _each_input(scope: Scope):
    """NaN and infinity in each input, in every dtype: whoever hides one hides it in a place of his own."""
    for dtype in scope.dtypes:
        recipe = smallest(scope, dtype)
        for name in ("x", "gate_x", "gate_a", "h0", "dy", "dh_last"):
            if getattr(recipe.build(), name) is not None:
                for kind in ("nan", "inf"):
                    yield recipe, {"place": (name, 0), "kind": kind}
    # nor does a step before it know of it
    yield smallest(scope, scope.dtypes[0], 3), {"place": ("gate_a", 2), "kind": "nan"}
    # and over as many steps as can be afforded, whose decays multiply to 0 in float32: 0 times NaN is NaN
    recipe = smallest(scope, scope.dtypes[0], scope.longest(1))
    yield replace(recipe, overrides=(("a_param", 0, 10.0),)), {"place": ("x", 0), "kind": "nan"}


@clause(
    13,
    always=_each_input,
    resets=("absent",),
    states=("normal", "absent"),
    scales=(0,),
    cotangents=("both",),
    params={"place": _places, "kind": lambda case, scope: st.sampled_from(("nan", "inf"))},
)
def test_non_finite_values_show_where_the_definition_says(trial: Trial, case: Case, place, kind):
    """A NaN or infinity is neither hidden nor spread: each output is non-finite exactly where the reference is."""
    name, step = place
    here = np.zeros(case.shape[1], bool)
    here[step] = True
    trial.expect_right(poison(case, kind, (name,), steps=here))


@clause(13, cotangents=("both",), scales=(0,), params={"step": lambda case, scope: st.integers(0, case.shape[1] - 1)})
def test_infinite_gates_are_open_or_shut(trial: Trial, case: Case, step):
    """A gate of +inf is 1 and of -inf is 0: with finite x everything stays finite."""
    gate_x, gate_a = np.array(case.gate_x), np.array(case.gate_a)
    gate_x[:, step], gate_a[:, step] = np.copysign(np.inf, gate_x[:, step]), np.copysign(np.inf, gate_a[:, step])
    trial.expect_right(case.replace(gate_x=gate_x, gate_a=gate_a))
