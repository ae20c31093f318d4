"""Campaigns: the whole contract tried on one subject for minutes or days, by workers that may die.

This process hands out work and writes down what came of it; it calls no kernel. A unit of work is one clause's test
with a seed. What a worker finds is on disk before this process hears of it, and the state after every unit, so that a
campaign that was ended, by whatever, goes on where it was.
"""

import contextlib
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from fuzz.kept import ROOT, KeptError, abandoned, read
from kernels.subjects.run import TIME_LIMIT
from properties.command_line import WrongUsage

HANG = TIME_LIMIT + 60.0
"""Seconds without a word, a call's and a reducer's time limits included, after which a worker is ended."""
PATIENCE = 30.0
"""Seconds that a worker may go on minimizing after the time is over."""
STATE = "campaign.json"


@dataclass
class Find:
    """A failure that no other of its clause, test and kind came before."""

    clause: int
    test: str
    kind: str
    file: str
    verdict: str

    @property
    def key(self) -> tuple:
        return self.clause, self.test, self.kind


@dataclass
class State:
    """All that a campaign needs to go on: `unit` is the next one, `worst` the highest ratio of what held, by test."""

    subject: str
    device: str
    grade: str
    seed: int
    unit: int = 0
    seconds: float = 0.0
    deaths: int = 0
    repeated: int = 0
    examples: dict[str, int] = field(default_factory=dict)
    worst: dict[str, float] = field(default_factory=dict)
    finds: list[Find] = field(default_factory=list)

    @property
    def tried(self) -> int:
        return sum(self.examples.values())

    def write(self, folder: Path) -> None:
        """In one step: whoever is interrupted leaves the old one or the new one."""
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".part", delete=False) as file:
            json.dump(asdict(self), file, indent=1)
        os.replace(file.name, folder / STATE)

    @classmethod
    def read(cls, folder: Path) -> "State | None":
        """The state in a folder, or None where no campaign was.

        Raises
        ------
        KeptError
            Where the file is none.
        """
        try:
            document = json.loads((folder / STATE).read_text())
            return cls(**document | {"finds": [Find(**find) for find in document["finds"]]})
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            raise KeptError(f"{folder / STATE} is no campaign's state: {error}") from error


def kind_of(text: str) -> str:
    """What failures that are alike have in common: the first output that deviates, or an exception's type, ..."""
    deviates = re.search(r"^(\w+): DEVIATES", text, re.MULTILINE)
    if deviates:
        return f"{deviates[1]} deviates"
    raised = re.search(r"raised (\w+)", text)
    if raised:
        return f"raised {raised[1]}"
    line = (text.splitlines() or [""])[0]
    return re.sub(r"\W*\d.*", "", line).strip()[:60]


class Campaign:
    """One campaign, from its state to its state.

    Parameters
    ----------
    state
        Where to go on.
    folder
        Where cases and state are kept.
    tests
        The clauses' tests to try, as (number, name), in turn.
    workers
        Processes at once.
    """

    def __init__(self, state: State, folder: Path, tests: list[tuple[int, str]], workers: int):
        self.state, self.folder, self.tests, self.workers = state, folder, tests, workers
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.seats = [_Seat(self, number) for number in range(workers)]
        self.before = state.seconds
        self.start = time.monotonic()
        self.tried_before = state.tried

    def begin(self) -> None:
        """Start the workers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.sweep()
        for seat in self.seats:
            seat.thread.start()

    def end(self, patience: float = PATIENCE) -> None:
        """End the workers, those that are minimizing after their time, and keep what they leave behind."""
        self.over.set()
        until = time.monotonic() + patience
        for seat in self.seats:
            while seat.minimizing and time.monotonic() < until:
                time.sleep(0.05)
            seat.stop()
        for seat in self.seats:
            seat.thread.join()
        self.sweep()
        self.save()

    @property
    def rate(self) -> float:
        """Examples a minute since this process began."""
        return 60 * (self.state.tried - self.tried_before) / max(time.monotonic() - self.start, 1e-9)

    def save(self) -> None:
        with self.lock:
            self.state.seconds = self.before + time.monotonic() - self.start
            self.state.write(self.folder)

    def next_unit(self) -> dict:
        """What a worker is to do next."""
        with self.lock:
            unit, self.state.unit = self.state.unit, self.state.unit + 1
            _, test = self.tests[unit % len(self.tests)]
            digest = hashlib.sha256(f"{self.state.seed} {unit}".encode()).digest()
            return {
                "test": test,
                "seed": int.from_bytes(digest[:4], "big"),
                "always": unit < len(self.tests),
                "known": [find.kind for find in self.state.finds if find.test == test],
                "worst": self.state.worst.get(test, 0.0),
            }

    def hear(self, said: dict) -> None:
        """Count what a worker says."""
        with self.lock:
            test = said["test"]
            self.state.examples[test] = self.state.examples.get(test, 0) + said.get("examples", 0)
            self.state.worst[test] = max(self.state.worst.get(test, 0.0), said.get("ratio", 0.0))
            self.state.repeated += said.get("repeated", 0)
        if "kind" in said:
            self.note(Find(said["clause"], test, said["kind"], said["file"], said["verdict"]))

    def note(self, find: Find) -> None:
        """Add a find, or remove its file where another of its kind is there."""
        with self.lock:
            alike = [other for other in self.state.finds if other.key == find.key]
            if not alike:
                self.state.finds.append(find)
            elif find.file and all(other.file != find.file for other in alike):
                (self.folder / find.file).unlink(missing_ok=True)
                self.state.repeated += 1

    def died(self, process: int, code: int) -> None:
        """A worker ended before it answered: keep the example it was at, and what it had found."""
        how = f"SIG{signal.Signals(-code).name.removeprefix('SIG')}" if code < 0 else f"exit code {code}"
        with self.lock:
            self.state.deaths += 1
        running = self.folder / f"running-{process}.json"
        with contextlib.suppress(KeptError):
            kept = replace(read(running), verdict=f"the process ended with {how}")
            kept.write(self.folder / kept.found_name)
            running.unlink()
            self.note(Find(kept.clause, kept.test, f"died of {how}", kept.found_name, kept.verdict))

    def sweep(self) -> None:
        """Name what an interrupted worker left as failing, forget what was merely running, and list every case."""
        for path in self.folder.glob("failing-*.json"):
            if abandoned(path):
                with contextlib.suppress(KeptError):
                    path.replace(self.folder / read(path).found_name)
        for path in self.folder.glob("running-*.json"):
            if abandoned(path):
                path.unlink(missing_ok=True)
        listed = {find.file for find in self.state.finds}
        for path in sorted(self.folder.glob("*-????????.json")):
            if path.name not in listed:
                with contextlib.suppress(KeptError):
                    kept = read(path)
                    self.note(Find(kept.clause, kept.test, kind_of(kept.verdict), path.name, kept.verdict))


class _Seat:
    """A worker's place: one process after another, as they die."""

    def __init__(self, campaign: Campaign, number: int):
        self.campaign, self.number = campaign, number
        self.minimizing = False
        self.process: subprocess.Popen | None = None
        self.thread = threading.Thread(target=self._work, daemon=True)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()

    def _work(self) -> None:
        while not self.campaign.over.is_set():
            self._one_life()

    def _one_life(self) -> None:
        campaign = self.campaign
        about = {name: getattr(campaign.state, name) for name in ("subject", "device", "grade")}
        request = json.dumps({**about, "folder": str(campaign.folder.resolve()), "number": self.number})
        with subprocess.Popen(
            [sys.executable, "-m", "fuzz.worker", request],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C is for this process, which ends the others
        ) as process:
            self.process = process
            if campaign.over.is_set():
                process.kill()
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                self._hand_out(process)
            process.kill()
            process.wait()
            self.minimizing = False
            if not campaign.over.is_set():
                campaign.died(process.pid, process.returncode)
                campaign.save()

    def _hand_out(self, process) -> None:
        while not self.campaign.over.is_set():
            print(json.dumps(self.campaign.next_unit()), file=process.stdin, flush=True)
            while True:
                alarm = threading.Timer(HANG, process.kill)
                alarm.start()
                line = process.stdout.readline()
                alarm.cancel()
                if not line:
                    process.wait()
                    return
                said = json.loads(line)
                self.minimizing = said["what"] == "failing"
                self.campaign.hear(said)
                if said["what"] == "done":
                    break
            self.campaign.save()


def resume(folder: Path, *, subject: str, device: str, grade: str, seed: int | None) -> State:
    """The state in a folder, or a new one.

    Raises
    ------
    WrongUsage
        Where the folder holds a campaign on another subject, device or grade, or from another seed.
    """
    state = State.read(folder)
    if state is None:
        return State(subject, device, grade, random.SystemRandom().randrange(2**32) if seed is None else seed)
    given = {"subject": subject, "device": device, "grade": grade, "seed": state.seed if seed is None else seed}
    for name, value in given.items():
        if getattr(state, name) != value:
            raise WrongUsage(
                f"--into: {folder} holds a campaign with {name} {getattr(state, name)}, not {value}: give another"
            )
    return state
