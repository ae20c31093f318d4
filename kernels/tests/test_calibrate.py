"""The calibration's own correctness: what it sweeps, what it finds of a fault put in, and that its kernels compile."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels import calibrate, cell
from kernels.calibrate import NAMES, Calibration, floats, flushed, relative, round_up, sweep
from oracle import Profile
from oracle.formats import LAM, U

FEW = 16
DEVICE = "cpu" if cell.INTERPRETED else "cuda"


@pytest.fixture(scope="module")
def calibration():
    """A small sweep of the kernels as they are."""
    return Calibration(DEVICE, FEW, smallest=-30).run()


def test_all_floats_of_an_exponent_are_swept():
    """A worst case is one float among millions: none may be left out, and none doubled."""
    (every,) = floats([0], [1], "cpu")
    assert len(every) == 2**23
    assert every[0] == 1.0
    assert every[-1] == np.nextafter(np.float32(2), np.float32(0))
    assert bool((every.diff() == 2.0**-23).all())
    (few,) = floats([-126, 3], [-1, 1], "cpu", mantissas=4)
    assert few.view(4, 4)[:, 0].tolist() == [-LAM, LAM, -8.0, 8.0]
    assert [len(piece) for piece in floats([0, 1, 2], [1], "cpu", mantissas=2**22)] == [2**23, 2**22]


@pytest.mark.parametrize("units", [0.5, 3.0, 1000.0])
def test_an_error_put_in_is_found_with_its_size_and_place(units):
    """A function off by so many U at one point is off by so many U there."""
    at = float(next(floats([2], [-1], "cpu", 64))[17])

    def quantity(x):
        exact = torch.exp2(x.double())
        return relative(torch.where(x == at, exact * (1 + units * U), exact), exact)

    worst = sweep(quantity, floats(range(-3, 5), [-1, 1], "cpu", 64))
    assert worst.value == pytest.approx(units, rel=1e-6)
    assert worst.at == at
    assert worst.elements == 8 * 2 * 64


def test_nan_is_the_largest_error():
    """torch.max would hide it behind a comparison that is false."""
    assert sweep(lambda x: torch.where(x > 1.5, math.nan, 1.0).double(), floats([0], [1], "cpu", 8)).value == math.inf


def test_errors_below_the_normal_range_are_counted_apart():
    """A flushed subnormal is a whole unit of 2^-126, and no relative error at all."""
    exact = torch.tensor([0.75 * LAM, 4 * LAM], dtype=torch.float64)
    value = torch.tensor([0.0, 4 * LAM * (1 + 2**-23)])
    assert relative(value, exact).tolist() == [0.0, 2.0]
    assert flushed(value, exact).tolist() == [0.75, 0.0]


@pytest.mark.parametrize(
    ("value", "rounded"),
    [(1.0, 1.0), (1.001, 1.1), (2.13, 2.2), (2.2, 2.2), (0.771, 0.78), (12.3, 13), (0, 0), (-3, 0)],
)
def test_constants_are_rounded_upwards_to_two_digits(value, rounded):
    """Downwards would condemn an honest kernel."""
    assert round_up(value) == rounded


def test_every_constant_is_measured_and_every_composition_fits(calibration):
    """What comes out can be declared as it stands, and the bounds made of it hold what was swept."""
    profile = eval(calibration.profile("x"), {"Profile": Profile})
    assert isinstance(profile, Profile)
    for name in NAMES:
        assert getattr(profile, name) >= calibration.measured[name][0]
        assert math.isfinite(getattr(profile, name))
    assert len(calibration.fits) == 5
    assert all(0 < row.worst.value <= 1 for row in calibration.fits)


FAULTS = {"exp2": "exp", "x log2(e)": "exp_argument", "a / b": "divide", "b rsqrt(b)": "sqrt", "softplus": "log1p"}


@pytest.mark.parametrize("name", FAULTS)
def test_a_function_made_worse_makes_its_constant_larger_by_as_much(name, calibration, monkeypatch):
    """Each constant follows its own function: 40 U more in one, 40 more in the other (but for rounding)."""
    honest = calibrate.primitive

    def worse(which, p, q=None):
        value = honest(which, p, q)
        return value * (1 + 40 * U) if which == name else value

    monkeypatch.setattr(calibrate, "primitive", worse)
    constant = Calibration(DEVICE, FEW, smallest=-4).run().measured[FAULTS[name]][0]
    assert 36 < constant - min(calibration.measured[FAULTS[name]][0], 3) < 44


@pytest.mark.parametrize(("output", "constant", "least"), [(0, "divide", 30), (2, "exp", 30), (3, "expm1", 60)])
def test_a_cell_made_worse_makes_its_constant_larger(output, constant, least, calibration, monkeypatch):
    """The kernels call the cell, not the primitives: its own i, a and m count. m's error is half of z's."""
    honest = calibrate.cells

    def worse(gate_x, gate_a, rate):
        outputs = list(honest(gate_x, gate_a, rate))
        outputs[output] = outputs[output] * (1 + 40 * U)
        return outputs

    monkeypatch.setattr(calibrate, "cells", worse)
    found = Calibration(DEVICE, FEW, smallest=-4).run()
    assert found.measured[constant][0] > least
    assert calibration.measured[constant][0] < 20


def test_the_program_prints_and_writes_what_it_found(tmp_path, capsys, monkeypatch):
    """A person reads the table, the project keeps the file; inputs are hexadecimal."""
    small = Calibration(DEVICE, 4, smallest=-4)
    monkeypatch.setattr(calibrate, "Calibration", lambda device, mantissas: small)
    file = tmp_path / "out.json"
    assert calibrate.main(["--mantissas", "4", "--json", str(file), "--name", "some gpu"]) in (0, 1)
    shown = capsys.readouterr().out
    written = json.loads(file.read_text())
    assert written["profile"] in shown
    assert written["profile"].startswith("Profile('some gpu', exp=")
    assert {"device", "versions", "date", "command", "mantissas", "rows", "fits", "constants"} < set(written)
    assert float.fromhex(written["rows"][0]["at"]) == small.rows[0].worst.at
    assert all(name in shown for name in NAMES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mantissas", "3"], "--mantissas must be a power of two up to 8388608; got 3"),
        (["--json", "no/such/folder/out.json"], "--json: there is no folder for 'no/such/folder/out.json'"),
    ],
)
def test_wrong_arguments_are_refused_with_a_sentence(arguments, message, capsys):
    """Before anything is swept."""
    with pytest.raises(SystemExit):
        calibrate.main(arguments)
    assert message in capsys.readouterr().err


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels import calibrate

def build(kernel, **constants):
    names = kernel.arg_names
    signature = {n: "constexpr" if n in constants else "i32" if n == "size" else "*fp32" for n in names}
    source = ASTSource(kernel, signature, {(names.index(n),): value for n, value in constants.items()})
    print(len(triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]))

for name in ("exp2", "x log2(e)", "softplus", "a / b"):
    build(calibrate._primitive_kernel, NAME=name, BLOCK=calibrate.BLOCK)
build(calibrate._cell_kernel, BLOCK=calibrate.BLOCK)
"""


def test_its_kernels_compile_for_a_gpu():
    """The interpreter accepts Python that Triton's compiler does not."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 5
