"""From a name to a subject: built-in, a file's function, a module's function, or an entry point of `rglru.subjects`."""

import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import sys
from dataclasses import replace
from pathlib import Path

from kernels.subjects.raised import raised
from kernels.subjects.subject import Subject

PRODUCTION = ("serial", "chunked")
"""Judged when no --subject is given."""
BUILT_IN = (*PRODUCTION, "eager", "recurrentgemma", "fattori")
"""Rows of the conformance matrix."""
PER_SHAPE = ("compiled", "associative-scan")
"""Compiled anew for every shape: for the benchmark; the contract would draw hundreds."""
BY_NAME = ("three-pass", *PER_SHAPE)
"""Built in, and judged where they are named: three-pass has chunked's bits (kernels/tests/test_chunked.py)."""
ROOT = Path(__file__).resolve().parents[2]
ENTRY_POINTS = "rglru.subjects"
SIGNATURE = "f(x, gate_x, gate_a, a_param, *, segment_pos=None, h0=None)"


class SubjectError(RuntimeError):
    """A subject that cannot be loaded; the text says what to do."""


class Unavailable(SubjectError):
    """A built-in subject whose package or checkout is not here."""


def load(name: str) -> Subject:
    """The subject called `name`.

    Parameters
    ----------
    name : str
        A built-in name, "path/to/file.py:function", "package.module:function", or an entry point's name. What is found
        may be a plain function or a `Subject`.

    Raises
    ------
    Unavailable
        A built-in subject whose package or checkout is not here.
    SubjectError
        Anything else that stands in the way, with the fix in one sentence.
    """
    if name in (*BUILT_IN, *BY_NAME):
        try:
            return importlib.import_module(f"kernels.subjects.{name.replace('-', '_')}").SUBJECT
        except ImportError as error:
            raise Unavailable(f"{name} needs the package {error.name!r}, which is not installed") from error
    found = _find(name)
    place, colon, function = name.rpartition(":")
    if place.endswith(".py"):  # the name must find the file again from the checkout, where replays run
        path = Path(place).resolve()
        name = f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}{colon}{function}"
    _check_signature(name, found.function if isinstance(found, Subject) else found)
    return replace(found, name=name) if isinstance(found, Subject) else Subject(found, name)


def _find(name: str):
    place, _, attribute = name.rpartition(":")
    entries = [] if place else [e for e in importlib.metadata.entry_points(group=ENTRY_POINTS) if e.name == name]
    if not place and name.endswith(".py"):
        raise SubjectError(f"{name} names a file: add the function in it, as in {name}:FUNCTION")
    if not place and not entries:
        raise SubjectError(
            f"no subject is called {name!r}: give one of {', '.join((*BUILT_IN, *BY_NAME))}, FILE.py:FUNCTION, "
            f"MODULE:FUNCTION, or the name of an entry point of the group {ENTRY_POINTS!r}"
        )
    try:
        if entries:
            return entries[0].load()
        module = _import_file(place) if place.endswith(".py") else importlib.import_module(place)
    except Exception as error:
        raise SubjectError(f"{name}: importing it failed with {raised(error)}") from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise SubjectError(f"{name}: {place!r} has no {attribute!r}; name a function it defines") from None


def _import_file(path: str):
    if not os.path.isfile(path):
        raise FileNotFoundError(f"there is no such file below {os.getcwd()!r}; give its path from there")
    folder = os.path.dirname(os.path.abspath(path))
    if folder not in sys.path:  # as for `python FILE.py`, but behind everything that is there already
        sys.path.append(folder)
    spec = importlib.util.spec_from_file_location(f"_subject_{os.path.basename(path)[:-3]}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _check_signature(name: str, function):
    if not callable(function):
        raise SubjectError(f"{name} is a {type(function).__name__}, not a function; its signature must be {SIGNATURE}")
    try:
        inspect.signature(function).bind(1, 2, 3, 4, segment_pos=None, h0=None)
    except TypeError as error:
        raise SubjectError(f"{name} cannot be called as {SIGNATURE} ({error}); give it that signature") from None
    except ValueError:  # a builtin without a signature: the first call will tell
        return
