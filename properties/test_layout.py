"""Clauses 11 and 12: memory and repetition. Where a tensor lies, and when a call is made, must not matter."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from kernels.subjects.run import INPUTS, LAYOUTS, as_laid_out
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


def _named(scope: Scope):
    """Each layout for all arrays at once, also (where examples cost, in every other layout) with sizes of 1, whose
    strides mean nothing; and the lengths at which an output can be an input by oversight."""
    for n, layout in enumerate(LAYOUTS[1:]):
        alternating = (2, 1 if n % 2 else 3, 3)
        for rows, steps, units in ((2, 3, 3), (2, 1, 1)) if scope.program == (1, 1) else (alternating,):
            recipe = replace(
                smallest(scope, scope.dtypes[0], steps),
                rows=rows,
                width=units * scope.width_multiple,
                resets="dense" if scope.resets else "absent",
                positions=("int64", "int32")[n // 2 % 2],
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
    """Transposed, sliced, strided, offset, expanded and shared inputs and cotangents, in guarded memory.

    Outputs are written whole (new memory is NaN), inputs and the bands around them never, and outputs alias nothing,
    also where x and h0 are zero and y could be x.
    """
    if zero:
        case = case.replace(
            **{name: np.zeros_like(v) for name in ("x", "h0") if (v := getattr(case, name)) is not None}
        )
    layouts = tuple((name, layout) for name, layout in layouts)
    trial.expect_right(as_laid_out(case, layouts), layouts=layouts, guarded=True)


@clause(11, needs=("strides",), cotangents=("both", "y", "absent"), params={"layouts": _layouts})
def test_other_strides_give_the_same_bits(trial: Trial, case: Case, layouts):
    """Where equal bits at other strides are promised."""
    layouts = tuple((name, layout) for name, layout in layouts)
    case = as_laid_out(case, layouts)
    trial.expect_same(trial.run(case, layouts=layouts), trial.run(case), f"laid out as {layouts}", **EVERY_OUTPUT)


@clause(12, cotangents=("both", "absent", "h_last"))
def test_a_call_repeated_after_others_gives_the_same_bits(trial: Trial, case: Case):
    """Cold equals warm, after a call with NaN everywhere, after one of another shape: no state outlives a call.

    Nor does it where the same tensors held other values in a call before, whose gradients stay. Nor does a later
    forward, or a first backward, touch what a backward needs.
    """
    cold = trial.run(case)
    trial.run(poison(case, "nan", (*TOKENS, "a_param", "h0", "dy", "dh_last")))
    trial.run(case.take(steps=slice(0, max(trial.subject.min_length, case.shape[1] - 1))))
    why = "the second call with the same inputs, which had held other values in a call before"
    trial.expect_same(trial.run(case, reused=True), cold, why, **EVERY_OUTPUT)
    why = "another forward came before the backward, which was run twice"
    trial.expect_same(trial.run(case, interleaved=True), cold, why, **EVERY_OUTPUT)


OVERWRITTEN = ("y", "h_last", "segment_pos", *INPUTS)


def _overwritten(case: Case, scope: Scope):
    return st.sampled_from([name for name in OVERWRITTEN if getattr(case, name, True) is not None])


def _outputs_and_positions(scope: Scope):
    """What a kernel is most likely to keep without autograd."""
    recipe = smallest(scope, scope.dtypes[0], 3)
    yield recipe, {"name": "y"}
    if scope.resets:
        yield replace(recipe, resets="first"), {"name": "segment_pos"}


@clause(
    12,
    needs=("backward",),
    cotangents=("both", "y"),
    params={"name": _overwritten},
    always=_outputs_and_positions,
)
def test_what_is_overwritten_before_the_backward_is_noticed_or_does_not_matter(trial: Trial, case: Case, name):
    """Between forward and backward an output or an input may be written to in place, as by an activation.

    Autograd raises then for what was saved with it; gradients of the new values are wrong.
    """
    trial.expect_right(case, overwritten=name)
