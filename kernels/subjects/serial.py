"""Our fused serial Triton kernels."""

import functools
from dataclasses import replace

import kernels
from kernels.serial import SPLIT, STEPS
from kernels.subjects.subject import Subject
from oracle import Profile

CALIBRATED = Profile("calibrated", exp=2.5, exp_argument=1.3, divide=2.6, sqrt=2.8, log1p=2.5, expm1=8.4)
"""Measured on an NVIDIA H200 over every mantissa (`python -m kernels.calibrate`, kernels/calibration/h200.json).

The root is the forward's sqrt(b) and the backward's b rsqrt(b), which errs more; 1 - a^2 beyond its polynomial is off
by what exp2 errs.
"""

SUBJECT = Subject(
    functools.partial(kernels.rglru, algorithm="serial"),
    "serial",
    # a term of da_param is added along T by its program, then along B
    profile=replace(CALIBRATED, name="serial", da_param_additions=lambda batch, steps: steps + batch),
    bitwise=frozenset({"B", "T", "D", "strides"}),
    split=SPLIT,
    tiles=(STEPS, SPLIT),
    program=(SPLIT, 64),
)
