"""Clauses 11 and 12: memory and repetition. Where a tensor lies, and when a call is made, must not matter."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from kernels.subjects.run import INPUTS, LAYOUTS
from oracle import Case
from properties.contract import clause
from properties.edits import TOKENS, poison
from properties.strategies import Scope, smallest
from properties.trial import Trial

WHOLE = np.s_[...]
EVERY_OUTPUT = dict.fromkeys(("y", "h_last", "dx", "dgate_x", "dgate_a", "da_param", "dh0"), WHOLE)
LAID_OUT = (*INPUTS, "segment_pos", "dy", "dh_last")


def _layouts(case: Case, scope: Scope):
    names = [name for name in LAID_OUT if getattr(case, name) is not None]
    return st.lists(
        st.tuples(st.sampled_from(names), st.sampled_from(LAYOUTS[1:])),
        min_size=1,
        max_size=4,
        unique_by=lambda pair: pair[0],
    )


def _with_equal_rows(case: Case, layouts) -> Case:
    """The case with the rows repeated that an expanded layout repeats."""
    repeated = {}
    for name, layout in layouts:
        array = getattr(case, name)
        if layout == "expanded" and array.size:
            repeated[name] = np.broadcast_to(array[:1], array.shape)
    return case.replace(**repeated)


def _named(scope: Scope):
    """Each layout for all arrays at once, and the lengths at which an output can be an input by oversight."""
    for layout in LAYOUTS[1:]:
        recipe = replace(
            smallest(scope, scope.dtypes[0], max(3, scope.min_length)),
            rows=2,
            width=3 * scope.width_multiple,
            resets="dense" if scope.resets else "absent",
        )
        case = recipe.build()
        names = [name for name in LAID_OUT if getattr(case, name) is not None]
        yield recipe, {"layouts": [(name, layout) for name in names], "zero": False}
    for dtype in scope.dtypes:
        for steps in (0, 1, 2):
            recipe = smallest(scope, dtype, steps)
            for state in sorted({recipe.state, "absent"}):
                for zero in (False, True):
                    yield replace(recipe, state=state), {"layouts": [], "zero": zero}


@clause(
    11,
    cotangents=("both", "y", "absent"),
    params={"layouts": _layouts, "zero": lambda case, scope: st.booleans()},
    always=_named,
)
def test_any_strides_are_right_and_memory_around_is_left_alone(trial: Trial, case: Case, layouts, zero):
    """Transposed, sliced, strided, offset and expanded inputs and cotangents, in guarded memory.

    Outputs are written whole (new memory is NaN), inputs and the bands around them never, and outputs alias nothing,
    also where x and h0 are zero and y could be x.
    """
    if zero:
        case = case.replace(
            **{name: np.zeros_like(v) for name in ("x", "h0") if (v := getattr(case, name)) is not None}
        )
    layouts = tuple((name, layout) for name, layout in layouts)
    trial.expect_right(_with_equal_rows(case, layouts), layouts=layouts, guarded=True)


@clause(11, needs=("strides",), cotangents=("both", "y", "absent"), params={"layouts": _layouts})
def test_other_strides_give_the_same_bits(trial: Trial, case: Case, layouts):
    """Where equal bits at other strides are promised."""
    layouts = tuple((name, layout) for name, layout in layouts)
    case = _with_equal_rows(case, layouts)
    trial.expect_same(trial.run(case, layouts=layouts), trial.run(case), f"laid out as {layouts}", **EVERY_OUTPUT)


@clause(12, cotangents=("both", "absent", "h_last"))
def test_a_call_repeated_after_others_gives_the_same_bits(trial: Trial, case: Case):
    """Cold equals warm, after a call with NaN everywhere, after one of another shape: no state outlives a call.

    Nor does a later forward, or a first backward, touch what a backward needs.
    """
    cold = trial.run(case)
    trial.run(poison(case, "nan", (*TOKENS, "a_param", "h0", "dy", "dh_last")))
    trial.run(case.take(steps=slice(0, max(trial.subject.min_length, case.shape[1] - 1))))
    trial.expect_same(trial.run(case), cold, "the second call with the same inputs", **EVERY_OUTPUT)
    why = "another forward came before the backward, which was run twice"
    trial.expect_same(trial.run(case, interleaved=True), cold, why, **EVERY_OUTPUT)
