"""`python -m kernels.bench`: arguments, the loop over settings and subjects, the report."""

import argparse
import datetime
import itertools
import json
import math
import os
import platform
import shlex
import subprocess
import sys
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import torch
import triton

from kernels.bench import plot, report, setting
from kernels.bench.clock import COPIED, Clock, bandwidth
from kernels.bench.judging import JUDGED, Judge
from kernels.bench.measure import DeviceLost, Row, measure
from kernels.bench.setting import SHAPES, Setting, draw
from kernels.subjects import Subject, SubjectError, Unavailable, load
from kernels.subjects.subject import DTYPES

SUBJECTS = ("serial", "chunked", "three-pass", "eager", "compiled", "associative-scan")
RESETS = "1/512"
ROOT = Path(__file__).resolve().parents[2]
NOTHING_TIMED, CANNOT_RUN = 3, 4
"""Exit codes that mean here what they mean in `properties.command_line`, which nothing in kernels imports."""


@dataclass(frozen=True)
class Options:
    """What was asked for."""

    subjects: tuple[Subject, ...]
    settings: tuple[Setting, ...]
    repeats: int = 50
    budget: float = 10.0
    warm_up: float = 60.0
    judged: int = JUDGED
    json: str | None = None
    plot: str | None = None
    command: str = ""


def parse(arguments: list[str] | None = None) -> Options:
    """Options from the command line; what is wrong with them ends the program with one sentence."""
    parser = argparse.ArgumentParser(prog="python -m kernels.bench", description=main.__doc__)
    add = parser.add_argument
    add(
        "--subject",
        action="append",
        metavar="S",
        help=f"repeatable; default: {', '.join(SUBJECTS)}; with HAWK_PYTORCH, fattori",
    )
    shapes_of = parser.add_mutually_exclusive_group()
    shapes_of.add_argument("--shape", action="append", metavar="B,T,D", help="repeatable; instead of --shapes")
    shapes_of.add_argument(
        "--shapes",
        choices=tuple(SHAPES),
        default="long",
        help=f"long (default): {' '.join(','.join(map(str, shape)) for shape in SHAPES['long'])}; sweep: T from 512 to "
        "131072 for three B D, for --plot",
    )
    add("--dtype", action="append", choices=DTYPES, help="repeatable; default: bfloat16")
    add(
        "--resets",
        action="append",
        metavar="P",
        help=f"probability of a reset at a step, 0 for none; repeatable; default: {RESETS}, and 0 where a subject "
        "knows no resets",
    )
    add("--repeats", type=int, default=50, metavar="N", help="calls timed (default 50)")
    add(
        "--budget", type=float, default=10.0, metavar="S", help="seconds for the timed calls of one number (default 10)"
    )
    add(
        "--warm-up",
        type=float,
        default=60.0,
        metavar="S",
        help="seconds for its first calls, compilation included (60)",
    )
    add(
        "--judged",
        type=int,
        default=JUDGED,
        metavar="N",
        help=f"elements of each output that the oracle judges at most, but for one row of one channel ({JUDGED})",
    )
    add("--json", metavar="FILE", help="write everything measured there")
    add("--plot", metavar="FILE", help="draw bandwidth against T there (.png, .svg or .pdf); needs matplotlib")
    given = parser.parse_args(arguments)
    try:
        if given.repeats < 3:
            raise ValueError(f"--repeats must be at least 3, or there is no spread; got {given.repeats}")
        if not given.budget > 0:
            raise ValueError(f"--budget must be a positive number of seconds; got {given.budget}")
        if not 0 < given.warm_up < math.inf:
            raise ValueError(f"--warm-up must be a positive number of seconds; got {given.warm_up}")
        if given.judged < 1:
            raise ValueError(f"--judged must be at least 1: nothing is ranked unjudged; got {given.judged}")
        if given.json and not Path(given.json).resolve().parent.is_dir():
            raise ValueError(f"--json: there is no folder for {given.json!r}; make it first")
        if given.plot:
            plot.check(given.plot)
        shapes = [setting.shape(text) for text in given.shape] if given.shape else SHAPES[given.shapes]
        densities = [setting.density(text) for text in given.resets or [RESETS]]
        names = given.subject or [*SUBJECTS, *(["fattori"] if os.environ.get("HAWK_PYTORCH") else [])]
        subjects = [load(name) for name in dict.fromkeys(names)]
    except Unavailable as error:
        parser.exit(CANNOT_RUN, f"{parser.prog}: {error}\n")
    except (ValueError, SubjectError) as error:
        parser.error(str(error))
    if not given.resets and not all(subject.resets for subject in subjects):
        densities.append(Fraction(0))
    settings = itertools.product(densities, shapes, given.dtype or ["bfloat16"])
    return Options(
        subjects=tuple(subjects),
        settings=tuple(dict.fromkeys(Setting(shape, dtype, resets) for resets, shape, dtype in settings)),
        repeats=given.repeats,
        budget=given.budget,
        warm_up=given.warm_up,
        judged=given.judged,
        json=given.json,
        plot=given.plot,
        command=shlex.join(["python", "-m", "kernels.bench", *(sys.argv[1:] if arguments is None else arguments)]),
    )


def main(arguments: list[str] | None = None) -> int:
    """Time RG-LRU kernels on one GPU and judge them in the same run. Exit code: 0; 1 where a subject is wrong or fails;
    2 where an argument is wrong; 3 where nothing was timed; 4 where there is no GPU or a subject is not here."""
    options = parse(arguments)
    if not torch.cuda.is_available():
        print("python -m kernels.bench: it needs a CUDA device, and PyTorch sees none", file=sys.stderr)
        return CANNOT_RUN
    if triton.knobs.runtime.interpret:
        print("python -m kernels.bench: unset TRITON_INTERPRET: interpreted kernels have no speed", file=sys.stderr)
        return CANNOT_RUN
    with Clock() as clock:
        return bench(options, clock)


def bench(options: Options, clock) -> int:
    """Measure, print and write every setting; the exit code."""
    written = {
        "format": 1,
        "device": clock.describe(),
        "versions": versions(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": options.command,
        "repeats": options.repeats,
        "budget_s": options.budget,
        "warm_up_s": options.warm_up,
        "settings": [],
    }
    bad, timed, lost = False, False, None
    for chosen in options.settings:
        if lost:
            break
        copy = clock.copy(options.repeats)
        clock.release()
        count = chosen.sets(clock.cache_bytes)
        sets = [draw(chosen, clock.device, seed) for seed in range(count)]
        judge = Judge(chosen, sets[0], options.judged)
        rows = []
        for subject in options.subjects:
            if lost:
                rows.append(Row(subject.name, subject.grade, subject.profile.name, reason=f"not run: {lost}"))
                continue
            print(f"{subject.name} at {chosen} ...", file=sys.stderr, flush=True)
            try:
                rows.append(
                    measure(
                        subject,
                        chosen,
                        sets,
                        clock,
                        judge,
                        repeats=options.repeats,
                        budget=options.budget,
                        warm_up=options.warm_up,
                        copy=bandwidth(copy, 2 * COPIED),
                    )
                )
            except DeviceLost as error:
                lost = str(error)
                rows.append(error.row)  # type: ignore[attr-defined]
        bad |= any(row.wrong or row.failed for row in rows)
        timed |= any(measurement.timing for row in rows for measurement in row.measurements.values())
        table, notes = report.lines(chosen, rows, copy, 2 * COPIED)
        report.show(report.title(chosen, copy, 2 * COPIED), table, notes)
        written["settings"].append(report.as_json(chosen, rows, copy, 2 * COPIED, count))
        if options.json:
            Path(options.json).write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    if options.plot:
        try:
            plot.draw([written], options.plot)
        except ValueError as error:
            print(f"--plot: {error}", file=sys.stderr)
    if lost:
        print(f"broken off: {lost}", file=sys.stderr)
    return 1 if bad else 0 if timed else NOTHING_TIMED


def versions() -> dict[str, str | None]:
    """What the numbers were made with; the commit of this checkout where it can be told."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "commit": _commit(),
    }


def _commit() -> str | None:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
