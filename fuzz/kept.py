"""A kept case: one self-describing JSON file that means the same in every later version."""

import hashlib
import json
import os
import platform
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from oracle import Case
from oracle.case import AXES
from properties.strategies import Recipe

FORMAT = 1
ROOT = Path(__file__).parent.parent
FOUND = Path(__file__).parent / "found"
CASES = Path(__file__).parent / "cases"
LINE = 120
LONGEST_SLUG = 60
"""Characters of a test's or a subject's name in a file's name."""
MOST_NUMBERS = 2000
"""A case with more numbers than this is kept as its recipe with a checksum, a smaller one in full."""
MOST_WRITTEN_OUT = 4
"""An array of more numbers than this, all of them equal, is kept as one."""


class KeptError(RuntimeError):
    """A file that is no kept case, or one that no longer means what it meant; the text says what to do."""


@dataclass(frozen=True)
class Kept:
    """A case, the clause it is for, and where it was found.

    `clause` is the number, `test` the clause's test, `params` what was drawn beside the case.
    """

    clause: int
    test: str
    case: Case
    params: dict[str, Any]
    subject: str
    device: str = "cpu"
    grade: str = "accurate"
    verdict: str = ""
    recipe: Recipe | None = None
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def file_name(self) -> str:
        """<test>-<hash of test, case and params>.json, in the corpus: the same case has the same name."""
        return f"{_slug(self.test.removeprefix('test_'))}-{_hash(self._content())}.json"

    @property
    def found_name(self) -> str:
        """<test>-on-<subject>-<hash>.json, among finds: each subject, grade and device has its own of the same case."""
        names = _slug(self.test.removeprefix("test_")), _slug(self.subject.rpartition("/")[2])
        where = [self.subject, self.grade, self.device]
        return f"{'-on-'.join(names)}-{_hash([*where, *self._content()])}.json"

    def _content(self) -> list:
        return [self.test, _encode_case(self.case), _plain(self.params)]

    def write(self, path: Path) -> Path:
        """Write to `path` in one step: a reader, or a crash, sees the whole file or none."""
        document = {
            "format": FORMAT,
            "clause": self.clause,
            "test": self.test,
            "subject": self.subject,
            "device": self.device,
            "grade": self.grade,
            "verdict": self.verdict.splitlines(),
            "versions": self.versions,
            "params": _plain(self.params),
            "case": self._document_of_case(),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        text = _readable(document) + "\n"
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False) as file:
            try:
                file.write(text)
                file.close()
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
        return path

    def _document_of_case(self) -> dict:
        numbers = sum(getattr(self.case, name).size for name in AXES if getattr(self.case, name) is not None)
        if numbers > MOST_NUMBERS and self.recipe is not None:
            return {"recipe": self.recipe.to_json(), "sha256": checksum(self.case)}
        return {name: _in_short(value) for name, value in _encode_case(self.case).items()}


def abandoned(path: Path) -> bool:
    """Whether the process that wrote a file called running-PID.json or failing-PID.json has ended."""
    try:
        os.kill(int(path.stem.rpartition("-")[2]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def read(path: Path) -> Kept:
    """The kept case in a file.

    Raises
    ------
    KeptError
        Where the file is missing, of another format, or its recipe no longer builds the case it did.
    """
    try:
        document = json.loads(Path(path).read_text())
    except FileNotFoundError:
        raise KeptError(f"{path}: there is no such file") from None
    except OSError as error:
        raise KeptError(f"{path}: {error.strerror}") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise KeptError(f"{path} is not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise KeptError(f"{path} is no kept case of format {FORMAT}")
    try:
        recipe, case = _decode_case(path, document["case"])
        names = ("clause", "test", "params", "subject", "device", "grade", "versions")
        values = {name: document[name] for name in names}
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise KeptError(f"{path} is not a whole kept case: {type(error).__name__}: {error}") from error
    return Kept(case=case, recipe=recipe, verdict="\n".join(document.get("verdict", ())), **values)


def found_on(subject: str, clause: int, test: str) -> list[Kept]:
    """The cases of the corpus on which `subject` failed a clause's test."""
    kept = [read(path) for path in sorted((CASES / str(clause)).glob("*.json"))]
    return [case for case in kept if case.verdict and (case.subject, case.test) == (subject, test)]


def checksum(case: Case) -> str:
    """SHA-256 over dtype, shapes and the bits of every array (every NaN counted as the same)."""
    digest = hashlib.sha256(case.dtype.encode())
    for name in AXES:
        array = getattr(case, name)
        digest.update(f"{name} {None if array is None else array.shape}".encode())
        if array is not None:
            canonical = array.astype("<i8") if array.dtype.kind == "i" else np.where(np.isnan(array), np.nan, array)
            digest.update(canonical.astype(canonical.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Of what a verdict depends on."""
    import torch
    import triton

    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "triton": triton.__version__,
    }


def _encode_case(case: Case) -> dict:
    arrays = {name: getattr(case, name) for name in AXES}
    document: dict[str, Any] = {"dtype": case.dtype, "shape": list(case.shape)}
    for name, array in arrays.items():
        if array is None:
            document[name] = None
        elif name == "segment_pos":
            document[name] = {"dtype": str(array.dtype), "values": array.tolist()}
        else:
            document[name] = _map(_hexadecimal, array.tolist())
    return document


def _decode_case(path, document: dict) -> tuple[Recipe | None, Case]:
    if "recipe" in document:
        recipe = Recipe.from_json(document["recipe"])
        case = recipe.build()
        if checksum(case) != document["sha256"]:
            raise KeptError(f"{path}: its recipe no longer builds the case it did (checksum differs): do not trust it")
        return recipe, case
    batch, steps, width = document["shape"]
    sizes = {"B": batch, "T": steps, "D": width}
    arrays: dict[str, Any] = {}
    for name, axes in AXES.items():
        shape = [sizes[axis] for axis in axes]
        values = document[name]
        if values is None:
            arrays[name] = None
        elif name == "segment_pos":
            arrays[name] = np.array(values["values"], values["dtype"]).reshape(shape)
        elif isinstance(values, dict):
            arrays[name] = np.full(shape, float.fromhex(values["every"]))
        else:
            arrays[name] = np.array(_map(float.fromhex, values), np.float64).reshape(shape)
    return None, Case(**arrays, dtype=document["dtype"])


def _in_short(values):
    """A float array of equal elements by the one, where that is shorter."""
    flat = np.ravel(values).tolist() if isinstance(values, list) else []
    equal = len(flat) > MOST_WRITTEN_OUT and isinstance(flat[0], str) and len(set(flat)) == 1
    return {"every": flat[0]} if equal else values


def _slug(text: str) -> str:
    return re.sub(r"[\W_]+", "-", text)[:LONGEST_SLUG].strip("-")


def _hash(content: list) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


def _hexadecimal(value: float) -> str:
    return "nan" if np.isnan(value) else value.hex()


def _map(function, nested):
    return [_map(function, item) for item in nested] if isinstance(nested, list) else function(nested)


def _plain(value):
    """Params as JSON has them: tuples become lists, NumPy numbers plain ones."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def _readable(value, indent: str = "") -> str:
    """JSON in which whatever fits on a line stands on one."""
    compact = json.dumps(value, separators=(", ", ": "))
    if len(indent) + len(compact) <= LINE or not isinstance(value, dict | list) or not value:
        return compact
    inner = indent + " "
    if isinstance(value, dict):
        items = [f"{json.dumps(key)}: {_readable(item, inner)}" for key, item in value.items()]
    else:
        items = [_readable(item, inner) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n" + ",\n".join(inner + item for item in items) + f"\n{indent}{closing}"
