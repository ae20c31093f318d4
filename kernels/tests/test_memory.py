"""Nothing is read beyond an input: each ends where a page begins that may not be touched."""

import ctypes
import mmap
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import kernels
from kernels.cell import INTERPRETED

GUARD = 64
"""Pages behind a tensor: more than a tile of the widest input here."""


def guarded(tensor: torch.Tensor) -> torch.Tensor:
    """A copy whose last element is the last that may be read."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    size = tensor.numel() * tensor.element_size()
    room = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    start = libc.mmap(
        None,
        room + GUARD * mmap.PAGESIZE,
        mmap.PROT_READ | mmap.PROT_WRITE,
        mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
        -1,
        0,
    )
    assert libc.mprotect(start + room, GUARD * mmap.PAGESIZE, 0) == 0
    memory = (ctypes.c_char * size).from_address(start + room - size)
    return torch.frombuffer(memory, dtype=tensor.dtype).view(tensor.shape).copy_(tensor)


def call_at_the_end_of_memory(algorithm: str):
    """Forward and backward at lengths around every border, all inputs and cotangents guarded."""
    options = {} if algorithm == "serial" else {"chunk_size": 16}
    for steps in (*range(1, 10), 15, 16, 17, 19, 20, 33):
        tokens = [guarded(torch.randn(1, steps, 64)) for _ in range(4)]
        a_param, h0, dh_last = guarded(torch.randn(64)), guarded(torch.randn(1, 64)), guarded(torch.randn(1, 64))
        segment_pos = guarded(torch.ones(1, steps, dtype=torch.int64))
        leaves = [tensor.requires_grad_() for tensor in (*tokens[:3], a_param, h0)]
        y, h_last = kernels.rglru(*leaves[:4], segment_pos=segment_pos, h0=h0, algorithm=algorithm, **options)
        torch.autograd.grad((y, h_last), leaves, (tokens[3], dh_last))
    print("done")


@pytest.mark.skipif(not INTERPRETED, reason="guards the CPU's memory; on a GPU compute-sanitizer looks")
@pytest.mark.parametrize("algorithm", ["serial", "chunked", "three-pass"])
def test_nothing_is_read_beyond_an_input(algorithm):
    """A value that is loaded ahead and never used is harmless until it lies in a page that is not mapped."""
    command = f"from kernels.tests.test_memory import *; call_at_the_end_of_memory({algorithm!r})"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", command], cwd=root, capture_output=True, text=True, check=False)
    assert done.stdout == "done\n", (done.returncode, done.stderr)
