"""Our chunk-parallel Triton kernels; small chunks under the interpreter, so that small cases cross many borders."""

import functools
from dataclasses import replace

import triton

import kernels
from kernels.cell import INTERPRETED
from kernels.chunked import CHANNELS, DEFAULT, GROUP, RUNS, STEPS, backward_chunk
from kernels.reduce import additions
from kernels.subjects.serial import CALIBRATED
from kernels.subjects.subject import Subject

CHUNK = 16 if INTERPRETED.value else DEFAULT


def subject(algorithm: str, chunk_size: int, name: str) -> Subject:
    """The subject of `algorithm` with chunks of `chunk_size` steps."""
    chunk, group = backward_chunk(chunk_size), min(GROUP, RUNS[chunk_size][0]) * chunk_size

    def da_param_additions(batch, steps):  # in a run, over the runs of a chunk, over chunks and rows
        return STEPS + chunk // STEPS + additions(batch * triton.cdiv(steps, chunk))

    return Subject(
        functools.partial(kernels.rglru, algorithm=algorithm, chunk_size=chunk_size),
        name,
        profile=replace(CALIBRATED, name=name, da_param_additions=da_param_additions),
        bitwise=frozenset({"B", "T", "D", "strides"}),
        split=chunk_size,
        tiles=(STEPS, chunk_size, group),
        program=(chunk_size, CHANNELS),
    )


SUBJECT = subject("chunked", CHUNK, "chunked")
THREE_PASS = subject("three-pass", CHUNK, "three-pass")
"""The same bits from three launches, the maps computed twice: judged where it is asked for."""
