"""Triton's interpreter, without what it does again whenever a kernel calls a function: a third of its time."""

import functools

import triton.language as tl


def prepare_once():
    """Let the interpreter replace the functions of `triton.language` once a launch and module.

    It goes through the whole language whenever a kernel calls a function, and finds everything replaced already. Where
    this version of Triton has no such place, nothing changes.
    """
    from triton.runtime import interpreter

    replace = getattr(interpreter, "_patch_lang", None)
    if replace is None or hasattr(replace, "__wrapped__"):
        return
    done: set[str] = set()

    @functools.wraps(replace)
    def replace_once(function):
        if tl.core.is_builtin(tl.load):  # a launch begins
            done.clear()
        elif function.__module__ in done:
            return None
        done.add(function.__module__)
        return replace(function)

    interpreter._patch_lang = replace_once
