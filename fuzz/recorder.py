"""Keeps the example being tried on disk, so that a crash, a hang or a failure leaves it behind."""

import os
from collections.abc import Callable
from pathlib import Path

from fuzz.kept import FOUND, ROOT, Kept, versions
from fuzz.minimize import minimize_file
from kernels.subjects import Subject
from oracle import Case
from properties.contract import Clause
from properties.strategies import Recipe
from properties.trial import Trial


def command(path: Path) -> str:
    """The line that replays a file, wherever it is typed."""
    line = f"python -m fuzz replay {os.path.relpath(path, ROOT)}"
    return line if Path.cwd() == ROOT else f"cd {ROOT} && {line}"


class Recorder:
    """One test's recorder, in a process of its own name: workers never write the same file.

    The example at hand is in `running-<process>.json` while it runs; a failing one is renamed to `failing-...` at once,
    replaced by each smaller one that fails too, and in the end gets the name of its content and its subject.
    """

    def __init__(self, folder: Path = FOUND):
        self.folder = folder
        self.running = folder / f"running-{os.getpid()}.json"
        self.failing = folder / f"failing-{os.getpid()}.json"
        self.last: Kept | None = None
        self.current: Kept | None = None
        self.subject: Subject | None = None
        self.kept: Path | None = None

    def begin(self, clause: Clause, trial: Trial, recipe: Recipe | None, case: Case, params: dict):
        self.subject = trial.subject
        self.current = Kept(
            clause=clause.number,
            test=clause.name,
            case=case,
            params=params,
            subject=trial.subject.name,
            device=trial.device,
            grade=trial.grade,
            recipe=recipe,
            versions=versions() | trial.subject.versions(),
        )
        self.current.write(self.running)

    def end(self):
        self.running.unlink(missing_ok=True)

    def failed(self, error: BaseException):
        assert self.current is not None
        self.last = Kept(**{**self.current.__dict__, "verdict": str(error)})
        self.last.write(self.failing)
        self.end()

    def keep(self) -> str | None:
        """Give the last failing case its lasting name; the command that replays it."""
        if self.last is None:
            return None
        self.kept = self.folder / self.last.found_name
        os.replace(self.failing, self.kept)
        return command(self.kept)

    def minimize(self, alike: Callable[[str], bool] = lambda text: True) -> tuple[str, str] | None:
        """Put a smaller case in the place of the one that was kept; the command that replays it, and its verdict.

        Its verdict is one that is `alike`.
        """
        if self.last is None or self.kept is None or self.subject is None:
            return None
        self.kept, smaller = minimize_file(self.kept, self.last, self.subject, alike=alike)
        return None if smaller is self.last else (command(self.kept), smaller.verdict)
