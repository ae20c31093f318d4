"""Benjamin Fattori's fused scan, imported from the checkout of hawk-pytorch that HAWK_PYTORCH names, and run elsewhere.

The kernel whose strategy ours follow: https://github.com/fattorib/hawk-pytorch, Apache-2.0. Nothing of it is in here.
"""

import functools
import importlib
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kernels.subjects.isolated import Isolated
from kernels.subjects.load import SubjectError, Unavailable
from kernels.subjects.subject import Deviation, Subject
from oracle.bounds import FAST

REPOSITORY = "https://github.com/fattorib/hawk-pytorch"
PIN = "e43239336cf93b6dd79486447150429e472a4b90"
FILES = ("hawk/scan_fused.py", "hawk/external.py")
LEAST = 2
"""The shortest sequence: the backward reads the state before the last step, and writes the steps before it."""


@dataclass(frozen=True)
class Checkout:
    """A checkout of hawk-pytorch: where, and what of it."""

    folder: Path
    versions: dict[str, str]


def checkout(environment: Mapping[str, str] = os.environ) -> Checkout:
    """The checkout that HAWK_PYTORCH names: at the pin and unchanged, or any where HAWK_PYTORCH_UNPINNED is 1.

    Raises
    ------
    Unavailable
        Where HAWK_PYTORCH is not set.
    SubjectError
        Where it names no checkout, a folder within one, or, without leave, another commit than the pin or one with
        changes.
    """
    if not environment.get("HAWK_PYTORCH"):
        raise Unavailable(
            f"fattori needs a checkout of hawk-pytorch, which is not there: git clone {REPOSITORY}, git checkout {PIN} "
            "in it, and set HAWK_PYTORCH to its folder"
        )
    folder = Path(environment["HAWK_PYTORCH"]).resolve()
    try:
        top = Path(_git(folder, "rev-parse", "--show-toplevel")).resolve()
        if folder != top and (top / FILES[0]).exists():
            raise SubjectError(
                f"HAWK_PYTORCH must name the root of the checkout: set it to {str(top)!r}, not to "
                f"{str(folder.relative_to(top))!r} in it"
            )
        commit = _git(folder, "rev-parse", "HEAD")
        blobs = [_git(folder, "hash-object", file) for file in FILES]
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", "hawk")
    except (OSError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        raise SubjectError(
            f"HAWK_PYTORCH must name a git checkout of {REPOSITORY}; in {str(folder)!r}, git says: {said[0]}"
        ) from error
    found = f"commit {commit}" + (" with changes" if changed else "")
    if commit == PIN and not changed:
        version = commit
    elif environment.get("HAWK_PYTORCH_UNPINNED") == "1":
        version = f"unpinned {found.removeprefix('commit ')}"
    else:
        raise SubjectError(
            f"HAWK_PYTORCH names {found} of hawk-pytorch, not the pinned one: git checkout {PIN} in {str(folder)!r}, "
            "or set HAWK_PYTORCH_UNPINNED=1 to judge what is there, shown as unpinned"
        )
    return Checkout(folder, {"hawk-pytorch": version, **dict(zip(FILES, blobs, strict=True))})


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@functools.cache
def hawk():
    """(fused_linear_scan, BlockDiagonalLinear) of the checkout, imported into this process."""
    folder = str(checkout().folder)
    sys.path.insert(0, folder)
    try:
        scan, external = (importlib.import_module(file.removesuffix(".py").replace("/", ".")) for file in FILES)
    finally:
        sys.path.remove(folder)
    for module in (scan, external):
        if not str(module.__file__).startswith(folder + os.sep):
            raise ImportError(f"{module.__name__} was imported from {module.__file__}, not from the checkout {folder}")
    return scan.fused_linear_scan, external.BlockDiagonalLinear


def scan(x, gate_x, gate_a, a_param, *, segment_pos=None, h0=None):
    """What fused_linear_scan makes of the logits that its two projections would have given; it returns y alone.

    Its initial state is zero and it never resets, so the first step is a_1 * 0 + sqrt(1 - a_1^2) i_1 x_1, as defined.
    """
    for name, value in (("segment_pos", segment_pos), ("h0", h0)):
        if value is not None:
            raise TypeError(f"fused_linear_scan takes no {name}")
    _round_as_a_gpu_does()
    fused_linear_scan, _ = hawk()
    return fused_linear_scan(x, gate_x, gate_a, a_param), None


@functools.cache
def _round_as_a_gpu_does():
    """Triton's interpreter truncates float32 to bfloat16; what is judged must be Fattori's kernel, not that."""
    import torch
    import triton
    import triton.language as tl

    if not triton.knobs.runtime.interpret:
        return
    interpreter = importlib.import_module("triton.runtime.interpreter")
    convert = interpreter._convert_float

    def rounding(value, source, target, mode):
        if (source, target) != (tl.float32, tl.bfloat16):
            return convert(value, source, target, mode)
        rounded = torch.from_numpy(value.copy()).to(torch.bfloat16)
        return rounded.view(torch.int16).numpy().view("uint16").reshape(value.shape)

    interpreter._convert_float = rounding


_WITHIN, _BEYOND = Isolated(f"{__name__}:scan"), Isolated(f"{__name__}:scan")


def rglru(x, gate_x, gate_a, a_param, *, segment_pos=None, h0=None):
    """`scan` in another process; calls that are too short, which ruin that process's memory, in one of their own."""
    there = _WITHIN if x.shape[1] >= LEAST else _BEYOND
    return there(x, gate_x, gate_a, a_param, segment_pos=segment_pos, h0=h0)


VERSIONS = checkout().versions
importlib.import_module("einops")  # hawk imports it: where it is missing, that is no fault of the kernel
_LOG = (
    "log(1 + exp(a_param)) is 17 % off at a_param = -15, 0 below -16.64 and infinite from 89 on, its derivative NaN "
    "(softplus_fwd, softplus_bwd)"
)
_STRIDES = (
    "y takes the strides of a dense transposed x, but is written as if contiguous, and the backward asserts that it is "
    "(sequential_scan_forward, sequential_scan_backward)"
)

SUBJECT = Subject(
    rglru,
    "fattori",
    resets=False,
    h0=False,
    h_last=False,  # the last output is rounded to bfloat16
    dtypes=("bfloat16",),  # outputs and gradients are rounded to bfloat16 whatever the dtype
    width_multiple=64,
    min_length=LEAST,
    grade="canonical",
    profile=replace(
        FAST,
        name="fattori",
        order="serial",
        saved="bfloat16",
        # a term of da_param is added along T by its program, then along B
        da_param_additions=lambda batch, steps: steps + batch,
    ),
    tiles=(8,),  # one step at a time: no length is special
    program=(8, 64),  # of all steps; as slow as ours
    deviations=(
        Deviation("test_y_and_h_last_lie_within_their_bounds", _LOG),
        Deviation("test_every_gradient_lies_within_its_bound", _LOG),
        Deviation("test_every_size_is_right", _LOG),
        Deviation("test_any_strides_are_right_and_memory_around_is_left_alone", _STRIDES),
        Deviation("test_saturated_gates_and_extreme_decays_stay_within_their_bounds", _LOG),
        Deviation("test_subnormal_and_huge_inputs_stay_within_their_bounds", _LOG),
        Deviation("test_the_slope_of_the_square_root_is_bounded", _LOG),
        Deviation("test_non_finite_values_show_where_the_definition_says", _LOG),
        Deviation("test_infinite_gates_are_open_or_shut", _LOG),
        Deviation("test_a_long_memory_is_carried_over_every_border", _LOG),
        Deviation("test_optional_arguments_and_any_subset_of_gradients", _LOG),
    ),
    versions=lambda: VERSIONS,
    direct=scan,
)
