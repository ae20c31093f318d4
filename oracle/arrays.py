"""Whose arrays: NumPy's, or torch's on its device, by the array API standard. The formulas know neither."""

from typing import Any

import array_api_compat
import array_api_compat.numpy
import numpy as np

Array = Any
"""An array of NumPy, or a tensor of torch on any device."""


def namespace(array):
    """The functions for `array`: NumPy's, for numbers and lists too, or those of its own library."""
    return array_api_compat.array_namespace(array) if is_array(array) else array_api_compat.numpy


def is_array(value) -> bool:
    return array_api_compat.is_array_api_obj(value)


def float64(value) -> Array:
    """`value` in float64, a copy only where it is not already; a list or a number becomes NumPy's."""
    xp = namespace(value)
    return xp.asarray(value, dtype=xp.float64)


def zeros(shape: tuple[int, ...], like: Array) -> Array:
    """Float64 zeros where `like` lives."""
    xp = namespace(like)
    return xp.zeros(shape, dtype=xp.float64, device=array_api_compat.device(like))


def home(array: Array) -> str:
    """Library and device of an array, for messages: "numpy on cpu", "torch on cuda:0"."""
    return f"{type(array).__module__.partition('.')[0]} on {array_api_compat.device(array)}"


def beside(name: str, value, model: Array) -> Array:
    """`value` without its autograd history, as an array that can be computed with beside `model`, which is x.

    Raises
    ------
    TypeError
        Where they belong to different libraries or devices (a list or a number counts as NumPy's).
    """
    array = value if is_array(value) else np.asarray(value)
    if array_api_compat.is_torch_array(array):
        array = array.detach()
    if home(array) != home(model):
        raise TypeError(f"{name} must be an array of {home(model)}, as x is; got {home(array)}")
    return array
