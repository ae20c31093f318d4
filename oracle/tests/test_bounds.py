"""The error bounds: values known by hand, orderings, overflow and selection, and that an honest loop stays inside."""

from dataclasses import replace

import numpy as np
import pytest

from oracle.bounds import DEFAULT, FAST, GRADES, LIBM, bound
from oracle.case import GRADIENTS, IN_CASE_DTYPE, OUTPUTS, Case, Result
from oracle.formats import FORMATS, OVERFLOW, U, round_to
from oracle.reference import solve
from oracle.tests.cases import DTYPES, FINITE_KINDS, cases, ordinary
from oracle.verdict import judge

SERIAL = replace(LIBM, order="serial")
ONE = np.ones((1, 1, 1))
HUGE = 2.0**127


def assert_larger(larger, smaller, what: str, names=OUTPUTS):
    for name in names:
        assert (getattr(larger, name) >= getattr(smaller, name)).all(), f"{name}: {what}"


def test_the_write_at_a_reset_has_the_bound_one_counts_by_hand():
    """y = i x, i = 1/2: e_i = (2/2 + 1 + 1) u / 2 = 1.5 u, two products u, one addition u/2; nothing of the past."""
    case = Case(x=ONE, gate_x=0 * ONE, gate_a=ONE, a_param=[1], segment_pos=[[0]], h0=[[2.0**99]], dy=ONE)
    bounds = bound(solve(case), SERIAL)
    assert bounds.y.item() == pytest.approx(3 * U, rel=1e-3)
    assert bounds.h_last.item() == bounds.y.item()
    assert bounds.dx.item() == pytest.approx(3 * U, rel=1e-3)  # g: u for its addition; then as y without one
    assert bounds.dgate_a.item() == bounds.da_param.item() == bounds.dh0.item() == 0
    # up to ceil(log2(T + 1)) + 2 = 3 more additions of a value 1/2
    assert bound(solve(case), LIBM).y.item() == pytest.approx(4.5 * U, rel=1e-3)


def test_the_decay_of_a_state_has_the_bound_one_counts_by_hand():
    """h = a h0, a = 1/16: L is off by 8 (r e_sp + sp e_r + 2 u r sp), exp by 2 u, product and addition by u each."""
    case = Case(x=0 * ONE, gate_x=0 * ONE, gate_a=0 * ONE, a_param=[0], h0=[[1]])
    log2 = np.log(2)
    e_softplus, e_r = (2 * 0.5 + 3 * log2) * U, 1.5 * U
    e_L = 8 * (0.5 * e_softplus + log2 * e_r + 2 * U * 0.5 * log2)
    assert bound(solve(case), SERIAL).y.item() == pytest.approx((e_L + 2 * U + 2 * U) / 16, rel=1e-3)


def test_cancellation_is_the_price_of_the_canonical_grade():
    """As L goes to 0, 1 - a a is off by 5 u whatever its value, hence the multiplier by sqrt(5 u)."""
    case = Case(x=ONE, gate_x=0 * ONE, gate_a=0 * ONE, a_param=[-30])
    reference = solve(case)
    assert bound(reference, SERIAL, "canonical").y.item() == pytest.approx(0.5 * np.sqrt(5 * U), rel=0.01)
    assert bound(reference, SERIAL, "accurate").y.item() < 20 * U * reference.y.item()


def test_da_param_pays_for_every_term_and_every_addition():
    """N equal terms w: N times the error of one, and N - 1 roundings of a sum N |w| (x = 0 keeps one part of dL)."""
    one = Case(x=0 * ONE, gate_x=ONE, gate_a=ONE, a_param=[-2], h0=[[1]], dy=ONE)
    n = 64
    many = one.take(rows=np.zeros(n, int))
    alone, w = bound(solve(one), LIBM).da_param.item(), abs(solve(one).da_param.item())
    assert bound(solve(many), LIBM).da_param.item() == pytest.approx(n * alone + (n - 1) * U * n * w, rel=1e-4)
    tree = replace(LIBM, da_param_additions=lambda batch, steps: 6)
    assert bound(solve(many), tree).da_param.item() == pytest.approx(n * alone + 6 * U * n * w, rel=1e-4)


def test_a_laxer_assumption_never_shrinks_a_bound():
    """Grades, profiles and orders are nested sets of kernels; their bounds must be nested too."""
    for case in cases(60, elements=40):
        reference = solve(case)
        for profile in (LIBM, FAST, DEFAULT):
            accurate, canonical = (bound(reference, profile, grade) for grade in GRADES)
            assert_larger(canonical, accurate, f"canonical below accurate ({profile.name})")
        libm, fast, default, serial = (bound(reference, profile) for profile in (LIBM, FAST, DEFAULT, SERIAL))
        assert_larger(fast, libm, "fast below libm")
        assert_larger(libm, serial, "practical below serial")
        assert_larger(bound(reference, replace(LIBM, order="any")), serial, "any below serial")
        assert_larger(default, bound(reference, replace(FAST, order="any")), "sums of logs shrink a bound")
        assert_larger(bound(reference, replace(LIBM, extra_additions=9)), libm, "additions shrink a bound")


@pytest.mark.parametrize("saved", ["bfloat16", "float16"])
def test_a_saved_state_loosens_only_what_reads_it(saved):
    """h_{t-1} enters dgate_a and da_param alone; a kernel that saves it in 16 bits has no excuse elsewhere."""
    reference = solve(ordinary(1))
    rounded, exact = bound(reference, replace(LIBM, saved=saved)), bound(reference, LIBM)
    assert_larger(rounded, exact, "saved state")
    for name in OUTPUTS:
        changed = getattr(rounded, name) > getattr(exact, name)
        assert changed.any() == (name in ("dgate_a", "da_param")), name
    assert (rounded.dgate_a[:, 0] == exact.dgate_a[:, 0]).all(), "h0 itself is read as float32"


def test_declared_additions_tighten_only_da_param():
    """The declaration says how da_param is summed, nothing else."""
    reference = solve(ordinary(2))
    declared = bound(reference, replace(LIBM, da_param_additions=lambda batch, steps: batch + steps))
    free = bound(reference, LIBM)
    for name in OUTPUTS:
        a, b = getattr(declared, name), getattr(free, name)
        assert (a < b).all() if name == "da_param" else (a == b).all(), name


def where_infinite(error):
    return "".join("X" if np.isinf(e) else "." for e in error[0, :, 0])


def overflow_case():
    """x overflows at step 2, dy at step 6, with a reset at 4; decays so small that the state forgets at once."""
    x, dy = np.ones((1, 8, 1)), np.ones((1, 8, 1))
    x[0, 2], dy[0, 6] = HUGE, HUGE
    positions = [[1, 1, 1, 1, 0, 1, 1, 1]]
    return Case(x=x, gate_x=x * 0 + 9, gate_a=x * 0 + 9, a_param=[9], segment_pos=positions, h0=[[1]], dy=dy)


def test_an_overflow_sticks_until_the_next_reset_and_enters_the_gradients():
    """infinity * 0 is NaN: a float32 state that overflowed cannot recover before it is selected away."""
    bounds = bound(solve(overflow_case()), LIBM)
    assert where_infinite(bounds.y) == "..XX...."
    assert where_infinite(bounds.dx) == "....XXX."
    assert where_infinite(bounds.dgate_x) == "..X.XXX."
    assert where_infinite(bounds.dgate_a) == "..XX.XX."
    assert np.isinf(bounds.da_param).all()
    assert np.isfinite(bounds.h_last).all()
    assert np.isfinite(bounds.dh0).all()


def test_a_single_term_that_overflows_unjudges_da_param():
    """One term needs no addition: the rounding of none, times infinity, must not become NaN."""
    case = Case(x=HUGE / 16 * ONE, gate_x=0 * ONE, gate_a=-12 * ONE, a_param=[-5], dy=ONE)
    assert np.isinf(bound(solve(case), LIBM).da_param).all()


def test_a_sum_that_overflows_unjudges_da_param():
    """Each of forty terms fits into float32, their sum does not."""
    zero = np.zeros((40, 1, 1))
    case = Case(
        x=zero, gate_x=zero, gate_a=zero, a_param=[-2], h0=np.full((40, 1), 0.9 * OVERFLOW, np.float32), dy=zero + 1
    )
    reference = solve(case)
    assert abs(reference.da_param.item()) > FORMATS["float32"].largest > abs(reference.w).max()
    assert np.isinf(bound(reference, LIBM).da_param).all()


def test_the_constant_of_the_decay_may_overflow_an_intermediate():
    """-8 dL is an honest first product of dgate_a, and overflows long before dgate_a does."""
    case = Case(x=0 * ONE, gate_x=0 * ONE, gate_a=0 * ONE, a_param=[-2], h0=np.float32([[0.9 * OVERFLOW]]), dy=ONE)
    reference = solve(case)
    assert abs(8 * reference.dL).max() > FORMATS["float32"].largest
    assert np.isinf(bound(reference, LIBM).dgate_a).all()


def test_a_state_too_large_for_its_saved_format_is_not_judged():
    """A kernel that declares to save h in float16 reads infinity back where h passes 65504."""
    case = Case(
        x=np.full((1, 2, 1), 1e6), gate_x=np.zeros((1, 2, 1)), gate_a=np.zeros((1, 2, 1)), a_param=[-2], dy=[[[1], [1]]]
    )
    assert where_infinite(bound(solve(case), replace(LIBM, saved="float16")).dgate_a) == ".X"


@pytest.mark.parametrize("name", ["x", "gate_x", "gate_a"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nothing_before_a_reset_reaches_the_bounds_after_it(name, value):
    """A bound that multiplies by zero where the reference selects would turn NaN and judge nothing any more."""
    case = ordinary(3)
    spoiled = np.array(getattr(case, name))
    spoiled[0, :7] = value
    clean = bound(solve(case), LIBM)
    bounds = bound(solve(case.replace(**{name: spoiled, "h0": np.full_like(case.h0, value)})), LIBM)
    for output in ("y", "dx", "dgate_x", "dgate_a"):
        assert (getattr(bounds, output)[0, 7:] == getattr(clean, output)[0, 7:]).all(), output


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_a_reset_selects_away_has_no_bound(value):
    """h0, gate_a and a_param at resets: whatever they hold, the bounds are those of a clean case."""
    case = ordinary(4).replace(segment_pos=np.zeros((2, 12), np.int32))
    spoiled = case.replace(
        h0=np.full_like(case.h0, value),
        gate_a=np.full_like(case.gate_a, value),
        a_param=np.full_like(case.a_param, value),
    )
    for output in OUTPUTS:
        error = getattr(bound(solve(spoiled), LIBM), output)
        assert (error == getattr(bound(solve(case), LIBM), output)).all(), output
        if output in ("dgate_a", "da_param", "dh0"):
            assert (error == 0).all(), output


def test_an_unusable_decay_unjudges_its_channel_alone():
    """A NaN in a_param is the caller's affair; the other channels must be judged as ever."""
    case = ordinary(5)
    a_param = np.array(case.a_param)
    a_param[1] = np.nan
    bounds, clean = bound(solve(case.replace(a_param=a_param)), LIBM), bound(solve(case), LIBM)
    for output in OUTPUTS:
        error = getattr(bounds, output)
        assert np.isinf(error[..., 1]).any(), output
        assert not np.isnan(error).any(), output
        assert (error[..., [0, 2]] == getattr(clean, output)[..., [0, 2]]).all(), output


def test_empty_sizes_have_bounds_of_their_shape():
    """T = 0 hands h0 and dh_last on; B = 0 and D = 0 leave nothing to judge but a da_param of zeros."""
    for shape in [(2, 0, 3), (0, 4, 3), (2, 4, 0), (0, 0, 0)]:
        empty = np.ones(shape)
        state = np.ones((shape[0], shape[2]))
        reference = solve(Case(empty, empty, empty, np.ones(shape[2]), h0=state, dy=empty, dh_last=state))
        for profile in (LIBM, replace(DEFAULT, saved="bfloat16")):
            for output in OUTPUTS:
                error = getattr(bound(reference, profile), output)
                assert error.shape == getattr(reference, output).shape
                assert (error == 0).all()


def test_wrong_assumptions_are_refused_by_name():
    """A misspelt grade or order must not silently judge by another one."""
    with pytest.raises(ValueError, match="grade must be one of accurate, canonical; got 'exact'"):
        bound(solve(ordinary(0)), LIBM, "exact")
    with pytest.raises(ValueError, match="order must be serial, practical or any; got 'tree'"):
        replace(LIBM, order="tree")
    with pytest.raises(ValueError, match=r"saved must be one of .*; got 'fp8'"):
        replace(LIBM, saved="fp8")


SQUARES = {
    "exp(2L)": lambda exp_2L, a, z: exp_2L,
    "a a": lambda exp_2L, a, z: a * a,
    "1 - z": lambda exp_2L, a, z: 1 - z,  # as autograd of expm1 forms it
}


def float32_loop(case: Case, *, cancelling: bool = False, square: str = "exp(2L)") -> Result:
    """An honest kernel: every operation in float32, the functions rounded from float64 (NumPy's own exp is 2.5 ulp)."""

    def rounded(function, value):
        return function(value.astype(np.float64)).astype(np.float32)

    def sigmoid(value):
        return 1 / (1 + rounded(np.exp, -value))

    batch, steps, width = case.shape
    h0, dy, dh_last = (
        np.zeros(shape, np.float32) if v is None else v
        for v, shape in ((case.h0, (batch, width)), (case.dy, case.shape), (case.dh_last, (batch, width)))
    )
    keep, x, p = ~case.reset[..., None], case.x, case.a_param
    i, r = sigmoid(case.gate_x), sigmoid(case.gate_a)
    softplus = np.maximum(p, 0) + rounded(np.log1p, rounded(np.exp, -np.abs(p)))
    L = np.float32(-8) * r * softplus
    a, exp_2L = rounded(np.exp, L), rounded(np.exp, 2 * L)
    z = 1 - exp_2L if cancelling else -rounded(np.expm1, 2 * L)
    a_squared = SQUARES[square](exp_2L, a, z)
    a, m = np.where(keep, a, np.float32(0)), np.where(keep, np.sqrt(z), np.float32(1))
    u = m * i * x
    h, h_prev, g = np.empty_like(x), np.empty_like(x), np.empty_like(x)
    state, carry = h0, dh_last
    for t in range(steps):
        h_prev[:, t] = np.where(keep[:, t], state, 0)
        h[:, t] = state = a[:, t] * h_prev[:, t] + u[:, t]
    for t in reversed(range(steps)):
        g[:, t] = dy[:, t] + carry
        carry = np.where(keep[:, t], a[:, t] * g[:, t], 0)
    slope = 1 / np.sqrt(np.maximum(4 * z, np.float32(1e-6)))
    dL = np.where(keep, g * h_prev * a - g * i * x * slope * 2 * a_squared, 0)
    outputs = {
        "y": h,
        "h_last": state,
        "dx": g * m * i,
        "dgate_x": g * m * x * i * (1 - i),
        "dgate_a": np.where(keep, dL * (-8 * softplus) * r * (1 - r), 0),
        "da_param": np.where(keep, dL * (-8 * r) * sigmoid(p), 0).sum((0, 1)),
        "dh0": carry,
    }
    assert all(output.dtype == np.float32 for output in outputs.values())
    return Result(
        **{k: round_to(v, FORMATS[case.dtype if k in IN_CASE_DTYPE else "float32"]) for k, v in outputs.items()}
    )


def judged(case: Case, grade: str = "accurate", **options):
    with np.errstate(all="ignore"):
        result = float32_loop(case, **options)
    return judge(case, result, profile=LIBM, grade=grade)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("square", SQUARES)
def test_an_honest_float32_loop_stays_inside_the_tightest_bound(square, dtype):
    """Bounds that condemn honest arithmetic are worthless: 70 cases of every kind for each output dtype and route."""
    kinds = (*FINITE_KINDS, "non_finite")
    for seed, case in enumerate(cases(70, kinds=kinds, elements=200, dtype=dtype)):
        verdict = judged(case, square=square)
        assert verdict.holds, f"seed {seed} ({kinds[seed % len(kinds)]})\n{verdict}"


def test_the_cancelling_formula_is_canonical_and_not_accurate():
    """1 - exp(2 L) is recurrentgemma's formula: right in its own grade, told apart by the other, in every output."""
    caught = set()
    for seed, case in enumerate(cases(120, kinds=("realistic", "clipped", "adversarial"), elements=200)):
        verdict = judged(case, "canonical", cancelling=True)
        assert verdict.holds, f"seed {seed}\n{verdict}"
        caught |= {output.name for output in judged(case, cancelling=True).outputs if not output.holds}
    assert caught >= {"y", "h_last"} | set(GRADIENTS) - {"dh0"}
