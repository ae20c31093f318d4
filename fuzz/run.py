"""The campaign's command: `python -m fuzz run`. Its options, the line that moves, and the summary."""

import argparse
import re
import time
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fuzz.kept import FOUND
from properties import command_line, device
from properties.command_line import FAILED, GRADES, HELD, NOTHING_JUDGED

TICK = 0.2


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--minutes", type=command_line.duration, required=True, help="how long")
    parser.add_argument("--subject", help="what is tried; default: the first production kernel")
    parser.add_argument("--grade", choices=GRADES, help="default: the subject's own")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    parser.add_argument(
        "--workers", type=command_line.count, help="processes; default: as many as keep cores and GPUs busy"
    )
    parser.add_argument("--clauses", type=command_line.clauses, help="only these, as in 1,2,13; default: all")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="for state and finds; default: in fuzz/found/")
    parser.add_argument("--seed", type=int, help="the seed of a new campaign; default: drawn")


def main(options: argparse.Namespace) -> int:
    """Exit code: 0 nothing was found, 1 something was, 3 nothing was tried.

    Raises
    ------
    WrongUsage
        For a subject that nobody knows, or a folder of another campaign.
    ValueError, RuntimeError
        For a device or a package that is not there.
    """
    chosen = device.choose(options.device)
    from fuzz.campaign import Campaign, resume
    from kernels.subjects import PRODUCTION
    from properties.mutants.kill import clauses

    subject = command_line.subject(options.subject or PRODUCTION[0])
    grade = options.grade or subject.grade
    folder = options.into or FOUND / f"campaign-{re.sub(r'[^A-Za-z0-9]+', '-', subject.name).strip('-')}-{chosen}"
    state = resume(folder, subject=subject.name, device=chosen, grade=grade, seed=options.seed)
    wanted = options.clauses or command_line.CLAUSES
    tests = [(c.number, c.name) for c in clauses(subject, chosen, grade) if c.number in wanted]
    console = Console()
    if not tests:
        console.print(f"nothing to try: {subject.name} promises nothing of clauses {', '.join(map(str, wanted))}")
        return NOTHING_JUDGED
    campaign = Campaign(state, folder, tests, options.workers or device.workers(chosen))
    console.print(
        f"{subject.title} on {chosen}, {grade} grade: {len(tests)} tests, {campaign.workers} workers, seed {state.seed}"
        + (f", going on after {state.tried} examples" if state.tried else ""),
        highlight=False,
    )
    try:
        campaign.begin()
        _watch(console, campaign, 60 * options.minutes)
        campaign.end()
    except KeyboardInterrupt:
        campaign.end(patience=0)
        console.print("interrupted; the same command goes on")
    _show(console, campaign, tests)
    if state.finds:
        return FAILED
    if state.tried == campaign.tried_before:
        console.print("nothing was tried: give more --minutes, which workers need to start, too")
        return NOTHING_JUDGED
    return HELD


def _watch(console: Console, campaign, seconds: float) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task, end = progress.add_task("", total=seconds), time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            state = campaign.state
            text = f"{state.tried:,} examples, {campaign.rate:,.0f} a minute, worst ratio "
            text += f"{max(list(state.worst.values()), default=0.0):.3g}, {len(state.finds)} finds"
            progress.update(task, completed=seconds - left, description=text)
            time.sleep(min(TICK, left))
        progress.update(task, completed=seconds)


def _show(console: Console, campaign, tests) -> None:
    from fuzz.recorder import command

    state = campaign.state
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("clause", justify="right", width=6)
    table.add_column("test", no_wrap=True, overflow="ellipsis", max_width=max(20, console.width - 42))
    for head, width in (("examples", 11), ("worst", 8), ("finds", 5)):
        table.add_column(head, justify="right", width=width)
    for number, test in tests:
        finds = sum(find.test == test for find in state.finds)
        ratio = state.worst.get(test, 0.0)
        row = (
            str(number),
            test.removeprefix("test_"),
            f"{state.examples.get(test, 0):,}",
            f"{ratio:.3g}" if ratio else "",
        )
        table.add_row(*row, str(finds) if finds else "")
    console.print(table)
    say = console.print
    say(
        f"{state.tried:,} examples in {state.seconds / 60:.1f} minutes, {campaign.rate:,.0f} a minute now; "
        f"{len(state.finds)} finds, {state.repeated} repetitions, {state.deaths} workers lost",
        highlight=False,
    )
    for find in state.finds:
        say(f"clause {find.clause}, {find.test}: {escape(find.kind)}", highlight=False, soft_wrap=True)
        if find.file:
            say(f"  {command(campaign.folder / find.file)}", highlight=False, soft_wrap=True)
        else:
            say(f"  {escape(find.verdict)}", highlight=False, soft_wrap=True)
