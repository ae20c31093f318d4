"""Clauses 1, 2, 10, 14 and 15: outputs and gradients against the oracle."""

import itertools
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from kernels.subjects.run import INPUTS, MODES
from oracle import Case
from properties.contract import clause
from properties.strategies import Scope, smallest
from properties.trial import Trial

EVERYWHERE = np.s_[...]


@clause(1)
def test_y_and_h_last_lie_within_their_bounds(trial: Trial, case: Case):
    """The forward definition itself: every output element within the error an honest kernel may make."""
    trial.expect_right(case)


@clause(2, needs=("backward",), cotangents=("both", "y", "h_last"))
def test_every_gradient_lies_within_its_bound(trial: Trial, case: Case):
    """The adjoint: cotangents on y and h_last, each alone and both, reach every input as they should."""
    trial.expect_right(case)


def _sizes(case: Case, scope: Scope):
    """(rows, steps, width in multiples) around every border."""
    least = max(scope.min_length, 1)
    borders = {n for tile in scope.tiles for n in (tile - 1, tile, tile + 1, 2 * tile, 2 * tile + 1)}
    steps = sorted(n for n in {least, least + 1, least + 2, *borders} if least <= n <= max(scope.max_steps, least))
    shapes = itertools.product([1, 2, 3], steps, [1, 2, 5])
    wide = itertools.product([1], steps[:3], [1, 31, 63, 64, 65, 100, 129])
    affordable = [[size for size in sizes if scope.programs(*size) <= scope.max_programs] for sizes in (shapes, wide)]
    return st.one_of(*(st.sampled_from(sizes or [(1, least, 1)]) for sizes in affordable))


def _smallest_sizes(scope: Scope):
    """One of everything, every kind of nothing, and widths of whole vectors that no power of two is."""
    least = max(scope.min_length, 1)
    sizes = [(1, least, 1), (2, least, 3)]
    if scope.min_length == 0:
        sizes += [(2, 0, 3), (0, 1, 3), (2, 1, 0), (0, 0, 0)]
    for dtype in scope.dtypes:
        for size in sizes:
            yield smallest(scope, dtype), {"size": size}
    for units in (24, 40, 48, 192) if scope.program == (1, 1) else (24, 2 * scope.program[1]):
        width = -(-units // scope.width_multiple) * scope.width_multiple
        yield replace(smallest(scope, scope.dtypes[0]), width=width), {"size": (1, least, units)}


@clause(
    10,
    cotangents=("both", "absent"),
    states=("normal", "absent"),
    overrides=False,
    params={"size": _sizes},
    always=_smallest_sizes,
)
def test_every_size_is_right(trial: Trial, case: Case, size):
    """T = 1, D = 1, odd widths, widths and lengths around every tile, empty sizes (T = 0: h_last is a copy of h0)."""
    rows, steps, units = size
    multiple = trial.subject.width_multiple
    sizes = {"rows": rows, "steps": steps, "channels": -(-units // multiple) * multiple}
    # the case's own elements, repeated as often as the size wants
    index = {axis: np.arange(n) % have for (axis, n), have in zip(sizes.items(), case.shape, strict=True)}
    trial.expect_right(case.take(**index))


def _longest(scope: Scope):
    """As long as can be afforded, also in two rows or tiles of channels: a late border is not left to luck."""
    multiple = scope.width_multiple
    for rows, channels in ((1, 1), (2, 1), (1, scope.program[1] + 1)):
        width = -(-channels // multiple) * multiple
        steps = scope.longest(rows * scope.programs(1, 1, channels))
        recipe = smallest(scope, scope.dtypes[0], steps)
        yield replace(recipe, rows=rows, width=width, decay="slow"), {}
    if scope.program == (1, 1):  # what only large sizes together show is affordable a few times
        for rows, steps, channels in LARGE:
            recipe = smallest(scope, scope.dtypes[0], steps)
            width = -(-channels // scope.width_multiple) * scope.width_multiple
            yield replace(recipe, rows=rows, width=width, decay="slow"), {}


LARGE = ((2, 150, 130), (70, 9, 2), (1, 1100, 1))
"""B, T, D: borders in time in later tiles of channels; sums over more than 64 rows and 600 tokens; 1,024 steps."""


@clause(
    14,
    always=_longest,
    decays=("long",),
    gates=("normal", "closed"),
    resets=("absent", "first", "border", "sparse"),
    states=("large", "normal"),
    cotangents=("both",),
    scales=(0,),
    long=True,
    overrides=False,
)
def test_a_long_memory_is_carried_over_every_border(trial: Trial, case: Case):
    """Decays between 0.9 and 0.9999 over many tiles: a carry that is lost, stale or rounded anywhere shows."""
    trial.expect_right(case)


def _subsets(case: Case, scope: Scope):
    names = [name for name in INPUTS if getattr(case, name) is not None]
    wanted = st.tuples(*(st.booleans() for _ in names))
    return wanted.map(lambda flags: [name for name, flag in zip(names, flags, strict=True) if flag])


def _each_alone(scope: Scope):
    """One gradient wanted and no other: whoever computes one on the way to another shows it."""
    recipe = smallest(scope, scope.dtypes[0], 2)
    case = recipe.build()
    for name in INPUTS:
        if getattr(case, name) is not None:
            yield recipe, {"requires_grad": [name]}


@clause(15, cotangents=("both", "y", "h_last"), params={"requires_grad": _subsets}, always=_each_alone)
def test_optional_arguments_and_any_subset_of_gradients(trial: Trial, case: Case, requires_grad):
    """segment_pos and h0 given or not, any inputs requiring a gradient, any outputs used: the rest stays as it is.

    So it does under no_grad and in inference mode, where a kernel may take another path.
    """
    result = trial.expect_right(case, requires_grad=tuple(requires_grad))
    for mode in MODES:
        why = f"outputs must not depend on which gradients are wanted, nor on torch.{mode}"
        trial.expect_same(result, trial.run(case, mode=mode), why, y=EVERYWHERE, h_last=EVERYWHERE)
