"""The kernels compile for a GPU, which can be shown without one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMPILE = """
import re
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels import chunked, reduce, serial
from kernels.launch import STEPS, channels

FLOAT32 = {"a_param_ptr", "h0_ptr", "h_last_ptr", "states_ptr", "dh_last_ptr", "da_param_ptr", "dh0_ptr"}
FLOAT32 |= {"rows_ptr", "sums_ptr", "first_ptr", "slope_ptr"}
WORDS = {"tickets_ptr", "messages_ptr", "words_ptr"}
dtype, algorithm = sys.argv[1:]
if algorithm == "serial":
    tile = {"STEPS": STEPS, "ROWS": serial.ROWS}
    forward = [tile | {"WIDTH": w, "CHANNELS": channels(w)} for w in (0, 128)]
    variants = [(serial._forward_kernel, f | {"SAVE": s}, 4) for f in forward for s in (0, 8)]
    backward = [tile | {"WIDTH": w, "CHANNELS": channels(w, 2)} for w in (0, 192)]
    variants += [(serial._backward_kernel, chosen, 2) for chosen in backward]
    variants += [(reduce._sum_rows_kernel, {"TERMS": reduce.TERMS, "CHANNELS": reduce.CHANNELS}, 4)]
else:
    tile = {"STEPS": 8, "LENGTH": 64, "GROUP": chunked.GROUP}
    tiles = [tile | {"WIDTH": w, "CHANNELS": channels(w)} for w in (0, 128)]
    forward = [t | {"STEPS": 16, "ROWS": 4, "SAVE": 8, "PHASE": phase} for t in tiles for phase in (0, 1)]
    variants = [(chunked._forward_kernel, chosen, 4) for chosen in forward]
    variants += [(chunked._backward_kernel, t | {"PHASE": 0}, 1) for t in tiles]
    variants += [(chunked._groups_kernel, tile | {"CHANNELS": 64}, 1), (chunked._begin_kernel, {"BLOCK": 1024}, 4)]
for kernel, chosen, warps in variants:
    constants = {name: value for name, value in chosen.items() if name in kernel.arg_names}
    signature = {}
    for name in kernel.arg_names:
        kind = "*i32" if name == "segment_pos_ptr" else "*fp32" if name in FLOAT32 else f"*{dtype}"
        kind = "*i64" if name in WORDS else kind
        signature[name] = "constexpr" if name in constants else kind if name.endswith("_ptr") else "i32"
    indexed = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    aligned = {(k,): [["tt.divisibility", 16]] for k, name in enumerate(kernel.arg_names) if name.endswith("_ptr")}
    source = ASTSource(kernel, signature, indexed, aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    print(kernel.__name__, chosen, *re.findall("#blocked = #ttg.blocked<{(.*)}>", compiled.asm["ttgir"]))
"""


@pytest.mark.parametrize(
    ("algorithm", "dtype", "variants"),
    [("serial", "fp32", 7), ("serial", "bf16", 7), ("serial", "fp16", 7), ("chunked", "bf16", 8)],
)
def test_every_variant_compiles_for_a_gpu(algorithm, dtype, variants):
    """The interpreter accepts Python that Triton's compiler does not: each variant becomes machine code for sm_90."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", COMPILE, dtype, algorithm]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == variants
    for line in done.stdout.splitlines():  # rows in any other order are scanned in another, so bits depend on the width
        assert "'ROWS'" not in line or "forward" not in line or "[1, 32], warpsPerCTA = [4, 1]" in line, line
