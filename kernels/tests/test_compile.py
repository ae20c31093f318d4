"""The kernels compile for a GPU, which can be shown without one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMPILE = """
import itertools
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels import serial

FLOAT32 = {"a_param_ptr", "h0_ptr", "h_last_ptr", "states_ptr", "dh_last_ptr", "da_param_ptr", "dh0_ptr"}
FLOAT32 |= {"rows_ptr", "sum_ptr"}
dtype, positions = sys.argv[1:]
for kernel in (serial._forward_kernel, serial._backward_kernel, serial._sum_rows_kernel):
    flags = [name for name in kernel.arg_names if name in ("HAS_RESETS", "HAS_H0", "SAVE")]
    for values in itertools.product((False, True), repeat=len(flags)):
        sizes = {"STEPS": serial.STEPS, "CHANNELS": serial.CHANNELS, "ROWS": serial.ROWS}
        constants = dict(zip(flags, values)) | {name: sizes[name] for name in kernel.arg_names if name in sizes}
        signature = {}
        for name in kernel.arg_names:
            kind = f"*{positions}" if name == "segment_pos_ptr" else "*fp32" if name in FLOAT32 else f"*{dtype}"
            signature[name] = "constexpr" if name in constants else "i32" if name in ("B", "T", "D") else kind
        indexed = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
        compiled = triton.compile(ASTSource(kernel, signature, indexed), target=GPUTarget("cuda", 90, 32))
        print(kernel.__name__, values, len(compiled.asm["cubin"]))
"""


@pytest.mark.parametrize(("dtype", "positions"), [("fp32", "i64"), ("bf16", "i32"), ("fp16", "i64")])
def test_every_variant_compiles_for_a_gpu(dtype, positions):
    """The interpreter accepts Python that Triton's compiler does not: each variant becomes machine code for sm_90."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", COMPILE, dtype, positions]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 8 + 2 + 1
