"""The cell's functions one by one against float64: each within its own count of roundings, and stores exact.

Roundings are counted in units of U = 2^-24: an elementary function within one unit in the last place errs by 2 U.
"""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from kernels import cell
from oracle.formats import FORMATS, LAM, U, round_to, spacing

DEVICE = "cpu" if cell.INTERPRETED else "cuda"
EXP, DIVIDE, ROOT, TINY = (2, 1, 2, 2.0**-149) if cell.INTERPRETED else (4, 4, 2.2, LAM)
"""Roundings of exp2, a division and a root, and what underflow may lose: NumPy's, or the GPU's fast ones."""
SIZE = 4096


@triton.jit
def _softplus_kernel(p_ptr, out_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out_ptr + at, cell.softplus(tl.load(p_ptr + at)))


@triton.jit
def _cell_kernel(
    gate_x_ptr, gate_a_ptr, rate_ptr, i_ptr, r_ptr, a_ptr, m_ptr, again_ptr, slope_ptr, SIZE: tl.constexpr
):
    at = tl.arange(0, SIZE)
    i, r, a, z = cell.cell(tl.load(gate_x_ptr + at), tl.load(gate_a_ptr + at), tl.load(rate_ptr + at))
    m = tl.sqrt(z)
    again, slope = cell.multiplier_and_slope(z)
    tl.store(i_ptr + at, i)
    tl.store(r_ptr + at, r)
    tl.store(a_ptr + at, a)
    tl.store(m_ptr + at, m)
    tl.store(again_ptr + at, again)
    tl.store(slope_ptr + at, slope)


@triton.jit
def _store_kernel(value_ptr, out_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    cell.store(out_ptr + at, tl.load(value_ptr + at), at < SIZE)


def float32(*values) -> np.ndarray:
    """Numbers and arrays of numbers, one after another."""
    return np.concatenate([np.atleast_1d(np.asarray(v, np.float32)) for v in values])


def launch(kernel, *inputs, outputs=1, dtype=torch.float32) -> list[torch.Tensor]:
    """The kernel's outputs for float32 inputs of at most SIZE elements, the rest filled with ones."""
    count = max(np.size(values) for values in inputs)
    assert count <= SIZE
    padded = []
    for values in inputs:
        tensor = torch.ones(SIZE)
        tensor[:count] = torch.from_numpy(np.broadcast_to(np.asarray(values, np.float32), count).copy())
        padded.append(tensor.to(DEVICE))
    results = [torch.empty(SIZE, dtype=dtype, device=DEVICE) for _ in range(outputs)]
    kernel[(1,)](*padded, *results, SIZE=SIZE)
    return [result[:count].cpu() for result in results]


def float64(kernel, *inputs, outputs=1) -> list[np.ndarray]:
    return [output.double().numpy() for output in launch(kernel, *inputs, outputs=outputs)]


def assert_within(got, exact, error, at):
    with np.errstate(invalid="ignore"):
        ratio = np.where(got == exact, 0.0, np.abs(got - exact) / error)
    worst = int(np.argmax(np.where(np.isnan(ratio), np.inf, ratio)))
    shown = f"at {at[worst]!r}: {got[worst]!r} instead of {exact[worst]!r}, {ratio[worst]:.3g} x the bound"
    assert ratio[worst] <= 1, shown


def spread(low_exponent: int, high_exponent: int, seed: int = 0) -> np.ndarray:
    """Positive float32 values, uniform in their logarithm, powers of two among them."""
    rng = np.random.default_rng(seed)
    values = 2.0 ** rng.uniform(low_exponent, high_exponent, 2000)
    return float32(values, 2.0 ** np.arange(low_exponent, high_exponent + 1))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0.0, -x))


# --- softplus


def test_softplus_errs_by_a_few_roundings_everywhere():
    """From p = -100, where it is exp(p), over 0 to 100, where it is p; nothing cancels and nothing overflows.

    The exponential's argument has two roundings, each |p| U in the result, damped by sigmoid(-|p|); the sum 2 + e, the
    division, the square, the series (its own terms damped by s^2 <= 1/9), the product and the last sum make seven.
    """
    p = float32(-spread(-20, 6)[::2], spread(-20, 6), np.linspace(-4, 4, 49), 100, -100).astype(np.float64)
    exact = np.logaddexp(0.0, p)
    error = U * ((2 * np.abs(p) + EXP) * sigmoid(-np.abs(p)) + (6 + DIVIDE) * exact) + 4 * TINY
    (got,) = float64(_softplus_kernel, p)
    assert_within(got, exact, error, p)


def test_softplus_keeps_nan_and_infinity():
    """max(p, 0) of hardware drops a NaN: a bad parameter must not become a good decay."""
    (got,) = float64(_softplus_kernel, [np.nan, np.inf, -np.inf])
    assert np.isnan(got[0])
    assert not np.isfinite(got[1])
    assert got[2] == 0 or np.isnan(got[2])


# --- gates and decay


def test_gates_err_by_a_few_roundings_and_saturate():
    """The error of the exponential is damped by 1 - sigmoid; one sum, a division; at both ends nothing is NaN."""
    x = float32(spread(-20, 7)[:1990], -spread(-20, 7)[:1990], np.inf, -np.inf, 0.0, -0.0, 88.8, -88.8)
    x = x.astype(np.float64)
    i, r, *_ = float64(_cell_kernel, x, x, -1.0, outputs=6)
    with np.errstate(invalid="ignore"):
        magnitude = np.where(np.isinf(x), 0.0, np.abs(x))
    exact = sigmoid(x)
    error = U * exact * ((2 * magnitude + EXP) * sigmoid(-x) + 1 + DIVIDE) * (1 + 2.0**-10) + LAM
    assert_within(i, exact, error, x)
    assert_within(r, exact, error, x)


def test_the_decay_is_the_power_of_two_of_r_times_rate():
    """a errs by the exponential and by the one rounding of r rate."""
    rate = -spread(-20, 7)
    _, r, a, *_ = float64(_cell_kernel, 0.0, 0.3, rate, outputs=6)
    log2_a = r * rate
    assert_within(a, 2.0**log2_a, U * 2.0**log2_a * (EXP + 2 * np.log(2) * np.abs(log2_a)) + 2 * TINY, rate)


def multipliers(log2_a) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """(both ways to the multiplier, its slope, the exact one) for exactly these log2(a): gate_a = 100 makes r = 1."""
    log2_a = np.asarray(log2_a, np.float32).astype(np.float64)
    _, r, _, *ms, slope = float64(_cell_kernel, 0.0, 100.0, log2_a, outputs=6)
    assert np.all(r == 1)
    return ms, slope, np.sqrt(-np.expm1(2 * np.log(2) * log2_a))


SERIES_ROUNDINGS = 4
"""Product, last sum and last coefficient: 3; the next ones, damped by 0.17, and the polynomial's own 0.53: 1."""
DIFFERENCE_ROUNDINGS = (2 * EXP + 1) * 0.7072 / 0.2928 + 1
"""a a errs by 2 EXP + 1 roundings of itself; at log2(a) = -1/4 it is 0.7071 and 1 - a a is 0.2929; one difference."""


def assert_multiplier(log2_a, roundings_of_z):
    ms, slope, exact = multipliers(log2_a)
    roundings = U * (roundings_of_z / 2 + ROOT + 1) * (1 + 2.0**-10)
    for m in ms:
        assert_within(m, exact, exact * roundings, np.asarray(log2_a))
    bounded = 1 / np.maximum(exact, 1 / 2000)
    assert_within(slope, bounded, bounded * roundings, np.asarray(log2_a))


def test_near_a_of_1_the_multiplier_loses_nothing():
    """1 - a^2 cancels there: at log2(a) = -2^-20 it would keep 4 bits, at -2^-25 none."""
    assert_multiplier(-spread(-100, -3), SERIES_ROUNDINGS)


def test_at_the_threshold_both_formulas_are_good():
    """The polynomial ends where the difference starts, and little cancels there."""
    threshold = np.float32(-0.25)
    near = threshold + np.spacing(threshold) * np.arange(-100, 101, dtype=np.float32)
    series = near > threshold
    assert series.sum() == 100
    assert_multiplier(near[series], SERIES_ROUNDINGS)
    assert_multiplier(near[~series], DIFFERENCE_ROUNDINGS)


def test_beyond_the_threshold_the_multiplier_is_as_good():
    """Down to a = 0, where it is 1."""
    assert_multiplier(float32(-spread(-1, 9), -np.linspace(0.25, 0.5, 500)), DIFFERENCE_ROUNDINGS)


def test_the_smallest_decays_give_the_smallest_multipliers():
    """z = -2 ln(2) log2(a) down to the smallest normal number, what lies below may vanish; 0 where log2(a) is 0."""
    log2_a = float32(-0.0, -1e-30, -(2.0**-125), -(2.0**-130), -(2.0**-140), -(2.0**-149))
    ms, slope, exact = multipliers(log2_a)
    z = exact**2
    low, high = (np.sqrt(np.maximum(z * (1 + sign * 4 * U) + sign * LAM, 0)) for sign in (-1, 1))
    for m in ms:
        assert np.all((low * (1 - 4 * U) <= m) & (m <= high * (1 + 4 * U)))
        assert m[0] == 0
    assert not cell.INTERPRETED or np.all(ms[0][1:] > 0)
    assert np.all(slope == 2000)


def test_a_nan_in_a_gate_shows_in_all_that_is_made_of_it_and_in_nothing_else():
    """A NaN that a comparison swallows turns into a plausible number."""
    i, r, a, *ms, _ = float64(_cell_kernel, [np.nan, 0.0, 0.0], [0.0, np.nan, 0.0], [-1.0, -1.0, np.nan], outputs=6)
    assert [list(np.isnan(v)) for v in (i, r, a, *ms)] == [
        [True, False, False],
        [False, True, False],
        [False, True, True],
        [False, True, True],
        [False, True, True],
    ]


# --- stores


def from_bits(bits) -> np.ndarray:
    return np.asarray(bits, np.uint32).view(np.float32)


def awkward(dtype: str) -> np.ndarray:
    """Float32 values of every kind for a rounding to `dtype`: any bits, ties, subnormals, the largest, -0, infinity."""
    fmt = FORMATS[dtype]
    any_bits = from_bits(np.random.default_rng(0).integers(0, 2**32, 1500, dtype=np.uint32))
    exponents = np.random.default_rng(1).uniform(fmt.min_exponent - 2, np.log2(fmt.largest), 600)
    grid = round_to(2.0**exponents, fmt)
    grid = grid[np.isfinite(grid)]
    half = spacing(grid, fmt) / 2
    ties = float32(grid + half, -grid - half) if dtype != "float32" else float32(grid)
    beside = [np.nextafter(ties, np.float32(side)) for side in (np.inf, -np.inf)]
    least = 2.0 ** (fmt.min_exponent - fmt.precision + 1)
    edge = fmt.largest + spacing(np.float64(fmt.largest), fmt) / 2
    with np.errstate(over="ignore"):
        single = float32(0.0, -0.0, least, least / 2, 0.75 * least, -least / 2, fmt.largest, -fmt.largest, edge)
    values = np.concatenate([single, float32(np.inf, -np.inf), ties[::2], *(v[::4] for v in beside), any_bits])
    return values[:SIZE]


def stored(values, dtype: str) -> torch.Tensor:
    return launch(_store_kernel, values, dtype=getattr(torch, dtype))[0]


@pytest.mark.parametrize("dtype", FORMATS)
def test_stores_round_once_to_nearest_even(dtype):
    """Triton's interpreter truncates to bfloat16 by itself; what is judged must be what a GPU writes."""
    values = awkward(dtype)
    assert len(values) > 2000
    with np.errstate(invalid="ignore"):
        wanted = round_to(values.astype(np.float64), FORMATS[dtype])
    got = stored(values, dtype).double().numpy()
    wrong = ~((got == wanted) & (np.signbit(got) == np.signbit(wanted)) | (np.isnan(got) & np.isnan(wanted)))
    assert not wrong.any(), f"{values[wrong][0]!r}: {got[wrong][0]!r}, not {wanted[wrong][0]!r}"


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("bits", [0x7F800001, 0x7F80FFFF, 0x7FC00000, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF], ids=hex)
def test_every_nan_is_stored_as_nan(bits, dtype):
    """Also one whose payload lies in the bits that rounding drops, and one that rounding up would carry over."""
    assert stored(from_bits([bits]), dtype).isnan().all()


def test_what_is_outside_is_not_written():
    """The mask holds for every dtype's way of storing."""

    @triton.jit
    def half(value_ptr, out_ptr, SIZE: tl.constexpr):
        at = tl.arange(0, SIZE)
        cell.store(out_ptr + at, tl.load(value_ptr + at), at < SIZE // 2)

    for dtype in FORMATS:
        out = torch.full((SIZE,), 7.0, dtype=getattr(torch, dtype), device=DEVICE)
        half[(1,)](torch.ones(SIZE, device=DEVICE), out, SIZE=SIZE)
        assert out.tolist() == [1.0] * (SIZE // 2) + [7.0] * (SIZE // 2)
