"""Triton's interpreter, without what it does again whenever a kernel calls a function: a third of its time."""

from typing import Any

import triton.language as tl


def prepare_once():
    """Let the interpreter replace the functions of `triton.language` once a launch.

    It looks through the whole language at every call from within a kernel, and finds everything replaced already.
    Where this version of Triton has no such place, nothing changes.
    """
    from triton.runtime import interpreter

    replace = getattr(interpreter, "_patch_builtin", None)
    if replace is None or hasattr(replace, "once"):
        return
    first: dict[Any, str | None] = {}

    def replace_once(of, builder, scope):
        if of not in first:
            first[of] = next((name for name, member in vars(of).items() if tl.core.is_builtin(member)), None)
        name = first[of]
        if name is None or tl.core.is_builtin(vars(of)[name]):
            replace(of, builder, scope)

    replace_once.once = True  # type: ignore[attr-defined]
    interpreter._patch_builtin = replace_once
