"""Strategies: what they promise to draw is drawn, what they must not draw is not, and what fails shrinks well."""

import json
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, seed, settings
from hypothesis import strategies as st

from oracle import Case, solve
from oracle.case import AXES
from properties.strategies import (
    COTANGENTS,
    DECAYS,
    GATES,
    RESETS,
    SPECIAL,
    STATES,
    Recipe,
    Scope,
    recipes,
    smallest,
)

ROOMY = Recipe(rows=2, steps=40, width=50)
QUIET = settings(
    phases=(Phase.generate,),
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
PATIENT = settings(QUIET, max_examples=5000, phases=(Phase.generate, Phase.shrink))
WHOLE_TABLE = {
    "decay": (*DECAYS, "long", "extreme"),
    "gates": GATES,
    "resets": RESETS,
    "state": STATES,
    "cotangents": COTANGENTS,
    "dtype": Scope.dtypes,
    "scale": (0, -8, 8),
}
"""Every value a clause may ask for, by field of a recipe."""


def drawn(strategy, count: int = 100) -> list:
    """`count` examples, the same ones in every run."""
    found = []

    @seed(0)
    @settings(QUIET, max_examples=count)
    @given(strategy)
    def example(value):
        found.append(value)

    example()
    return found


def smallest_such(condition, *, strategy=None, number: int = 0, **draws):
    """What a recipe, or an example of `strategy`, that meets `condition` shrinks to, from the find of that number."""
    strategy = recipes(Scope(), **draws) if strategy is None else strategy
    return find(strategy, condition, settings=PATIENT, random=random.Random(number))


def same(left: Case, right: Case) -> bool:
    return left.dtype == right.dtype and all(
        (a is None) == (b is None) and (a is None or (a.dtype == b.dtype and np.array_equal(a, b, equal_nan=True)))
        for a, b in ((getattr(left, name), getattr(right, name)) for name in AXES)
    )


# --- recipes


@pytest.mark.parametrize("dtype", Scope.dtypes)
@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in WHOLE_TABLE.items() for value in values], ids=str
)
def test_every_regime_builds_a_case_in_every_dtype(field, value, dtype):
    """A Case refuses what its dtype cannot hold: each regime must round what it draws."""
    case = replace(ROOMY, **({"dtype": dtype, "resets": "sparse", "state": "normal"} | {field: value})).build()
    assert case.shape == (2, 40, 50)
    assert case.dtype == (value if field == "dtype" else dtype)
    for name in ("x", "gate_x", "gate_a", "a_param", "h0", "dy", "dh_last"):
        array = getattr(case, name)
        assert array is None or np.isfinite(array).all()


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 0, 3), (0, 4, 3), (2, 4, 0), (0, 0, 0)], ids=str)
@pytest.mark.parametrize("resets", RESETS)
def test_every_pattern_of_resets_builds_at_the_smallest_sizes(shape, resets):
    """Overrides and patterns index into what may be empty."""
    rows, steps, width = shape
    overrides = tuple((name, 7, values[-1]) for name, values in SPECIAL.items())
    recipe = Recipe(rows=rows, steps=steps, width=width, resets=resets, state="normal", overrides=overrides)
    assert recipe.build().shape == shape


def test_the_same_recipe_builds_the_same_case():
    """A kept recipe is the case: nothing may depend on what was drawn before, nor on a global state."""
    for recipe in drawn(recipes(Scope(), cotangents=COTANGENTS), 50):
        case = recipe.build()
        np.random.seed(0)  # noqa: NPY002
        assert same(recipe.build(), case)


def test_another_seed_is_another_case():
    """The bulk is drawn, not constant."""
    cases = [replace(ROOMY, seed=number).build() for number in range(3)]
    assert not any(np.array_equal(cases[0].x, other.x) for other in cases[1:])


def test_a_recipe_survives_json():
    """As it is kept; JSON has no tuples."""
    for recipe in drawn(recipes(Scope(), cotangents=COTANGENTS)):
        assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe


def test_what_is_absent_is_none():
    """A subject without h0 or segment_pos must be drawn cases without."""
    absent = Recipe(resets="absent", state="absent", cotangents="absent").build()
    assert [getattr(absent, name) for name in ("segment_pos", "h0", "dy", "dh_last")] == [None] * 4
    only = {name: replace(ROOMY, cotangents=name).build() for name in ("y", "h_last", "both")}
    assert [(c.dy is not None, c.dh_last is not None) for c in only.values()] == [
        (True, False),
        (False, True),
        (True, True),
    ]


@pytest.mark.parametrize("name", SPECIAL)
def test_an_override_changes_one_element_and_no_other(name):
    """Shrinking an override away must leave the rest as it was."""
    plain = replace(ROOMY, resets="none", state="normal")
    position, value = 13, SPECIAL[name][-1]
    before, after = plain.build(), replace(plain, overrides=((name, position, value),)).build()
    for other in AXES:
        different = np.flatnonzero(getattr(before, other) != getattr(after, other))
        assert list(different) == ([position] if other == name else [])
    assert getattr(after, name).reshape(-1)[position] == np.float32(value)


def test_large_states_are_large_beside_x():
    """A lost h0 must show above the bound of everything written since."""
    for scale in (0, -8, 8):
        case = replace(ROOMY, state="large", scale=scale).build()
        assert np.abs(case.h0).mean() > 500 * np.abs(case.x).mean()
        assert 0.5 < np.abs(case.x).mean() / 2.0**scale < 1.1


# --- regimes


def one_minus_a(recipe: Recipe) -> np.ndarray:
    """1 - a of every token and channel over ten seeds, flat."""
    return np.concatenate([-np.expm1(solve(replace(recipe, seed=n).build()).L).ravel() for n in range(10)])


def at_gate(decay: str, r: float) -> np.ndarray:
    """1 - a at this r over many channels."""
    a_param = replace(ROOMY, width=2000, steps=1, decay=decay).build().a_param.astype(np.float64)
    return -np.expm1(-8 * r * np.logaddexp(0, a_param))


def test_typical_decays_are_those_of_the_published_initialization():
    """0.9 to 0.999 at r = 1, uniform in area: what a trained model starts from."""
    a = 1 - at_gate("typical", 1.0)
    assert 0.9 < a.min() < 0.901
    assert 0.9985 < a.max() < 0.99901
    area = (a**2 - 0.9**2) / (0.999**2 - 0.9**2)
    assert np.abs(np.histogram(area, 4, (0, 1))[0] / len(a) - 0.25).max() < 0.05


def test_long_decays_reach_from_tenths_to_ten_thousandths():
    """1 - a from 1e-4 to 1e-1 at r = 1/2, as much in every decade: some channel remembers each border."""
    logs = np.log10(at_gate("long", 0.5))
    assert logs.min() > -4.01
    assert logs.max() < -0.99
    assert np.abs(np.histogram(logs, 3, (-4, -1))[0] / len(logs) - 1 / 3).max() < 0.05


def test_slow_decays_reach_from_a_thousandth_to_a_ten_millionth():
    """Where 1 - a^2 cancels in float32, and where the accurate and the canonical grade part."""
    values = one_minus_a(replace(ROOMY, decay="slow"))
    assert values.min() < 2e-7
    assert values.max() > 1e-3
    decades = np.histogram(np.log10(values), [-7, -6, -5, -4, -3])[0]
    assert decades.min() > len(values) / 20


def test_the_slowest_decays_lie_on_both_sides_of_the_slope_bound():
    """The bound acts where 4 z < 1e-6; a test that sees one side only cannot tell whether it acts."""
    z = -np.expm1(2 * np.log1p(-one_minus_a(replace(ROOMY, decay="slowest"))))
    bounded = np.mean(4 * z < 1e-6)
    assert 0.2 < bounded < 0.8


def test_fast_and_wide_decays_reach_zero():
    """From nothing kept to everything kept."""
    fast, wide = (one_minus_a(replace(ROOMY, decay=decay)) for decay in ("fast", "wide"))
    assert fast.max() > 1 - 1e-6
    assert wide.max() == 1
    assert wide.min() < 1e-12


def test_mixed_decays_have_every_kind_in_one_case():
    """The regime that is drawn first: fast and slow channels side by side."""
    case = replace(ROOMY, decay="mixed").build()
    values = -np.expm1(solve(case).L)[0, 0]
    assert values.min() < 0.1
    assert values.max() > 0.9


@pytest.mark.parametrize(
    ("gates", "low", "high"),
    [("normal", -5, 5), ("spread", -30, 30), ("wide", -30, 30), ("saturated", -100, 100), ("closed", -35, 5)],
)
def test_gates_are_as_wide_as_their_regime_says(gates, low, high):
    """Bounds of the logits, and that most of the range is used over seeds."""
    logits = [replace(ROOMY, gates=gates, seed=n).build().gate_a for n in range(20)]
    least, most = min(v.min() for v in logits), max(v.max() for v in logits)
    assert low <= least < 0.6 * low
    assert most <= high
    assert gates != "saturated" or min(np.abs(v).min() for v in logits) == 30


@pytest.mark.parametrize("tile", [4, 8, 16])
def test_resets_lie_where_their_pattern_says(tile):
    """Each pattern is there to meet one fault: a border's is a carry that is not cleared."""

    def reset(pattern, seed=0):
        return replace(ROOMY, resets=pattern, tile=tile, seed=seed).build().reset

    steps = np.arange(ROOMY.steps)
    assert not reset("none").any()
    assert reset("all").all()
    assert np.array_equal(reset("first"), np.broadcast_to(steps == 0, (2, 40)))
    share = {name: np.mean([reset(name, seed) for seed in range(20)]) for name in ("sparse", "dense")}
    assert 0.05 < share["sparse"] < 0.15
    assert 0.4 < share["dense"] < 0.6
    offsets = set()
    for number in range(20):
        for row in reset("border", number):
            (offset,) = {int(step + 1) % tile - 1 for step in steps[row]}
            assert row.sum() >= 40 // tile
            offsets.add(offset)
    assert offsets == {-1, 0, 1}


def test_positions_count_up_from_each_reset():
    """As packed documents have them: 1, 2, 3 after each 0, and never 0 elsewhere."""
    positions = replace(ROOMY, resets="dense").build().segment_pos
    following = positions[:, 1:] != 0
    assert np.array_equal(positions[:, 1:][following], (positions[:, :-1] + 1)[following])


# --- what is drawn


def test_everything_that_can_be_drawn_is_drawn():
    """No regime hides behind another."""
    found = drawn(recipes(Scope(), cotangents=COTANGENTS), 300)
    for field, values in WHOLE_TABLE.items():
        seen = {getattr(recipe, field) for recipe in found}
        assert seen == set(values) - {"long", "extreme"}
    for size, most in (("rows", Scope.max_rows), ("width", Scope.max_width), ("steps", Scope.max_steps)):
        sizes = {getattr(recipe, size) for recipe in found}
        assert min(sizes) == 1
        assert 0.8 * most <= max(sizes) <= most
    assert {name for recipe in found for name, _, _ in recipe.overrides} == set(SPECIAL)


@pytest.mark.parametrize("tiles", [(8,), (5, 16)], ids=str)
def test_lengths_around_every_border_of_a_tile_are_drawn_often(tiles):
    """One short, exactly and one past k tiles: where partial tiles, carries and masks go wrong.

    Which are drawn depends on the modules that are loaded, whose constants Hypothesis draws: a few may lack.
    """
    found = Counter(recipe.steps for recipe in drawn(recipes(Scope(tiles=tiles, max_steps=33)), 3000))
    borders = {k * tile + off for tile in tiles for k in range(1, 33 // tile + 1) for off in (-1, 0, 1)}
    borders = {n for n in borders if 1 <= n <= 33}
    assert len(borders - set(found)) <= len(borders) // 5
    assert sum(found[n] for n in borders) > 0.3 * found.total()
    assert {1, 2, 3, 4, 5} <= set(found)


def test_long_cases_end_around_a_late_border():
    """A carry must be lost many tiles ago to be sure that it is gone."""
    found = {recipe.steps for recipe in drawn(recipes(Scope(tiles=(8,), max_long=100), long=True), 400)}
    assert found == {n for k in range(6, 13) for n in (8 * k - 1, 8 * k, 8 * k + 1) if 50 < n <= 100}


SCOPES = {
    "no resets": Scope(resets=False),
    "no state": Scope(h0=False),
    "one dtype": Scope(dtypes=("bfloat16",)),
    "wide": Scope(width_multiple=16, max_width=1),
    "long": Scope(min_length=20),
    "longer than a tile's first border": Scope(min_length=69, tiles=(64,)),
    "longer than what is drawn otherwise": Scope(min_length=100),
    "tiles beyond reach": Scope(tiles=(512,)),
    "small": Scope(max_rows=1, max_steps=2, max_width=1, max_long=5),
    "slow": Scope(program=(16, 64), max_programs=10, max_steps=160),
    "slow, long and wide": Scope(program=(8, 64), max_programs=4, min_length=100, width_multiple=128, tiles=(8,)),
}


@pytest.mark.parametrize("draws", [{}, {"long": True}, {"min_steps": 2, "min_rows": 2, "min_width": 2}], ids=str)
@pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES)
def test_what_a_subject_does_not_promise_is_never_drawn(scope, draws):
    """A clause must not convict a kernel of what it never claimed."""
    least = max(scope.min_length, draws.get("min_steps", 1))
    for recipe in drawn(recipes(scope, **draws)):
        case = recipe.build()
        assert case.dtype in scope.dtypes
        assert case.shape[2] % scope.width_multiple == 0
        assert case.shape[0] >= draws.get("min_rows", 1)
        assert case.shape[2] >= draws.get("min_width", 1)
        assert least <= case.shape[1] <= max(least, scope.max_long if "long" in draws else scope.max_steps)
        assert scope.resets or case.segment_pos is None
        assert scope.h0 or case.h0 is None


def test_a_case_is_no_larger_than_can_be_afforded():
    """The float64 oracle pays for every element."""
    scope = Scope(max_rows=4, max_steps=300, max_width=150, max_programs=2000)
    sizes = [recipe.rows * recipe.steps * recipe.width for recipe in drawn(recipes(scope))]
    assert max(sizes) <= 2000
    assert max(sizes) > 1500


CHUNKED = Scope(tiles=(4, 16, 64), max_rows=2, max_steps=160, max_long=160, program=(16, 64), max_programs=10)
"""Programs of 16 steps and 64 channels, each as slow as all that it could hold, in groups of 64 steps."""


def chunks(recipe: Recipe) -> int:
    return -(-recipe.steps // 16)


@pytest.mark.parametrize("draws", [{}, {"long": True}, {"min_rows": 2}, {"min_width": 2}], ids=str)
def test_where_programs_cost_a_case_takes_few(draws):
    """A program that is not full costs as much; most cases take one to three, so that many can be tried."""
    found = drawn(recipes(CHUNKED, **draws), 400)
    cost = [recipe.rows * chunks(recipe) * (1 + (recipe.width > 64)) for recipe in found]
    assert cost == [CHUNKED.programs(recipe.rows, recipe.steps, recipe.width) for recipe in found]
    assert 8 <= max(cost) <= CHUNKED.max_programs
    assert "long" in draws or np.mean(cost) < 3.5


def test_where_programs_cost_every_kind_of_border_is_crossed():
    """Between chunks, between groups of them, and between rows.

    How often depends on the modules that are loaded, as above: half of the least that was seen is asked for.
    """
    found = drawn(recipes(CHUNKED), 400)
    assert sum(chunks(recipe) > 1 for recipe in found) > 40
    assert sum(chunks(recipe) > 1 and recipe.rows > 1 for recipe in found) > 10
    assert any(recipe.steps > 64 for recipe in found)
    long = drawn(recipes(CHUNKED, long=True), 100)
    assert sum(recipe.steps > 64 for recipe in long) > 30
    assert any(recipe.steps > 64 and recipe.rows > 1 for recipe in long)
    assert any(recipe.steps > 128 for recipe in long)


def test_narrowed_choices_are_kept_to():
    """A clause's keywords are its meaning."""
    narrow = {"decays": ("slow",), "gates": ("closed",), "resets": ("first",), "states": ("large",), "scales": (8,)}
    for recipe in drawn(recipes(Scope(), **narrow, cotangents=("y",), overrides=False)):
        assert (recipe.decay, recipe.gates, recipe.resets, recipe.state, recipe.scale, recipe.cotangents) == (
            *("slow", "closed", "first", "large", 8),
            "y",
        )
        assert recipe.overrides == ()


@pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES)
def test_the_smallest_recipe_is_the_least_that_is_promised(scope):
    """What is always tried comes first and must be legal too."""
    for dtype in scope.dtypes:
        case = smallest(scope, dtype).build()
        assert case.shape == (1, max(1, scope.min_length), scope.width_multiple)
        assert (case.h0 is not None) == scope.h0
    assert smallest(scope, "float32", 0).steps == scope.min_length


# --- shrinking


SIMPLEST = Recipe(cotangents="absent")


def test_without_a_reason_the_smallest_case_is_found():
    """One element, first of every regime, seed 0: the case that needs no explanation."""
    assert smallest_such(lambda recipe: True) == SIMPLEST


def test_a_reset_shrinks_to_one_token():
    """Where any reset will do, the pattern and one token are left."""
    assert smallest_such(lambda r: r.build().reset.any(), resets=("dense",)) == replace(SIMPLEST, resets="dense")
    assert smallest_such(lambda r: r.build().reset.any()).steps == 1


def test_a_reset_behind_the_first_token_shrinks_to_a_few():
    """The seed is searched too: a sparse reset need not lie far out."""
    found = smallest_such(lambda r: r.build().reset[:, 1:].any())
    assert (found.rows, found.width, found.overrides) == (1, 1, ())
    assert found.steps <= 8


@pytest.mark.parametrize("steps", [4, 9, 16, 33])
def test_a_length_shrinks_to_the_one_that_matters(steps):
    """A kernel that fails from some length on is shown failing at that length, whichever tile it was found with.

    Shrinking may stop early now and then: two finds of three must get there.
    """
    shrunk = sorted(smallest_such(lambda r: r.steps >= steps, number=number).steps for number in range(3))
    assert shrunk[1] == steps


def test_sizes_shrink_each_for_itself():
    """Rows and channels stay as few as the fault allows."""
    found = smallest_such(lambda r: r.rows >= 2 and r.width >= 3)
    assert replace(found, rows=1, width=1) == SIMPLEST
    assert (found.rows, found.width) == (2, 3)


def test_a_regime_shrinks_alone():
    """What does not matter goes back to the first choice."""
    found = smallest_such(lambda r: r.decay == "slow" and r.dtype == "bfloat16")
    assert found == replace(SIMPLEST, decay="slow", dtype="bfloat16")


def test_overrides_shrink_away_or_to_one():
    """Three special values of which one matters are shown as one, at the first element."""
    found = smallest_such(lambda r: any(name == "gate_a" and value == -100.0 for name, _, value in r.overrides))
    assert found == replace(SIMPLEST, overrides=(("gate_a", 0, -100.0),))


def test_drawn_params_shrink_with_the_case():
    """A clause draws a step within the case: both go down together."""
    pairs = recipes(Scope(), min_steps=2).flatmap(
        lambda recipe: st.tuples(st.just(recipe), st.integers(1, recipe.steps - 1))
    )
    recipe, step = smallest_such(lambda pair: pair[1] >= 3, strategy=pairs)
    assert (recipe.steps, step) == (4, 3)
