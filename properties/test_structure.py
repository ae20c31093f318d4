"""Clauses 3 to 9: what a recurrence with resets must keep, whatever its values."""

import itertools
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from oracle import Case, Result
from properties.contract import clause
from properties.edits import POISONS, TOKENS, all_but, poison, with_reset
from properties.strategies import Scope, smallest
from properties.trial import Failure, Trial

WHOLE = np.s_[...]
EVERY_COTANGENT = ("both", "y", "h_last")


def _cuts(case: Case, scope: Scope):
    """Up to three steps at which to cut, no piece shorter than the shortest legal one (an empty one, where legal)."""
    steps, least = case.shape[1], scope.min_length
    return st.lists(st.integers(0, steps), min_size=1, max_size=3, unique=True).map(
        lambda cuts: _apart(cuts, steps, least)
    )


def _apart(cuts, steps: int, least: int) -> list[int]:
    kept = [0]
    for cut in sorted(cuts):
        if cut - kept[-1] >= least and steps - cut >= least:
            kept.append(cut)
    return kept[1:]


@clause(3, needs=("h0", "h_last"), cotangents=("both", "h_last", "y"), min_steps=2, params={"cuts": _cuts})
def test_any_split_with_the_state_handed_on_is_one_call(trial: Trial, case: Case, cuts):
    """Streaming: h_last is the whole memory; forward and gradients through it are those of one call."""
    trial.expect_right(case, cuts=tuple(cuts))


def _multiples(case: Case, scope: Scope):
    steps, split = case.shape[1], scope.split or 1
    borders = list(range(split, steps, split))
    if not borders:
        return st.just([])
    cuts = st.lists(st.sampled_from(borders), max_size=3, unique=True)
    return cuts.map(lambda cuts: _apart(cuts, steps, scope.min_length))


@clause(3, needs=("h0", "h_last", "split"), min_steps=2, params={"cuts": _multiples})
def test_a_split_at_the_declared_multiples_gives_the_same_bits(trial: Trial, case: Case, cuts):
    """Where a kernel declares `split`, streaming at its multiples is not only right but equal."""
    cuts = [cut for cut in cuts if cut % trial.subject.split == 0]  # a kept case may have another kernel's
    split, whole = trial.run(case, cuts=tuple(cuts)), trial.run(case)
    trial.expect_same(split, whole, f"split at {cuts} against one call", y=WHOLE, h_last=WHOLE)


@clause(
    4,
    needs=("resets",),
    resets=("first",),
    states=("absent", "normal"),
    cotangents=("both", "absent", "y"),
    params={"starts": _cuts},
)
def test_packed_documents_are_documents_run_alone(trial: Trial, case: Case, starts):
    """A row of documents packed with resets gives each document what it gets in a row of its own, gradients too."""
    rows, steps, _ = case.shape
    borders = sorted({0, *(start for start in starts if 0 < start < steps), steps})
    positions = np.arange(steps) - np.array(borders[:-1])[np.searchsorted(borders[:-1], np.arange(steps), "right") - 1]
    packed = case.replace(segment_pos=np.broadcast_to(positions, (rows, steps)).copy())
    together = trial.expect_right(packed)
    alone = []
    for start, stop in itertools.pairwise(borders):
        document = packed.take(steps=slice(start, stop))
        if stop < steps and document.dh_last is not None:
            document = document.replace(dh_last=np.zeros_like(document.dh_last))
        alone.append(trial.expect_right(document))
    joined = {
        name: np.concatenate([getattr(result, name) for result in alone], 1)
        for name in ("y", "dx", "dgate_x", "dgate_a")
        if getattr(together, name) is not None
    }
    trial.judge(packed, Result(**joined, h_last=alone[-1].h_last))
    split = trial.subject.split
    if split is not None and all(border % split == 0 for border in borders[:-1]):
        index = dict.fromkeys(joined, WHOLE)
        trial.expect_same(together, Result(**joined), f"documents {borders} packed against alone", **index)


def _inner_step(case: Case, scope: Scope):
    return st.integers(1, case.shape[1] - 1)


def _any_step(case: Case, scope: Scope):
    return st.integers(0, case.shape[1] - 1)


def _poisons(case: Case, scope: Scope):
    return st.sampled_from(POISONS)


@clause(5, needs=("resets",), cotangents=EVERY_COTANGENT, params={"step": _any_step, "kind": _poisons})
def test_nothing_before_a_reset_reaches_what_follows(trial: Trial, case: Case, step, kind):
    """The past is selected away, not multiplied by zero: NaN and infinity before a reset, or in h0, stay there."""
    case = with_reset(case, step)
    before = np.arange(case.shape[1]) < step
    changed = poison(poison(case, kind, (*TOKENS, "dy"), steps=before), kind, ("h0",))
    at_reset = np.zeros(case.shape[1], bool)
    at_reset[step] = True
    changed = poison(changed, kind, ("gate_a",), steps=at_reset)
    after, strictly = np.s_[:, step:], np.s_[:, step + 1 :]
    trial.expect_same(
        trial.run(changed),
        trial.run(case),
        f"everything before the reset at t = {step}, h0 and its gate_a were replaced ({kind})",
        y=after,
        h_last=WHOLE,
        dx=after,
        dgate_x=after,
        dgate_a=strictly,
    )


@clause(
    5,
    needs=("resets", "backward"),
    cotangents=("both", "y"),
    params={"step": _inner_step, "kind": _poisons},
    min_steps=2,
)
def test_no_gradient_crosses_a_reset_backwards(trial: Trial, case: Case, step, kind):
    """Cotangents, values and NaN from a reset on leave every gradient before it, and dh0, as they are."""
    case = with_reset(case, step)
    later = np.arange(case.shape[1]) >= step
    changed = poison(poison(case, kind, (*TOKENS, "dy"), steps=later), kind, ("dh_last",))
    earlier = np.s_[:, :step]
    trial.expect_same(
        trial.run(changed),
        trial.run(case),
        f"everything from the reset at t = {step} on, and dh_last, were replaced ({kind})",
        dx=earlier,
        dgate_x=earlier,
        dgate_a=earlier,
        dh0=WHOLE,
    )


@clause(
    5,
    needs=("resets", "backward"),
    cotangents=EVERY_COTANGENT,
    params={"step": _any_step, "kind": lambda case, scope: st.sampled_from(("nan", "inf"))},
)
def test_dgate_a_at_a_reset_after_a_nan_is_zero(trial: Trial, case: Case, step, kind):
    """Under autograd, where(reset, u, a * h + u) multiplies zero by the NaN it did not select: select h first."""
    case = with_reset(case, step)
    before = np.arange(case.shape[1]) < step
    result = trial.run(poison(poison(case, kind, TOKENS, steps=before), kind, ("h0",)))
    assert result.dgate_a is not None
    at_reset = result.dgate_a[:, step]
    if np.any(at_reset != 0):
        raise Failure(f"dgate_a at the reset t = {step} is {at_reset.tolist()}, should be 0 exactly")


NON_FINITE = ("x", "gate_x", "gate_a", "a_param", "h0", "dy", "dh_last")


def _tokens_or_states(case: Case, scope: Scope):
    return st.sampled_from(NON_FINITE)


def _each_input(scope: Scope):
    """A NaN in each input at a reset: whoever multiplies by zero does so in a place of his own."""
    for name in NON_FINITE:
        recipe = replace(smallest(scope, scope.dtypes[0], 2), resets="first")
        yield recipe, {"step": 0, "name": name, "kind": "nan"}


@clause(
    5,
    needs=("resets",),
    always=_each_input,
    resets=("sparse", "dense", "all", "first"),
    cotangents=("both",),
    min_steps=2,
    scales=(0,),
    params={"step": _any_step, "name": _tokens_or_states, "kind": lambda case, scope: st.sampled_from(("nan", "inf"))},
)
def test_non_finite_values_spread_up_to_the_next_reset_and_no_further(trial: Trial, case: Case, step, name, kind):
    """The table of non-finite values: what must be NaN or infinite is, and everything else keeps its bound."""
    if name == "a_param":  # a reset does not use it, whatever other tokens do with it
        alone = case.reset & np.append(case.reset[:, 1:], np.ones((case.shape[0], 1), bool), axis=1)
        trial.expect_same(
            trial.run(poison(case, kind, (name,))),
            trial.run(case),
            f"a_param was replaced ({kind}), which no reset uses",
            y=case.reset,
            dx=alone,
            dgate_x=alone,
        )
        case = case.replace(segment_pos=np.zeros(case.shape[:2], np.int64))
    here = np.zeros(case.shape[1], bool)
    here[step] = True
    changed = poison(case, kind, (name,), steps=here)
    result = trial.run(changed)
    if result.dgate_a is not None:  # at resets it has a test of its own
        result.dgate_a[changed.reset] = 0
    trial.judge(changed, result)


@clause(6, cotangents=EVERY_COTANGENT, min_steps=2, params={"step": _inner_step, "kind": _poisons})
def test_later_tokens_never_change_earlier_outputs(trial: Trial, case: Case, step, kind):
    """Causality, with NaN and infinity among the later values; and no cotangent reaches a gradient after it."""
    steps = np.arange(case.shape[1])
    changed = poison(case, kind, TOKENS, steps=steps >= step)
    if case.segment_pos is not None:
        flipped = np.where((steps >= step) & (case.segment_pos != 0), 0, np.array(case.segment_pos))
        changed = changed.replace(segment_pos=flipped)
    original = trial.run(case)
    trial.expect_same(
        trial.run(changed), original, f"tokens from t = {step} on were replaced ({kind})", y=np.s_[:, :step]
    )
    later = np.s_[:, step:]
    trial.expect_same(
        trial.run(poison(case, kind, ("dy",), steps=steps < step)),
        original,
        f"dy before t = {step} was replaced ({kind})",
        dx=later,
        dgate_x=later,
        dgate_a=later,
    )


def _index(axis: int):
    return lambda case, scope: st.integers(0, case.shape[axis] - 1)


@clause(7, cotangents=EVERY_COTANGENT, min_rows=2, params={"row": _index(0), "kind": _poisons})
def test_a_row_does_not_depend_on_other_rows(trial: Trial, case: Case, row, kind):
    """Whatever the other rows hold, NaN included, a row keeps its bits (da_param apart, which sums over rows)."""
    others = all_but(case.shape[0], row)
    changed = poison(case, kind, (*TOKENS, "dy", "h0", "dh_last"), rows=others)
    if case.segment_pos is not None:
        changed = changed.replace(
            segment_pos=np.where(others[:, None], 1 - np.sign(case.segment_pos), case.segment_pos)
        )
    same = dict.fromkeys(("y", "h_last", "dx", "dgate_x", "dgate_a", "dh0"), np.s_[row])
    trial.expect_same(trial.run(changed), trial.run(case), f"rows other than {row} were replaced ({kind})", **same)


@clause(7, cotangents=EVERY_COTANGENT, min_width=2, params={"channel": _index(2), "kind": _poisons})
def test_a_channel_does_not_depend_on_other_channels(trial: Trial, case: Case, channel, kind):
    """Whatever the other channels hold, NaN included, a channel keeps its bits, da_param too."""
    others = all_but(case.shape[2], channel)
    changed = poison(case, kind, (*TOKENS, "a_param", "dy", "h0", "dh_last"), channels=others)
    same = dict.fromkeys(("y", "h_last", "dx", "dgate_x", "dgate_a", "da_param", "dh0"), np.s_[..., channel])
    why = f"channels other than {channel} were replaced ({kind})"
    trial.expect_same(trial.run(changed), trial.run(case), why, **same)


def _rows(case: Case, scope: Scope):
    rows = case.shape[0]
    return st.lists(st.integers(0, rows - 1), min_size=1, max_size=max(rows, scope.max_rows))


def _channels(case: Case, scope: Scope):
    width, multiple = case.shape[2], scope.width_multiple
    most = max(width, 4 * multiple)
    chosen = st.lists(st.integers(0, width - 1), min_size=multiple, max_size=most)
    return chosen.map(lambda channels: channels[: len(channels) // multiple * multiple])


@clause(7, needs=("B",), cotangents=EVERY_COTANGENT, params={"rows": _rows})
def test_rows_permuted_repeated_or_left_out_keep_their_bits(trial: Trial, case: Case, rows):
    """Where equal bits in another batch are promised: any selection of rows gives the selection of outputs."""
    got, whole = trial.run(case.take(rows=rows)), trial.run(case)
    for place, row in enumerate(rows):
        for name in ("y", "h_last", "dx", "dgate_x", "dgate_a", "dh0"):
            if getattr(whole, name) is not None:
                _same_part(trial, got, whole, name, np.s_[place], np.s_[row], f"row {row} in the batch {rows}")


@clause(7, needs=("D",), cotangents=EVERY_COTANGENT, params={"channels": _channels})
def test_channels_permuted_repeated_or_left_out_keep_their_bits(trial: Trial, case: Case, channels):
    """Where equal bits at another width are promised: any selection of channels gives the selection of outputs."""
    got, whole = trial.run(case.take(channels=channels)), trial.run(case)
    for name in ("y", "h_last", "dx", "dgate_x", "dgate_a", "da_param", "dh0"):
        if getattr(whole, name) is not None:
            _same_part(trial, got, whole, name, WHOLE, np.s_[..., channels], f"channels {channels}")


def _prefixes(case: Case, scope: Scope):
    return st.integers(max(scope.min_length, 1), case.shape[1])


@clause(7, needs=("T",), cotangents=("absent",), min_steps=2, params={"steps": _prefixes})
def test_a_prefix_of_a_longer_sequence_has_the_same_bits(trial: Trial, case: Case, steps):
    """Where equal bits in a longer sequence are promised: y of the first tokens does not depend on how many follow."""
    short, whole = trial.run(case.take(steps=slice(0, steps))), trial.run(case)
    _same_part(trial, short, whole, "y", WHOLE, np.s_[:, :steps], f"the first {steps} steps alone")


def _same_part(trial: Trial, got: Result, whole: Result, name: str, left, right, why: str):
    """Compare a part of one output with a part of another."""
    part = Result(**{name: getattr(got, name)[left]})
    trial.expect_same(part, Result(**{name: getattr(whole, name)[right]}), why, **{name: WHOLE})


def _powers(case: Case, scope: Scope):
    # float16 x has values that a smaller power would make subnormal
    return st.integers(0 if case.dtype == "float16" else -6, 6)


@clause(
    8,
    decays=("mixed", "typical"),
    gates=("normal",),
    scales=(0,),
    cotangents=EVERY_COTANGENT,
    overrides=False,
    params={"power": _powers, "sign": lambda case, scope: st.sampled_from((1.0, -1.0))},
)
def test_outputs_are_linear_in_x_and_h0_and_gradients_in_the_cotangents(trial: Trial, case: Case, power, sign):
    """Times a power of two nothing rounds differently: outputs scale bit for bit while every value is normal."""
    factor = sign * 2.0**power
    original = trial.run(case)
    scaled_inputs = trial.run(_scaled(case, ("x", "h0"), factor))
    _expect_scaled(trial, scaled_inputs, original, factor, ("y", "h_last"), case, "x and h0")
    scaled_cotangents = trial.run(_scaled(case, ("dy", "dh_last"), factor))
    names = ("dx", "dgate_x", "dgate_a", "da_param", "dh0")
    _expect_scaled(trial, scaled_cotangents, original, factor, names, case, "the cotangents")


def _scaled(case: Case, names, factor: float) -> Case:
    present = {name: getattr(case, name) for name in names if getattr(case, name) is not None}
    return case.replace(**{name: array * np.float32(factor) for name, array in present.items()})


def _expect_scaled(trial: Trial, got: Result, original: Result, factor: float, names, case: Case, what: str):
    smallest = 2.0**-14 if case.dtype == "float16" else 2.0**-100
    largest = 65504.0 if case.dtype == "float16" else 2.0**100
    for name in names:
        before, after = getattr(original, name), getattr(got, name)
        if before is None:
            continue
        wanted = before * factor
        normal = (np.minimum(np.abs(before), np.abs(wanted)) > smallest) & (np.abs(wanted) <= largest)
        why = f"{what} were multiplied by {factor}"
        trial.expect_same(Result(**{name: after}), Result(**{name: wanted}), why, **{name: normal})


def _other_positions(case: Case, scope: Scope):
    return st.lists(st.sampled_from((-1, 1, 2, 7, 2**15, 2**31 - 1, -(2**31))), min_size=1, max_size=4)


@clause(
    9,
    needs=("resets",),
    resets=("none", "sparse", "dense", "border"),
    cotangents=("both", "absent"),
    params={
        "positions": _other_positions,
        "beyond": lambda case, scope: st.sampled_from((2**31, 2**32, -(2**32), 2**40)),
    },
)
def test_only_zero_in_segment_pos_matters(trial: Trial, case: Case, positions, beyond):
    """Any other position, negative or beyond 32 bits, is no reset; int32 and int64 mean the same."""
    filler = np.resize(np.array(positions, np.int64), case.shape[:2])
    other = np.where(case.reset, 0, filler)
    same = dict.fromkeys(("y", "h_last", "dx", "dgate_x", "dgate_a", "da_param", "dh0"), WHOLE)
    original = trial.run(case)
    for segment_pos, what in (
        (other, f"int64 positions {positions}"),
        (other.astype(np.int32), f"int32 positions {positions}"),
        (np.where(case.reset, 0, beyond), f"positions of {beyond}"),
    ):
        changed = trial.run(case.replace(segment_pos=segment_pos))
        trial.expect_same(changed, original, f"{what} instead of the counted ones", **same)
