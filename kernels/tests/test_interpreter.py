"""What is changed in Triton's interpreter leaves it as it was."""

import inspect

import pytest
import torch
import triton
import triton.language as tl

from kernels.cell import INTERPRETED
from kernels.interpreter import prepare_once

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="needs Triton's interpreter")


@triton.jit
def _twice(x):
    return 2.0 * tl.sum(x, axis=0)


@triton.jit
def _kernel(x_ptr, out_ptr, SIZE: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, SIZE))
    tl.store(out_ptr, _twice(x) + _twice(tl.exp2(x)))


def test_the_language_is_replaced_once_a_launch_and_given_back_after_it(monkeypatch):
    """A function called in a kernel looks through nothing again; what follows a launch sees Triton's own language."""
    from triton.runtime import interpreter

    prepare_once()
    looked = []
    honest = inspect.getmembers
    monkeypatch.setattr(interpreter.inspect, "getmembers", lambda of: looked.append(of) or honest(of))
    x, out = torch.ones(8), torch.empty(1)
    for launch in (1, 2):
        _kernel[(3,)](x, out, SIZE=8)
        assert float(out) == 48.0
        assert looked.count(tl) <= 2 * launch  # for this module and that of tl.sum, however often they are called
        assert tl.core.is_builtin(tl.load)
        assert tl.core.is_builtin(tl.tensor.to)
