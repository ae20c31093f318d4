"""Our chunk-parallel Triton kernels; small chunks under the interpreter, so that small cases cross many borders."""

import functools
from dataclasses import replace

import triton

import kernels
from kernels.cell import INTERPRETED
from kernels.chunked import DEFAULT, GROUP
from kernels.launch import CHANNELS, STEPS
from kernels.reduce import additions
from kernels.subjects.serial import CALIBRATED
from kernels.subjects.subject import Subject

CHUNK = 16 if INTERPRETED.value else DEFAULT


def subject(algorithm: str, chunk_size: int, name: str) -> Subject:
    """The subject of `algorithm` with chunks of `chunk_size` steps."""

    def da_param_additions(batch, steps):  # in a chunk, over chunks and rows
        return chunk_size + additions(batch * triton.cdiv(steps, chunk_size))

    return Subject(
        functools.partial(kernels.rglru, algorithm=algorithm, chunk_size=chunk_size),
        name,
        profile=replace(CALIBRATED, name=name, da_param_additions=da_param_additions),
        bitwise=frozenset({"B", "T", "D", "strides"}),
        split=chunk_size,
        tiles=(STEPS, chunk_size, GROUP * chunk_size),
        program=(chunk_size, CHANNELS // 2),
    )


SUBJECT = subject("chunked", CHUNK, "chunked")
