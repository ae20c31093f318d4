"""Faults put into our Triton kernels: patches of their source, applied to a copy that has a name of its own.

The copy is a package beside `kernels`, so that the module under test is the mutant and nothing else changes.
"""

import atexit
import functools
import importlib.util
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from kernels.subjects import Subject, load

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
PLACES = ("everywhere", "gpu", "limits")


class PatchError(RuntimeError):
    """A patch that does not fit the source any more; the text says which and where."""


@dataclass(frozen=True)
class Patch:
    """A named fault: the text `old`, which `file` must hold exactly once, becomes `new`.

    Parameters
    ----------
    name, fault
        What it is called, and what is wrong in one line.
    file
        A module of `kernels/`, as in "tile.py".
    subject
        The subject of ours that has it: "serial", "chunked" or "three-pass".
    shows
        Where it can be seen: "everywhere", on a "gpu" only (there more rows, or real floating-point units), or at the
        "limits" only, in cases that the default profile does not hold (clause 17).
    """

    name: str
    fault: str
    file: str
    old: str
    new: str
    subject: str = "serial"
    shows: str = "everywhere"

    def apply(self, text: str) -> str:
        """The patched source.

        Raises
        ------
        PatchError
            Where `old` is not in it, or more than once, or `new` is the same.
        """
        count = text.count(self.old)
        if count != 1:
            raise PatchError(
                f"patch {self.name}: kernels/{self.file} holds its old text {count} times, not once: mend it"
            )
        if self.old == self.new:
            raise PatchError(f"patch {self.name} changes nothing")
        return text.replace(self.old, self.new)


def patched(patch: Patch) -> Subject:
    """The patch's subject with the fault in it; everything it promises is still promised.

    Raises
    ------
    PatchError
        Where the patch does not fit.
    """
    subject = load(patch.subject)
    if not isinstance(subject.function, functools.partial):
        raise PatchError(f"patch {patch.name}: subject {subject.name} is no functools.partial of kernels.rglru")
    mutant = import_copy(f"kernels_with_{patch.name}", patch)
    function = functools.partial(mutant.rglru, *subject.function.args, **subject.function.keywords)
    return replace(subject, name=patch.name, function=function, direct=None)


def import_copy(package: str, patch: Patch | None = None) -> ModuleType:
    """A copy of the modules in `kernels/`, patched, imported as `package`; each name once in a process."""
    folder = Path(tempfile.mkdtemp(prefix=f"{package}-")) / package
    atexit.register(shutil.rmtree, folder.parent, ignore_errors=True)
    folder.mkdir()
    files = {path.name: path.read_text(encoding="utf-8") for path in KERNELS.glob("*.py")}
    if patch is not None:
        if patch.file not in files:
            raise PatchError(f"patch {patch.name}: there is no kernels/{patch.file}")
        files[patch.file] = patch.apply(files[patch.file])
    for name, text in files.items():
        text = re.sub(
            r"^(\s*(?:from|import) )kernels(?=\b)(?!\.subjects)", rf"\g<1>{package}", text, flags=re.MULTILINE
        )
        text = text.replace('"rglru::', f'"{package}::')  # PyTorch's operators have one name in a process
        (folder / name).write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(
        package, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[package] = module
    spec.loader.exec_module(module)
    return module
