"""The mutation score: which wrong functions and patched kernels the contract convicts, by what, and how fast.

Each mutant is tried in a process of its own (plain ones share one), so that one that takes its process down is
convicted of that, too. No database, no corpus, no shrinking: what is counted is what a first run would find.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from properties import command_line, device
from properties.command_line import CANNOT_RUN, FAILED, HELD, NOTHING_JUDGED, WrongUsage
from properties.profiles import PROFILES

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("plain", "triton")
PLAIN_TOGETHER = 6
"""Plain mutants that one process tries, because importing PyTorch takes longer than most of them."""
LIMIT = 3600.0
"""Seconds after which a process is ended, its mutants not tried to the end."""


@dataclass
class Row:
    """What became of one mutant.

    `clauses` are those that convict it; `examples` and `seconds`, how many the quickest of their tests took, are
    medians over the seeds that found it. `case` is [B, T, D] of the minimized case of the first conviction, and `least`
    says that one row, step or channel fewer passes.
    """

    name: str
    kind: str
    fault: str
    seeds: int
    killed: int = 0
    clauses: list[int] = field(default_factory=list)
    tests: list[str] = field(default_factory=list)
    examples: float | None = None
    seconds: float | None = None
    case: list[int] | None = None
    least: bool | None = None
    shows: str = "everywhere"
    error: str | None = None


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--kind", choices=(*KINDS, "both"), default="both", help="plain functions, patched kernels")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    parser.add_argument("--profile", choices=tuple(PROFILES), default="default", help="how many examples a test gets")
    parser.add_argument("--seeds", type=command_line.count, help="runs of each mutant; default: 5, and 1 on the CPU")
    parser.add_argument("--first", action="store_true", help="stop at the first clause that convicts, as on the CPU")
    parser.add_argument("--minimize", action="store_true", help="also minimize the first failing case")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only this mutant; repeatable")
    parser.add_argument(
        "--workers", type=command_line.count, default=len(os.sched_getaffinity(0)), help="processes; default: cores"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows here")


def main(options: argparse.Namespace) -> int:
    """Exit code: 0 every mutant that can be seen here is killed by every seed; 1 one survives; 3 none can be seen here;
    4 one cannot be tried.

    Raises
    ------
    WrongUsage
        For a mutant that nobody knows.
    ValueError
        For a device that is not there.
    """
    chosen = device.choose(options.device)
    seeds = options.seeds or (1 if chosen == "cpu" else 5)
    rows = [row for row in catalogue(options.kind, seeds) if not options.only or row.name in options.only]
    unknown = set(options.only) - {row.name for row in rows}
    if unknown:
        raise WrongUsage(f"--only: no mutant is called {', '.join(sorted(unknown))}")
    here = [row for row in rows if row.shows == "everywhere" or (row.shows == "gpu" and chosen != "cpu")]
    settings = {
        "device": chosen,
        "examples": PROFILES[options.profile],
        "first": options.first or chosen == "cpu",
        "minimize": options.minimize,
    }
    console = Console()
    console.print(f"{len(here)} mutants on {chosen}, {settings['examples']} examples a test, {seeds} seeds")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress, ThreadPoolExecutor(options.workers) as pool:
        task = progress.add_task("mutants", total=len(here))
        for done in pool.map(lambda batch: _try(batch, settings), _batches(here)):
            progress.advance(task, len(done))
    show(console, rows, here)
    if options.json:
        lines = ",\n".join(json.dumps(asdict(row)) for row in rows)
        options.json.write_text(f'{{"settings": {json.dumps(settings | {"seeds": seeds})},\n"rows": [\n{lines}\n]}}\n')
    if not here:
        console.print(f"nothing was tried: what was asked for cannot be seen on {chosen}", highlight=False)
        return NOTHING_JUDGED
    return CANNOT_RUN if any(row.error for row in here) else HELD if all(r.killed == seeds for r in here) else FAILED


def catalogue(kind: str, seeds: int) -> list[Row]:
    """An empty row for every mutant."""
    rows = []
    if kind != "triton":
        from properties.mutants.plain import WRONG

        rows += [Row(name, "plain", function.__doc__ or "", seeds) for name, function in WRONG.items()]
    if kind != "plain":
        from properties.mutants.patches import PATCHES

        rows += [Row(patch.name, "triton", patch.fault, seeds, shows=patch.shows) for patch in PATCHES.values()]
    return rows


def _batches(rows: list[Row]) -> Iterator[list[Row]]:
    plain = [row for row in rows if row.kind == "plain"]
    yield from ([row] for row in rows if row.kind != "plain")
    for start in range(0, len(plain), PLAIN_TOGETHER):
        yield plain[start : start + PLAIN_TOGETHER]


def _try(rows: list[Row], settings: dict) -> list[Row]:
    """Fill the rows by a process that tries the mutants."""
    request = {"names": [row.name for row in rows], "kind": rows[0].kind, "seeds": rows[0].seeds, **settings}
    said, died, error = _run(_command(request))
    for row in rows:
        own = [line for line in said if line["name"] == row.name]
        kills = [line for line in own if line["what"] == "kill"]
        if not any(line["what"] == "done" for line in own):
            if died and own:  # by the test that was running
                kills.append(own[-1] | {"examples": 1, "seconds": 0.0, "case": None, "least": None})
            else:
                row.error = error
        _fill(row, kills)
    return rows


def _run(command: list[str]) -> tuple[list[dict], bool, str]:
    """What a process says, a line of JSON each, whether it died of a signal, and what else is to be said of its end."""
    late = threading.Event()
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None

        def end():
            late.set()
            process.kill()

        errors: list[str] = []
        reader = threading.Thread(target=errors.extend, args=(process.stderr,))
        reader.start()
        alarm = threading.Timer(LIMIT, end)
        alarm.start()
        said = [json.loads(line) for line in process.stdout]
        code = process.wait()
        alarm.cancel()
        reader.join()
    if late.is_set():
        return said, False, f"not done within {LIMIT:.0f} s"
    return said, code < 0, "".join(errors[-3:]) or f"its process ended with {code}"


def _command(request: dict) -> list[str]:
    return [sys.executable, "-m", "fuzz.trying", json.dumps(request)]


def _fill(row: Row, kills: list[dict]) -> None:
    by_seed: dict[int, list[dict]] = {}
    for kill in kills:
        by_seed.setdefault(kill["seed"], []).append(kill)
    row.killed = len(by_seed)
    row.clauses = sorted({kill["clause"] for kill in kills})
    row.tests = sorted({kill["test"] for kill in kills})
    if kills:
        quickest = [min(found, key=lambda kill: kill["examples"]) for found in by_seed.values()]
        row.examples = statistics.median(kill["examples"] for kill in quickest)
        row.seconds = round(statistics.median(kill["seconds"] for kill in quickest), 2)
        row.case, row.least = kills[0]["case"], kills[0]["least"]


def show(console: Console, rows: list[Row], here: list[Row]) -> None:
    """The table, the score, and what only one clause sees."""
    minimized = any(row.case for row in rows)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("mutant", no_wrap=True)
    for head in ("kind", "killed", "clauses"):
        table.add_column(head)
    for head in ("examples", "seconds", *(("B T D",) if minimized else ())):
        table.add_column(head, justify="right")
    for row in rows:
        cells = ["not here" if row not in here else f"{row.killed}/{row.seeds}", ", ".join(map(str, row.clauses))]
        if row.error:
            cells = ["error", row.error.strip().splitlines()[-1]]
        cells += ["" if value is None else f"{value:g}" for value in (row.examples, row.seconds)]
        if minimized:
            cells.append("" if row.case is None else " ".join(map(str, row.case)) + ("" if row.least else " ?"))
        style = None if row not in here or row.killed == row.seeds else "bold red"
        table.add_row(row.name, row.kind, *cells, style=style)
    console.print(table)
    killed = [row for row in here if row.killed == row.seeds]
    medians = [row.examples for row in killed if row.examples is not None]
    console.print(f"killed: {len(killed)} of {len(here)}", highlight=False)
    if medians:
        console.print(f"examples to the kill, median over mutants: {statistics.median(medians):g}", highlight=False)
    for row in here:
        if row not in killed:
            console.print(f"SURVIVES {row.killed}/{row.seeds}: {row.name}: {row.fault}", highlight=False)
