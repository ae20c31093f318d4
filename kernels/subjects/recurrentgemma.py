"""The torch RG-LRU of the published package `recurrentgemma`, imported as it is; its gates are given as logits."""

import importlib.metadata

import torch
from recurrentgemma.torch.layers import RGLRU
from torch import nn

from kernels.subjects.subject import Deviation, Subject


class _Given(nn.Module):
    """Stands in for a gate's projection: returns logits that were computed elsewhere."""

    def __init__(self, logits):
        super().__init__()
        self.logits = logits

    def forward(self, x):
        return self.logits


def rglru(x, gate_x, gate_a, a_param, *, segment_pos=None, h0=None):
    """The layer's forward with both block-diagonal projections replaced by the given logits."""
    if segment_pos is None:
        segment_pos = torch.ones(x.shape[:2], dtype=torch.int32, device=x.device)
    layer = RGLRU(x.shape[-1], num_heads=1, device="meta", dtype=x.dtype)
    layer.input_gate, layer.a_gate = _Given(gate_x), _Given(gate_a)
    return torch.func.functional_call(layer, {"a_param": a_param}, (x, segment_pos, h0))


_LEAK = "a reset multiplies the past, gate_a and a_param by zero, and zero times NaN is NaN (rnn_scan, RGLRU.forward)"

SUBJECT = Subject(
    rglru,
    "recurrentgemma",
    dtypes=("float32",),  # in bfloat16 the layer rounds the gates and the state to bfloat16
    min_length=1,
    grade="canonical",
    deviations=(
        Deviation("test_nothing_before_a_reset_reaches_what_follows", _LEAK),
        Deviation("test_no_gradient_crosses_a_reset_backwards", _LEAK),
        Deviation("test_dgate_a_at_a_reset_after_a_nan_is_zero", _LEAK),
        Deviation("test_non_finite_values_spread_up_to_the_next_reset_and_no_further", _LEAK),
        Deviation(
            "test_any_strides_are_right_and_memory_around_is_left_alone",
            "for T = 1 without a state the last state returned is a view of y (rnn_scan)",
        ),
    ),
    versions=lambda: {"recurrentgemma": importlib.metadata.version("recurrentgemma")},
)
