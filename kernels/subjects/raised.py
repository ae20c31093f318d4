"""What a subject raised, and in which of its own lines."""

import importlib
import os
import traceback
from pathlib import Path

import torch
import triton

ROOT = Path(__file__).resolve().parents[2]
MOST = 8
"""Lines that are shown, the last ones."""
_MACHINERY = tuple(str(Path(__file__).with_name(f"{name}.py")) for name in ("isolated", "load", "run"))
_LIBRARIES = tuple(package.__path__[0] + os.sep for package in (torch, triton, importlib))


def raised(error: BaseException) -> str:
    """The exception's type and text, the subject's own lines that it came through, and its notes.

    Frames of PyTorch, of Triton and of what calls or imports the subject are left out: its fault is not there.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _own(frame.filename)]
    lines = []
    for frame in frames[-MOST:]:
        lines.append(f'  File "{_short(frame.filename)}", line {frame.lineno}, in {frame.name}')
        lines += [f"    {frame.line}"] if frame.line else []
    return "\n".join([f"{type(error).__name__}: {error}", *lines, *getattr(error, "__notes__", ())])


def elsewhere(error: BaseException) -> tuple[str, str, str]:
    """(type, text, the rest of `raised`) of an exception that another process is told of."""
    head = f"{type(error).__name__}: {error}"
    return type(error).__name__, str(error), raised(error).removeprefix(head).removeprefix("\n")


def _own(file: str) -> bool:
    return not file.startswith(("<frozen ", *_LIBRARIES)) and file not in _MACHINERY


def _short(file: str) -> str:
    """Below the checkout, from there."""
    path = Path(file)
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else file
