"""The oracle on tensors of torch: the numbers and verdicts of NumPy, whole or in slices, and no mixture of both."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch

from oracle.bounds import DEFAULT, GRADES, LIBM, bound
from oracle.case import AXES, IN_CASE_DTYPE, OUTPUTS, Case, Result
from oracle.formats import FORMATS, distance_to_cell, interval, round_to, spacing
from oracle.reference import solve
from oracle.tests.cases import DTYPES, FINITE_KINDS, cases, ordinary
from oracle.verdict import PEAK, judge

MOST_OF_BOUND = 1e-8
"""How far the two libraries may be apart, as a part of the bound: their functions differ in the last bits."""
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
DECLARED = replace(DEFAULT, da_param_additions=lambda batch, steps: batch + steps)


@pytest.fixture(params=DEVICES)
def device(request) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    return request.param


def tensors(case: Case, device: str = "cpu") -> Case:
    """The same case in tensors of torch, in the dtypes in which a kernel gets them."""
    arrays = {}
    for name, axes in AXES.items():
        array = getattr(case, name)
        if array is not None:
            tensor = torch.from_numpy(np.array(array)).to(device)
            arrays[name] = tensor.to(getattr(torch, case.dtype)) if axes == "BTD" else tensor
    return Case(**arrays, dtype=case.dtype)


def noisy(case: Case, seed: int) -> dict[str, np.ndarray]:
    """Outputs of which some are right, some are about as far off as is allowed, and a few are NaN or infinite."""
    rng = np.random.default_rng(seed)
    reference, bounds = solve(case), bound(solve(case), LIBM)
    outputs = {}
    with np.errstate(all="ignore"):
        for name in OUTPUTS:
            exact, error = getattr(reference, name), getattr(bounds, name)
            factor = rng.choice([0, 0.5, 0.99, 1.01, 3], error.shape) * rng.choice([-1, 1], error.shape)
            value = exact + np.where(np.isfinite(error), error, 1.0) * factor
            value = np.where(rng.random(value.shape) < 0.01, rng.choice([np.nan, np.inf, -np.inf], value.shape), value)
            outputs[name] = round_to(value, FORMATS[case.dtype if name in IN_CASE_DTYPE else "float32"])
    return outputs


def test_torch_and_numpy_agree_far_inside_the_bound(device):
    """The verdict at full size, on a GPU, must be the one NumPy would give: references, bounds, verdicts, of 240 cases.

    Where the bound is zero or infinite they are equal; NaN and infinities stand in the same places.
    """
    kinds = (*FINITE_KINDS, "non_finite", "empty")
    for number, case in enumerate(cases(240, kinds=kinds, elements=60)):
        grade, profile = GRADES[number % 2], (LIBM, DECLARED)[number // 2 % 2]
        same = tensors(case, device)
        ours, theirs = solve(case), solve(same)
        bounds, their_bounds = bound(ours, profile, grade), bound(theirs, profile, grade)
        for name in OUTPUTS:
            error = getattr(bounds, name)
            for what, pair in (("value", (ours, theirs)), ("bound", (bounds, their_bounds))):
                wanted, got = getattr(pair[0], name), getattr(pair[1], name).cpu().numpy()
                assert got.dtype == np.float64
                assert np.array_equal(np.isfinite(wanted), np.isfinite(got)), f"{what} of {name}, case {number}"
                judged = np.isfinite(wanted) & np.isfinite(error)
                apart = np.abs(got[judged] - wanted[judged])
                assert (apart <= MOST_OF_BOUND * error[judged]).all(), f"{what} of {name}, case {number}"
        outputs = noisy(case, number)
        verdict = judge(case, Result(**outputs), profile=profile, grade=grade)
        there = {name: torch.from_numpy(output).to(device) for name, output in outputs.items()}
        assert_same(judge(same, Result(**there), profile=profile, grade=grade), verdict)


def assert_same(got, wanted):
    """Equal but for the last digits of numbers."""
    assert got.notes == wanted.notes
    for ours, theirs in zip(got.outputs, wanted.outputs, strict=True):
        assert ours.ratio == pytest.approx(theirs.ratio, rel=1e-6, abs=1e-7)
        assert (ours.worst or "").partition(",")[0] == (theirs.worst or "").partition(",")[0]
        assert replace(ours, ratio=0.0, worst=None) == replace(theirs, ratio=0.0, worst=None)


@pytest.mark.parametrize("name", DTYPES)
def test_rounding_is_the_same_in_both_libraries(name, device):
    """Bit for bit: every operation of it is exact."""
    fmt, rng = FORMATS[name], np.random.default_rng(0)
    value = rng.choice([-1.0, 1.0], 20_000) * 2.0 ** rng.uniform(-160, 130, 20_000)
    value[::7], value[::11] = 2.0 ** rng.integers(-150, 128, value[::7].size), 0.0
    value[1::501], value[2::501] = np.nan, np.inf
    finite = np.where(np.isfinite(value), value, 1.0)
    output = round_to(value, fmt)
    exact = finite * (1 + rng.choice([0, 2.0**-9, 0.1], value.size))
    error = np.abs(finite) * 2.0**-10

    def t(array):
        return torch.from_numpy(array).to(device)

    pairs = [
        (round_to(t(value), fmt), output),
        (spacing(t(finite), fmt), spacing(finite, fmt)),
        (distance_to_cell(t(exact), t(output), fmt), distance_to_cell(exact, output, fmt)),
        *zip(interval(t(exact), t(error), fmt), interval(exact, error, fmt), strict=True),
    ]
    for got, wanted in pairs:
        assert np.array_equal(got.cpu().numpy(), wanted, equal_nan=True)


@pytest.mark.parametrize("at_once", [1, 30, 60, 1000])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_verdict_in_slices_of_channels_is_the_verdict_on_the_whole(library, at_once):
    """Memory is no reason for another verdict: counts, worst element and diverging step are the whole's."""
    for seed in range(6):
        case = ordinary(seed, shape=(2, 5, 7), reset_at=2, dtype=DTYPES[seed % 3])
        outputs = noisy(case, seed)
        if seed % 2:
            outputs["y"][1, 3, [2, 5]] = outputs["da_param"][4:] = outputs["h_last"][:, 3] = np.nan  # equally bad
        if library == "torch":
            case, outputs = tensors(case), {name: torch.from_numpy(output) for name, output in outputs.items()}
        whole = judge(case, Result(**outputs), profile=DECLARED)
        assert not whole.holds
        assert_same(judge(case, Result(**outputs), profile=DECLARED, at_once=at_once), whole)


@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 4, 3), (2, 4, 0)])
def test_empty_sizes_are_judged_in_slices_too(shape):
    """No channel and no step are a slice like another."""
    x, state = np.zeros(shape), np.ones((shape[0], shape[2]))
    case = Case(x, x, x, np.ones(shape[2]), h0=state, dy=x, dh_last=state)
    right = Result(**{name: getattr(solve(case), name) for name in OUTPUTS})
    verdict = judge(case, right, at_once=1)
    assert verdict.holds
    assert [output.elements for output in verdict.outputs] == [getattr(right, name).size for name in OUTPUTS]


def test_tensors_are_copied_without_their_history():
    """What a kernel does to its inputs changes no case, and nothing the oracle computes is recorded for autograd."""
    x = torch.ones(1, 2, 1, requires_grad=True)
    case = Case(x, x, x, torch.ones(1, requires_grad=True))
    with torch.no_grad():
        x += 1
    assert (case.x == 1).all()
    assert not solve(case).y.requires_grad
    assert judge(case, Result(y=solve(case).y + 0 * x)).holds


def test_what_torch_holds_is_refused_in_the_same_words():
    """Rules do not depend on the library."""
    x = torch.zeros(1, 2, 1)
    with pytest.raises(ValueError, match=r"^x must have shape \[B, T, D\]; got \(2, 1\)$"):
        Case(x[0], x, x, x[0, 0])
    with pytest.raises(TypeError, match=r"^gate_x must hold real numbers; got dtype torch.bool$"):
        Case(x, x > 0, x, x[0, 0])
    with pytest.raises(TypeError, match=r"^segment_pos must be int32 or int64; got dtype torch.int16$"):
        Case(x, x, x, x[0, 0], torch.zeros(1, 2, dtype=torch.int16))
    text = r"^gate_a must hold values of bfloat16; got np.float64\(1.00390625\) at \[0, 1, 0\]$"
    with pytest.raises(ValueError, match=text):
        Case(x, x, x + torch.tensor([0, 1 + 2.0**-8])[:, None], x[0, 0], dtype="bfloat16")
    case = Case(x, x, x, x[0, 0])
    with pytest.raises(ValueError, match=r"^h_last must have shape \[1, 1\]; got \[1, 2\]$"):
        judge(case, Result(h_last=torch.zeros(1, 2)))


@pytest.mark.parametrize("name", [name for name in AXES if name != "x"])
def test_arrays_of_two_libraries_are_refused(name):
    """A silent copy between host and device would hide which of the two is judged, and where."""
    numpy, torch_ = ordinary(0), tensors(ordinary(0))
    with pytest.raises(TypeError, match=f"^{name} must be an array of torch on cpu, as x is; got numpy on cpu$"):
        torch_.replace(**{name: getattr(numpy, name)})
    with pytest.raises(TypeError, match=f"^{name} must be an array of numpy on cpu, as x is; got torch on cpu$"):
        numpy.replace(**{name: getattr(torch_, name)})
    with pytest.raises(TypeError, match=f"^{name} must be an array of torch on cpu, as x is; got torch on meta$"):
        torch_.replace(**{name: getattr(torch_, name).to("meta")})


def test_outputs_of_another_library_than_the_case_are_refused():
    """As for inputs."""
    case = ordinary(0)
    with pytest.raises(TypeError, match=r"^y must be an array of torch on cpu, as x is; got numpy on cpu$"):
        judge(tensors(case), Result(y=solve(case).y))


def test_declared_additions_give_da_param_a_bound_at_production_length():
    """65,536 terms in any order are not judged; with T + B additions of terms of one sign a lost row shows."""
    case = ordinary(0, shape=(8, 8192, 2), reset_at=None)
    case = case.replace(dy=case.x)  # what passes through the multiplier then has the sign of x x
    reference = solve(case)
    right = round_to(reference.da_param, FORMATS["float32"])
    lost = round_to(reference.da_param - reference.w[3].sum(0), FORMATS["float32"])
    assert judge(case, Result(da_param=right), profile=DECLARED, reference=reference).holds
    assert judge(case, Result(da_param=lost), profile=DECLARED, reference=reference).outputs[0].failed == 2
    assert judge(case, Result(da_param=lost), profile=DEFAULT, reference=reference).notes


def test_a_slice_takes_the_memory_that_is_stated():
    """Whether a verdict fits a GPU follows from it: PEAK arrays of `at_once` elements, whatever the case."""
    case = ordinary(0, shape=(8, 32, 256))
    right = Result(**{name: getattr(solve(case), name) for name in OUTPUTS})
    peaks = {}
    for at_once in (case.x.size // 4, case.x.size):
        tracemalloc.start()
        assert judge(case, right, profile=DECLARED, grade="canonical", at_once=at_once).holds
        _, peaks[at_once] = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peaks[at_once] < PEAK * 8 * at_once * 1.02 + 2**18
