"""`python -m kernels.calibrate`: measures the constants of an error profile on the device the kernels run on.

Small Triton kernels call the primitives and the functions of `kernels.cell`; every float32 of the ranges that matter is
swept and compared with float64. Nothing is judged here, and nothing of the oracle is used but its units: the formulas
below are those of oracle/DERIVATION.md, solved for the constant.

Errors are relative and in units of U = 2^-24. The functions are measured two ways. A primitive by itself: its error is
the constant (exp, exp_argument, divide, sqrt). A composition by what remains: the constant that its bound needs once
the others are given, the largest over all inputs (log1p from softplus, expm1 from the multiplier, divide from sigmoid
where that needs more). The last table holds each composition against its bound with the constants as suggested.
"""

import argparse
import datetime
import itertools
import json
import math
import platform
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import triton
import triton.language as tl

from kernels import cell
from oracle.formats import LAM, U

LOG2_E = math.log2(math.e)
RATE_ERROR = abs(float(torch.tensor(8 * LOG2_E)) / (8 * LOG2_E) - 1) / U
"""Error of log2(e) as a float32 constant: the argument of exp2 is off by it even where no product is rounded."""
MANTISSAS = 2**23
BLOCK = 1024
NAMES = ("exp", "exp_argument", "divide", "sqrt", "log1p", "expm1")
NORMAL = 2 * LAM
"""From here on a result is off by its relative error; below, one rounding more or less may flush it."""
SERIES = cell.NEAR_ONE.value
"""log2(a) above which the cell has a polynomial for 1 - a^2."""


# --- what runs on the device


@triton.jit
def _primitive_kernel(p_ptr, q_ptr, out_ptr, size, NAME: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    p = tl.load(p_ptr + at, mask=at < size, other=1.0)
    if NAME == "exp2":
        value = tl.exp2(p)
    elif NAME == "log2":
        value = tl.log2(p)
    elif NAME == "rsqrt":
        value = tl.rsqrt(p)
    elif NAME == "reciprocal":
        value = cell.reciprocal(p)
    elif NAME == "sqrt":
        value = tl.sqrt(p)
    elif NAME == "b rsqrt(b)":
        value = p * tl.rsqrt(p)
    elif NAME == "x log2(e)":
        value = p * -cell.LOG2_E.value
    elif NAME == "softplus":
        value = cell.softplus(p)
    elif NAME == "sigmoid":
        value = cell.sigmoid(p)
    else:
        tl.static_assert(NAME == "a / b")
        value = p / tl.load(q_ptr + at, mask=at < size, other=1.0)
    tl.store(out_ptr + at, value, mask=at < size)


@triton.jit
def _cell_kernel(
    gate_x_ptr,
    gate_a_ptr,
    rate_ptr,
    i_ptr,
    r_ptr,
    a_ptr,
    forward_m_ptr,
    backward_m_ptr,
    slope_ptr,
    size,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    gate_x = tl.load(gate_x_ptr + at, mask=inside, other=0.0)
    gate_a = tl.load(gate_a_ptr + at, mask=inside, other=0.0)
    i, r, a, z = cell.cell(gate_x, gate_a, tl.load(rate_ptr + at, mask=inside, other=0.0))
    m, slope = cell.multiplier_and_slope(z)
    tl.store(i_ptr + at, i, mask=inside)
    tl.store(r_ptr + at, r, mask=inside)
    tl.store(a_ptr + at, a, mask=inside)
    tl.store(forward_m_ptr + at, tl.sqrt(z), mask=inside)
    tl.store(backward_m_ptr + at, m, mask=inside)
    tl.store(slope_ptr + at, slope, mask=inside)


def primitive(name: str, p, q=None):
    """`name` of float32 tensors, as a kernel computes it."""
    out = torch.empty_like(p)
    _primitive_kernel[(triton.cdiv(p.numel(), BLOCK),)](
        p, p if q is None else q, out, p.numel(), NAME=name, BLOCK=BLOCK
    )
    return out


def cells(gate_x, gate_a, rate):
    """i, r and a of `kernels.cell.cell`; m as the forward and as the backward makes it of z, and its bounded slope."""
    outputs = tuple(torch.empty_like(gate_x) for _ in range(6))
    grid = (triton.cdiv(gate_x.numel(), BLOCK),)
    _cell_kernel[grid](gate_x, gate_a, rate, *outputs, gate_x.numel(), BLOCK=BLOCK)
    return outputs


def decay(log2_a):
    """log2 a as the cell has it, and what it makes of it, with the recurrence gate wide open.

    So every float32 can be had as log2 a: (log2 a, a, m of the forward, m of the backward, the slope of m).
    """
    open_gate = torch.full_like(log2_a, math.inf)
    _, r, *made = cells(open_gate, open_gate, log2_a)
    return r * log2_a, *made


# --- sweeps


@dataclass(frozen=True)
class Worst:
    """The largest value of a quantity over a sweep, and the input it is at."""

    value: float
    at: float
    elements: int


def floats(exponents: Iterable[int], signs: Iterable[int], device: str, mantissas: int = MANTISSAS) -> Iterator:
    """float32 tensors with `mantissas` evenly spaced significands, both ends included, for each exponent and sign.

    A tensor is `MANTISSAS` long or a little less: one exponent, or as many as fit.
    """
    bits = torch.arange(mantissas, device=device) * (MANTISSAS - 1) // max(1, mantissas - 1)
    bits = bits.to(torch.int32)
    pieces = []
    for exponent, sign in itertools.product(exponents, signs):
        pieces.append(sign * (bits + ((exponent + 127) << 23)).view(torch.float32))
        if (len(pieces) + 1) * mantissas > MANTISSAS:
            yield torch.cat(pieces)
            pieces = []
    if pieces:
        yield torch.cat(pieces)


def sweep(quantity: Callable, inputs: Iterable) -> Worst:
    """The largest `quantity(x)` over tensors x; NaN counts as infinite, so that it shows."""
    worst, elements = Worst(-math.inf, math.nan, 0), 0
    for x in inputs:
        values = torch.nan_to_num(quantity(x), nan=math.inf, posinf=math.inf)
        value, index = values.max(0)
        elements += x.numel()
        if float(value) > worst.value:
            worst = Worst(float(value), float(x[index]), 0)
    return Worst(worst.value, worst.at, elements)


def relative(value, exact):
    """|value / exact - 1| in units of U where |exact| >= `NORMAL`; 0 elsewhere (`flushed` looks there)."""
    error = (value.double() - exact).abs() / exact.abs().clamp(min=NORMAL) / U
    return torch.where(exact.abs() >= NORMAL, error, 0.0)


def flushed(value, exact):
    """|value - exact| in units of LAM = 2^-126 where |exact| < `NORMAL`."""
    return torch.where(exact.abs() < NORMAL, (value.double() - exact).abs() / LAM, 0.0)


# --- float64


def exact_sigmoid(x):
    e = torch.exp(-x.abs())
    return torch.where(x >= 0, 1.0, e) / (1.0 + e)


def exact_softplus(p):
    return p.clamp(min=0) + torch.log1p(torch.exp(-p.abs()))


def exact_z(log2_a):
    """1 - a^2."""
    return -torch.expm1(2 * math.log(2) * log2_a)


def bounded_slope(z):
    """1 / sqrt(z), at most 2000."""
    return 1.0 / z.sqrt().clamp(min=1.0 / cell.MAX_SLOPE.value)


# --- measurement


@dataclass
class Row:
    """One line of the result: what was measured, over what, the worst value in `unit`, and where."""

    name: str
    over: str
    worst: Worst
    unit: str = "u"


class Calibration:
    """Measures on `device`; `mantissas` significands for each exponent. `rows`, `constants`, `fits` are the result."""

    def __init__(self, device: str, mantissas: int = MANTISSAS, smallest: int = -126):
        self.device, self.mantissas, self.smallest = device, mantissas, smallest
        self.rows: list[Row] = []
        self.measured: dict[str, tuple[float, str]] = {}
        self.fits: list[Row] = []

    def floats(self, low: int, high: int, signs=(1,)):
        """All floats of exponents low .. high - 1."""
        return floats(range(max(low, self.smallest), high), signs, self.device, self.mantissas)

    def note(self, name: str, over: str, quantity: Callable, inputs: Iterable, unit: str = "u") -> float:
        """Sweep, keep the row, give the worst value."""
        row = Row(name, over, sweep(quantity, inputs), unit)
        self.rows.append(row)
        return row.worst.value

    @property
    def constants(self) -> dict[str, float]:
        """The constants to declare: the measured ones, rounded up to two significant digits."""
        return {name: round_up(value) for name, (value, _) in self.measured.items()}

    def profile(self, name: str) -> str:
        """The line to declare."""
        return f"Profile({name!r}, {', '.join(f'{n}={self.constants[n]:g}' for n in NAMES)})"

    def run(self):
        """Everything, in the order in which one constant needs another."""
        self.primitives()
        self.sigmoid()
        self.softplus()
        self.multiplier()
        self.check()
        return self

    def primitives(self):
        """exp, exp_argument, sqrt, and what divide is at least."""
        note, both = self.note, (-1, 1)

        def error(name, reference):
            return lambda x: relative(primitive(name, x), reference(x.double()))

        exp = note("exp2(t)", "|t| < 128", error("exp2", torch.exp2), self.floats(-30, 7, both))
        far = note("exp2(t)", "-256 < t <= -128", error("exp2", torch.exp2), self.floats(7, 8, (-1,)))
        lost = lambda x: flushed(primitive("exp2", x), torch.exp2(x.double()))  # noqa: E731
        note("exp2(t) below 2^-125", "-256 < t <= -64", lost, self.floats(6, 8, (-1,)), "2^-126")
        a_error = lambda x: _on_log2_a(lambda t, a, m: relative(a, torch.exp2(t)), x)  # noqa: E731
        decays = note("a, given log2 a", "-128 < log2 a < 0", a_error, self.floats(-30, 7, (-1,)))
        self.measured["exp"] = max(exp, far, decays), "exp2 and the cell's a"
        product = note(
            "x log2(e)", "2^-30 <= |x| < 128", error("x log2(e)", lambda x: -x * LOG2_E), self.floats(-30, 7, both)
        )
        self.measured["exp_argument"] = product, "the product x log2(e)"

        note("log2(b)", "b outside 0.5 .. 2", error("log2", torch.log2), self.floats(1, 8))
        absolute = lambda x: (primitive("log2", x).double() - torch.log2(x.double())).abs() / U  # noqa: E731
        note("log2(b), absolute", "0.5 <= b < 2", absolute, self.floats(-1, 1))
        ends = [*self.floats(-4, 4), *self.floats(-126, -124), *self.floats(124, 127)]
        note("rsqrt(b)", "all mantissas", error("rsqrt", torch.rsqrt), ends)
        above = [*self.floats(0, 4), *self.floats(122, 126)]
        divide = [note("reciprocal(b)", "b >= 1", error("reciprocal", lambda b: 1 / b), above)]
        divide.append(note("a / b", "16 x all mantissas of b", self._divide, self._pairs()))
        self.measured["divide"] = max(divide), "a / b and reciprocal(b)"
        sqrt = [note("sqrt(b)", "all mantissas", error("sqrt", torch.sqrt), ends)]
        sqrt.append(note("b rsqrt(b), as sqrt(b)", "all mantissas", error("b rsqrt(b)", torch.sqrt), ends))
        self.measured["sqrt"] = max(sqrt), "sqrt(b) and b rsqrt(b)"

    def _pairs(self):
        generator = torch.Generator(self.device).manual_seed(0)
        for b in self.floats(0, 1):
            for _ in range(16):
                self._numerator = torch.rand(b.shape, generator=generator, device=self.device) + 1.0
                yield b

    def _divide(self, b):
        return relative(primitive("a / b", self._numerator, b), self._numerator.double() / b.double())

    def sigmoid(self):
        """divide, where sigmoid needs more of it than the primitives do."""
        note, over = self.note, "2^-30 <= |x| < 128"
        note("sigmoid(x)", over, lambda x: relative(primitive("sigmoid", x), exact_sigmoid(x.double())), self._logits())
        lost = lambda x: flushed(primitive("sigmoid", x), exact_sigmoid(x.double()))  # noqa: E731
        note("sigmoid(x) below 2^-125", "-128 < x <= -64", lost, self.floats(6, 7, (-1,)), "2^-126")
        for index, name in enumerate(("i", "r")):
            error = lambda x, k=index: relative(cells(x, x, -x.abs())[k], exact_sigmoid(x.double()))  # noqa: E731
            note(f"the cell's {name}", over, error, self._logits())
        exp, argument = (self.constants[name] for name in ("exp", "exp_argument"))

        def rest(x):
            wide, s_not = x.double(), exact_sigmoid(-x.double())
            i, r, *_ = cells(x, x, -x.abs())
            worst = torch.maximum(
                relative(primitive("sigmoid", x), exact_sigmoid(wide)), relative(i, exact_sigmoid(wide))
            )
            worst = torch.maximum(worst, relative(r, exact_sigmoid(wide)))
            return worst - (exp + argument * wide.abs()) * s_not - 1

        needed = note("divide that sigmoid needs", over, rest, self._logits())
        if needed > self.measured["divide"][0]:
            self.measured["divide"] = needed, "sigmoid"

    def softplus(self):
        """log1p: what softplus needs of it."""
        over = "2^-30 <= |p| < 128"
        error = lambda p: relative(primitive("softplus", p), exact_softplus(p.double()))  # noqa: E731
        self.note("softplus(p)", over, error, self._logits())
        lost = lambda p: flushed(primitive("softplus", p), exact_softplus(p.double()))  # noqa: E731
        self.note("softplus(p) below 2^-125", "-128 < p <= -64", lost, self.floats(6, 7, (-1,)), "2^-126")
        exp, argument = (self.constants[name] for name in ("exp", "exp_argument"))

        def rest(p):
            wide = p.double()
            exact = exact_softplus(wide)
            damped = (exp + argument * wide.abs()) * exact_sigmoid(-wide.abs()) / exact.clamp(min=NORMAL)
            return torch.where(exact >= NORMAL, relative(primitive("softplus", p), exact) - damped - 1, -1.0)

        needed = self.note("log1p that softplus needs", over, rest, self._logits())
        self.measured["log1p"] = max(needed, 0.0), "softplus"

    def multiplier(self):
        """expm1: what the multiplier needs of it, with log2(e)'s own error and the square root's taken off."""
        sqrt, pieces = self.constants["sqrt"], ((SERIES, 0.0), (-math.inf, SERIES))
        needed = []
        for low, high in pieces:
            over = f"log2 a > {low:g}" if high == 0 else f"log2 a <= {high:g}"
            exponents = (-100, -2) if high == 0 else (-2, 8)

            def error(x):
                return _on_log2_a(lambda t, a, m: relative(m, exact_z(t).sqrt()), x)

            def rest(x):
                return _on_log2_a(lambda t, a, m: _expm1_needed(t, m, sqrt), x)

            self.note("m, given log2 a", over, error, self.floats(*exponents, (-1,)))
            needed.append(self.note("expm1 that m needs", over, rest, self.floats(*exponents, (-1,))))
        self.measured["expm1"] = max(0.0, *needed), "the cell's m"

    def _logits(self):
        return self.floats(-30, 7, (-1, 1))

    def check(self):
        """Each composition's error over its bound with the suggested constants; at most 1."""
        k = self.constants

        def fit(name, quantity, inputs):
            self.fits.append(Row(name, "error / bound", sweep(quantity, inputs), "1"))

        def s(x):
            wide = x.double()
            values = (primitive("sigmoid", x), *cells(x, x, -x.abs())[:2])
            exact, s_not = exact_sigmoid(wide), exact_sigmoid(-wide)
            bound = exact * ((k["exp"] + k["exp_argument"] * wide.abs()) * s_not + 1 + k["divide"]) * U * (1 + 1e-4)
            errors = torch.stack([(value.double() - exact).abs() for value in values]).amax(0)
            return errors / (bound + 2 * LAM)

        def sp(p):
            wide = p.double()
            exact = exact_softplus(wide)
            bound = (k["exp"] + k["exp_argument"] * wide.abs()) * exact_sigmoid(-wide.abs()) + (k["log1p"] + 1) * exact
            return (primitive("softplus", p).double() - exact).abs() / (bound * U * (1 + 1e-4) + 2 * LAM)

        def a_fit(log2_a, a, m):
            exact, moved = torch.exp2(log2_a), RATE_ERROR * U * log2_a.abs() * math.log(2)
            bound = exact * (torch.expm1(k["exp_argument"] * U * log2_a.abs() * math.log(2)) + k["exp"] * U) + LAM
            return ((a.double() - exact).abs() + exact * moved) / bound

        def m_fit(log2_a, a, m):
            z = exact_z(log2_a)
            e_z = k["expm1"] * U * z + LAM
            low, high = (z - e_z).clamp(min=0).sqrt(), (z + e_z).clamp(max=1).sqrt()
            root = z.sqrt()
            bound = torch.maximum(high - root, root - low) + k["sqrt"] * U * high + LAM
            return ((m.double() - root).abs() + _rate_share(log2_a) * root * U) / bound

        def slope_fit(x):
            log2_a, _, _, _, slope = decay(x)
            z = exact_z(log2_a.double())
            e_z = k["expm1"] * U * z + LAM
            exact, steep, flat = (bounded_slope(value) for value in (z, (z - e_z).clamp(min=0), z + e_z))
            bound = torch.maximum(steep - exact, exact - flat) + (k["sqrt"] + k["divide"] + 1) * U * steep
            return ((slope.double() - exact).abs() + _rate_share(log2_a.double()) * exact * U) / bound

        fit("sigmoid, i, r", s, self._logits())
        fit("softplus", sp, self._logits())
        fit("a, given L", lambda x: _on_log2_a(a_fit, x), self.floats(-126, 8, (-1,)))
        fit("m, given L", lambda x: _on_log2_a(m_fit, x), self.floats(-126, 8, (-1,)))
        fit("slope of m, given L", slope_fit, self.floats(-126, 8, (-1,)))


def _on_log2_a(quantity, x):
    """`quantity(log2 a, a, m)` for the floats x taken as log2 a; the larger one for the two ways to m."""
    log2_a, a, forward_m, backward_m, _ = decay(x)
    return torch.maximum(quantity(log2_a.double(), a, forward_m), quantity(log2_a.double(), a, backward_m))


def _rate_share(log2_a):
    """Relative error of m, in U, that the float32 constant log2(e) makes of an exact L: |L| a^2 / z times its own."""
    z = exact_z(log2_a)
    return RATE_ERROR * math.log(2) * log2_a.abs() * torch.exp2(2 * log2_a) / z


def _expm1_needed(log2_a, m, sqrt: float):
    root = exact_z(log2_a).sqrt()
    return 2 * ((m.double() - root).abs() / root / U + _rate_share(log2_a) - sqrt)


def round_up(value: float) -> float:
    """Upwards to two significant digits."""
    if value <= 0:
        return 0.0
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / step - 1e-9) * step:.2g}")


# --- report


def table(calibration: Calibration) -> str:
    """What a person reads."""
    lines = [f"{'function':<26}{'over':<26}{'largest error':<20}at"]
    for row in (*calibration.rows, *calibration.fits):
        value = f"{row.worst.value:.4g} {'' if row.unit == '1' else row.unit}"
        lines.append(f"{row.name:<26}{row.over:<26}{value:<20}{row.worst.at:.9g}")
    lines += ["", f"{'constant':<16}{'measured':<12}{'suggested':<12}from"]
    for name in NAMES:
        measured, source = calibration.measured[name]
        lines.append(f"{name:<16}{measured:<12.4g}{calibration.constants[name]:<12g}{source}")
    return "\n".join(lines)


def as_json(calibration: Calibration, name: str, command: str) -> dict:
    """Everything measured, inputs in hexadecimal."""

    def written(row: Row):
        return {
            "name": row.name,
            "over": row.over,
            "largest": row.worst.value if math.isfinite(row.worst.value) else str(row.worst.value),
            "unit": row.unit,
            "at": row.worst.at.hex(),
            "elements": row.worst.elements,
        }

    gpu = calibration.device == "cuda"
    return {
        "format": 1,
        "device": torch.cuda.get_device_name() if gpu else "cpu, interpreted",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "cuda": torch.version.cuda,
        },
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command,
        "mantissas": calibration.mantissas,
        "rows": [written(row) for row in calibration.rows],
        "fits": [written(row) for row in calibration.fits],
        "constants": {
            n: {
                "measured": calibration.measured[n][0],
                "suggested": calibration.constants[n],
                "from": calibration.measured[n][1],
            }
            for n in NAMES
        },
        "profile": calibration.profile(name),
    }


def main(arguments: list[str] | None = None) -> int:
    """Measure the accuracy of the functions that the kernels use. Exit code: 0; 1 where a composition does not fit the
    constants suggested; 2 where an argument is wrong or there is no GPU."""
    parser = argparse.ArgumentParser(prog="python -m kernels.calibrate", description=main.__doc__)
    parser.add_argument("--json", metavar="FILE", help="write everything measured there")
    parser.add_argument("--name", default="calibrated", help="name of the profile that is suggested")
    parser.add_argument("--mantissas", type=int, default=MANTISSAS, metavar="N", help="fewer than all, for a trial")
    options = parser.parse_args(arguments)
    if not (1 <= options.mantissas <= MANTISSAS and options.mantissas & (options.mantissas - 1) == 0):
        parser.error(f"--mantissas must be a power of two up to {MANTISSAS}; got {options.mantissas}")
    if options.json and not Path(options.json).resolve().parent.is_dir():
        parser.error(f"--json: there is no folder for {options.json!r}; make it first")
    if not cell.INTERPRETED and not torch.cuda.is_available():
        parser.error("it needs a CUDA device, and PyTorch sees none; TRITON_INTERPRET=1 tries it on the CPU")
    calibration = Calibration("cpu" if cell.INTERPRETED else "cuda", options.mantissas).run()
    command = shlex.join(["python", "-m", "kernels.calibrate", *(sys.argv[1:] if arguments is None else arguments)])
    written = as_json(calibration, options.name, command)
    print(f"{written['device']}, torch {torch.__version__}, triton {triton.__version__}; u = 2^-24\n")
    print(f"{table(calibration)}\n\n{written['profile']}")
    if options.json:
        Path(options.json).write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    loose = [row.name for row in calibration.fits if not row.worst.value <= 1]
    if loose:
        print(f"beyond the bound with these constants: {', '.join(loose)}", file=sys.stderr)
    return 1 if loose else 0


if __name__ == "__main__":
    sys.exit(main())
