"""The kernels compile for a GPU, which can be shown without one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMPILE = """
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels import serial

FLOAT32 = {"a_param_ptr", "h0_ptr", "h_last_ptr", "states_ptr", "dh_last_ptr", "da_param_ptr", "dh0_ptr"}
FLOAT32 |= {"rows_ptr", "sum_ptr"}
(dtype,) = sys.argv[1:]
SIZES = {"STEPS": serial.STEPS, "ROWS": serial.ROWS, "TERMS": serial.TERMS, "CHANNELS": serial.CHANNELS}
variants = [(serial._forward_kernel, {"WIDTH": w, "SAVE": save}, 4) for w in (0, 128) for save in (False, True)]
variants += [(serial._backward_kernel, {"WIDTH": w, "CHANNELS": serial.BACKWARD_CHANNELS}, 2) for w in (0, 192)]
variants += [(serial._sum_rows_kernel, {}, 4)]
for kernel, chosen, warps in variants:
    constants = {name: value for name, value in (SIZES | chosen).items() if name in kernel.arg_names}
    signature = {}
    for name in kernel.arg_names:
        kind = "*i32" if name == "segment_pos_ptr" else "*fp32" if name in FLOAT32 else f"*{dtype}"
        signature[name] = "constexpr" if name in constants else kind if name.endswith("_ptr") else "i32"
    indexed = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature, indexed)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    print(kernel.__name__, chosen, len(compiled.asm["cubin"]))
"""


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_every_variant_compiles_for_a_gpu(dtype):
    """The interpreter accepts Python that Triton's compiler does not: each variant becomes machine code for sm_90."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", COMPILE, dtype]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 4 + 2 + 1
