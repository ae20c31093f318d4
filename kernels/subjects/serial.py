"""Our fused serial Triton kernels."""

import functools
from dataclasses import replace

import kernels
from kernels.serial import SPLIT, STEPS
from kernels.subjects.subject import Subject
from oracle import DEFAULT

SUBJECT = Subject(
    functools.partial(kernels.rglru, algorithm="serial"),
    "serial",
    # a term of da_param is added along T by its program, then along B
    profile=replace(DEFAULT, name="serial", da_param_additions=lambda batch, steps: steps + batch),
    bitwise=frozenset({"B", "T", "D", "strides"}),
    split=SPLIT,
    tiles=(STEPS, SPLIT),
    interpreted=True,
)
