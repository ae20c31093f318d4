"""What the launches of several kernels have in common."""

import functools

import torch
import triton

from kernels.cell import INTERPRETED

STEPS = 4 if INTERPRETED.value else 8
"""Steps between the float32 states that a forward saves, of any algorithm for any; few under the interpreter, where
small cases must cross many borders."""
CHANNELS = 64
"""Channels of a warp: two a lane; one where the width is no multiple of this, since then none are loaded in pairs."""


def constant(width: int) -> int:
    """The width a kernel is compiled for; 0 for the variant that takes any."""
    return width if width % CHANNELS == 0 else 0


def channels(width: int, warps: int = 1) -> int:
    """Channels of so many warps beside one another."""
    return warps * (CHANNELS if constant(width) else CHANNELS // 2)


def as_words(segment_pos, stand_in):
    """segment_pos as int32 words and how many of them an element has, so that one kernel takes both dtypes, or none."""
    if segment_pos is None:
        return stand_in.view(torch.int32), 0
    flat = segment_pos.as_strided((segment_pos.numel(),), (1,))  # a size of 1 may have any stride
    return flat.view(torch.int32), segment_pos.element_size() // 4


def chains_a_multiprocessor(batch: int, width: int, device: torch.device) -> float:
    """Rows of the batch times tiles of `CHANNELS`, for each multiprocessor of a GPU: what runs beside one another.

    Infinite without a GPU, where nothing does.
    """
    if device.type != "cuda":
        return float("inf")
    return batch * triton.cdiv(width, CHANNELS) / _multiprocessors(device)


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
