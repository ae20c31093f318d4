"""Our fused serial Triton kernels."""

import functools

import kernels
from kernels.serial import CHANNELS, STEPS
from kernels.subjects.subject import Subject
from oracle import DEFAULT
from oracle.bounds import Profile

SUBJECT = Subject(
    functools.partial(kernels.rglru, algorithm="serial"),
    "serial",
    # a term of da_param is added along T by its program, then over rows
    profile=Profile(**{**DEFAULT.__dict__, "name": "serial", "da_param_additions": lambda batch, steps: batch + steps}),
    bitwise=frozenset({"B", "T", "D", "strides"}),
    split=1,
    tiles=(STEPS,),
    interpreted=True,
)
__all__ = ["CHANNELS", "SUBJECT"]
