"""The compiled PyTorch subjects: what is compiled is right before it is compiled, at all lengths, and it compiles."""

import functools

import numpy as np
import pytest
import torch

from kernels.subjects import BUILT_IN, PER_SHAPE, Subject, associative_scan, compiled, load
from kernels.subjects.run import run
from oracle import judge
from oracle.tests.cases import ordinary

PLAIN = {"compiled": compiled.parallel, "associative-scan": associative_scan.scanned}


@pytest.mark.parametrize("name", PER_SHAPE)
def test_it_is_found_by_name_and_kept_from_the_contract(name):
    """Every drawn shape would be compiled: conformance takes the other ones."""
    assert load(name).name == name
    assert name not in BUILT_IN


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 7, 8, 9, 31, 64])
def test_the_tree_is_right_at_every_length(name, steps):
    """Halves of odd lengths leave a step over: outputs and all gradients, with resets, h0 and cotangents on both."""
    case = ordinary(steps, shape=(2, steps, 3), reset_at=steps // 2)
    verdict = judge(case, run(Subject(PLAIN[name], name, min_length=1), case))
    assert verdict.holds, verdict


@pytest.mark.parametrize("name", PLAIN)
def test_no_nan_crosses_a_reset(name):
    """Selected away, forward and backward: a product of decays over a reset must not be multiplied by what it cuts."""
    size = (1, 8, 1)
    for poisoned in ("x", "gate_x", "gate_a"):
        tensors = {key: torch.zeros(size) for key in ("x", "gate_x", "gate_a")}
        tensors[poisoned][0, 2] = torch.nan
        leaves = [tensor.requires_grad_() for tensor in (*tensors.values(), torch.zeros(1))]
        segment_pos = torch.tensor([[1, 2, 3, 4, 5, 0, 1, 2]])
        y, _ = PLAIN[name](*leaves, segment_pos=segment_pos)
        assert y[0, :, 0].isnan().tolist() == [False, False, True, True, True, False, False, False]
        gradients = torch.autograd.grad(y[0, 5:].sum(), leaves[:3])
        assert all(bool(gradient[0, 5:].isfinite().all()) for gradient in gradients)
        assert not gradients[2][0, 5].any()


def test_every_shape_is_compiled_and_none_is_left_to_the_interpreter(monkeypatch):
    """torch.compile gives up after 8 variants of a function, and with dynamic shapes on associative_scan."""
    seen = []

    def backend(graph, inputs):
        seen.append([v.shape for v in inputs if isinstance(v, torch.Tensor)])
        assert all(isinstance(size, int) for shape in seen[-1] for size in shape)
        return graph.forward

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    doubled = compiled.compile_each_shape(lambda x, *, h0=None: 2 * x)
    for steps in range(2, 10):
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                doubled(torch.ones(1, steps, 1, requires_grad=True))
    assert len(seen) == 16
    doubled(torch.ones(1, 5, 1, requires_grad=True))
    assert len(seen) == 16


def test_what_cannot_be_compiled_as_a_whole_is_refused(monkeypatch):
    """A function that falls apart into interpreted pieces is not what the row's name says."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))

    def broken(x):
        torch._dynamo.graph_break()
        return x

    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled.compile_each_shape(broken)(torch.ones(3))


@pytest.mark.slow
@pytest.mark.parametrize("name", PER_SHAPE)
def test_compiled_it_is_right(name):
    """By Inductor, with its own backward; on the CPU associative_scan becomes a tree, too.

    In the canonical grade: there Inductor's vectors take exp(v) - 1 for expm1(v). On a GPU it is a function of its own.
    """
    case = ordinary(3, shape=(2, 5, 3), reset_at=2)
    result = run(load(name), case)
    verdict = judge(case, result, grade="canonical")
    assert verdict.holds, verdict
    assert np.isfinite(result.da_param).all()
