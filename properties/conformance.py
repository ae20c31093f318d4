"""The conformance matrix: subjects x clauses, both grades. `python -m properties.conformance`.

Each subject's clauses are run by pytest in a process of their own in the accurate grade, and what deviates there once
more in the canonical grade; this module reads pytest's JUnit files and draws the table.
"""

import argparse
import functools
import json
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from properties import command_line, device
from properties.command_line import CANNOT_RUN, FAILED, HELD, NOTHING_JUDGED, WrongUsage
from properties.profiles import PROFILES

HOLDS, CANONICAL, DEVIATES = "●", "◐", "○"
UNJUDGED = {"not supported": "·", "NOT COMPARABLE": "–"}
"""Marks of a clause none of whose tests was run. NOT COMPARABLE: it is about resets or initial states, of which the
subject has none."""
LEGEND = f"{HOLDS} holds   {CANONICAL} holds in the canonical grade only   {DEVIATES} deviates\n" + "   ".join(
    f"{mark} {outcome}" for outcome, mark in UNJUDGED.items()
)
NOT_COMPARABLE = ("segment_pos", "an initial state")
NOT_PROMISED = "not promised: "
"""With what follows it, why pytest skips a test, and how the verdict of a kept case begins that asks for too much."""
ROOT = Path(__file__).parent.parent
CASES = ROOT / "fuzz" / "cases"


@dataclass(frozen=True)
class Finding:
    """What became of one clause's test on one subject in one grade."""

    clause: int
    test: str
    outcome: str  # "holds", "deviates", "error", "not supported", "NOT COMPARABLE"
    grade: str
    ratio: float = 0.0
    found: str | None = None
    known: str | None = None
    text: str = ""


@dataclass
class Row:
    """A subject's findings, or why it was not run."""

    name: str
    title: str = ""
    not_run: str | None = None
    accurate: list[Finding] = field(default_factory=list)
    canonical: list[Finding] = field(default_factory=list)

    @property
    def judged(self) -> bool:
        """Whether anything was."""
        return any(finding.outcome not in UNJUDGED for finding in self.accurate)

    def cell(self, clause: int) -> str:
        """The mark of one clause over all its tests."""
        accurate = [finding for finding in self.accurate if finding.clause == clause]
        judged = [finding for finding in accurate if finding.outcome not in UNJUDGED]
        if not judged:
            outcomes = {finding.outcome for finding in accurate}
            return UNJUDGED["NOT COMPARABLE" if "NOT COMPARABLE" in outcomes else "not supported"]
        if all(finding.outcome == "holds" for finding in judged):
            return HOLDS
        again = [finding for finding in self.canonical if finding.clause == clause and finding.outcome not in UNJUDGED]
        return CANONICAL if again and all(finding.outcome == "holds" for finding in again) else DEVIATES

    def deviations(self) -> list[tuple[Finding, Finding]]:
        """(accurate, canonical) of every test that deviates in the accurate grade."""
        canonical = {finding.test: finding for finding in self.canonical}
        bad = [finding for finding in self.accurate if finding.outcome in ("deviates", "error")]
        pairs = [(finding, canonical.get(finding.test, finding)) for finding in bad]
        return sorted(pairs, key=lambda pair: (pair[0].clause, pair[0].test))


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0; 1 where a subject fails, in its own grade, a clause that its ledger does not list; 2 where the
    options are wrong; 3 where nothing was judged; 4 where a subject that was named is not here or a run broke off."""
    parser = argparse.ArgumentParser(
        prog="python -m properties.conformance",
        description="Draw the conformance matrix: which subjects hold which clauses, in which grade.",
        epilog=main.__doc__,
    )
    parser.add_argument(
        "--subject",
        action="append",
        default=[],
        metavar="S",
        help="only these, as pytest's --subject takes them; default: every built-in one that is here",
    )
    parser.add_argument("--require", action="append", default=[], metavar="NAME", help="fail where NAME cannot be run")
    parser.add_argument(
        "--profile", choices=tuple(PROFILES), default="default", help="how many examples a test gets; default: default"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    parser.add_argument("--clauses", type=command_line.clauses, help="only these, as in 1,2,13; default: all")
    options = parser.parse_args(arguments)
    return command_line.ended(lambda: _judge(options))


def _judge(options: argparse.Namespace) -> int:
    chosen = device.choose(options.device)
    from kernels.subjects import BUILT_IN, Subject, Unavailable

    console = Console()
    rows, broken, unexpected = [], False, False
    subjects: list[tuple[str, Subject | None]] = []
    required = {*options.subject, *options.require}
    for name in dict.fromkeys([*(options.subject or BUILT_IN), *options.require]):
        row = Row(name)
        rows.append(row)
        try:
            loaded = command_line.subject(name)
            subjects.append((name, loaded))
            row.title = loaded.title
        except (Unavailable, WrongUsage) as error:
            if isinstance(error, WrongUsage) and name in required:
                raise
            row.not_run = str(error)
            subjects.append((name, None))
            broken |= name in required
    console.print(f"Judging {len(subjects)} subjects on {chosen}, profile {options.profile}", highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        for row, (name, subject) in zip(rows, subjects, strict=True):
            if subject is None:
                continue
            extra = ["--profile", options.profile, "--device", chosen]
            try:
                clauses = ["--clauses", ",".join(map(str, options.clauses))] if options.clauses else []
                row.accurate = _run(name, "accurate", [*extra, *clauses], progress)
                bad = sorted({finding.clause for finding in row.accurate if finding.outcome == "deviates"})
                if bad:
                    row.canonical = _run(name, "canonical", [*extra, "--clauses", ",".join(map(str, bad))], progress)
            except RuntimeError as error:
                row.not_run, broken = str(error), True
                continue
            own = row.deviations()
            index = 0 if subject.grade == "accurate" else 1
            unexpected |= any(pair[index].outcome != "holds" and pair[index].known is None for pair in own)
    _show(console, rows)
    if broken:
        return CANNOT_RUN
    if not any(row.judged for row in rows):
        console.print("nothing was judged", highlight=False)
        return NOTHING_JUDGED
    return FAILED if unexpected else HELD


def _run(name: str, grade: str, extra: list[str], progress: Progress) -> list[Finding]:
    task = progress.add_task(f"{name}, {grade}", total=None)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "properties",
            "-n",
            "auto",
            "-v",
            "--tb=short",
            "-p",
            "no:cacheprovider",
        ]
        command += ["--subject", name, "--grade", grade, f"--junitxml={report}", *extra]
        lines = []
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8"
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                if line.startswith("[gw") and "%]" in line:
                    progress.advance(task)
        if process.returncode not in (0, 1, 3) or not report.exists():
            raise RuntimeError(f"pytest ended with {process.returncode}: {''.join(lines[-15:])}")
        findings = _read(report, grade)
    progress.update(task, total=len(findings), completed=len(findings))
    return findings


def _read(report: Path, grade: str) -> list[Finding]:
    """The findings in a JUnit file that pytest wrote."""
    findings = []
    for case in ElementTree.parse(report).iter("testcase"):
        properties = {p.attrib["name"]: p.attrib["value"] for p in case.iter("property")}
        failure, error, skipped = (case.find(kind) for kind in ("failure", "error", "skipped"))
        outcome, text = "holds", ""
        if error is not None:
            outcome, text = "error", error.attrib.get("message", "")
        elif failure is not None:
            outcome, text = "deviates", failure.attrib.get("message", "")
        elif skipped is not None:
            expected = skipped.attrib.get("type") == "pytest.xfail"
            text = skipped.attrib.get("message", "")
            compared = text.removeprefix(NOT_PROMISED) not in NOT_COMPARABLE
            outcome = "deviates" if expected else "not supported" if compared else "NOT COMPARABLE"
        findings.append(
            Finding(
                clause=int(properties["clause"]),
                test=case.attrib["name"].partition("[")[0],
                outcome=outcome,
                grade=grade,
                ratio=float(properties.get("ratio", 0.0)),
                found=properties.get("found"),
                known=properties.get("known") if skipped is not None else None,
                text=text,
            )
        )
    return findings


def _show(console: Console, rows: list[Row]):
    say = functools.partial(console.print, highlight=False, soft_wrap=True)
    clauses = sorted({finding.clause for row in rows for finding in row.accurate})
    table = Table(title="RG-LRU conformance: subjects x clauses", caption=LEGEND, box=box.SIMPLE_HEAD, padding=0)
    table.add_column("subject ", no_wrap=True)
    for clause in clauses:
        table.add_column(str(clause), justify="center", width=3)
    for row in rows:
        if row.not_run is None:
            table.add_row(row.name, *(row.cell(clause) for clause in clauses))
    if clauses:
        console.print(table)
    for row in rows:
        if row.not_run is not None:
            say(f"[bold]{row.name}[/bold] not run: {row.not_run}")
        elif row.title != row.name:
            say(row.title)
    for row in rows:
        for limit, command in _limits(row.name) if row.not_run is None else ():
            say(f"[bold]{row.name}[/bold], not supported: {escape(limit)}")
            say(f"  {command}")
    for row in rows:
        for accurate, canonical in row.deviations():
            say(f"[bold]{row.name}[/bold], clause {accurate.clause}: {accurate.test}")
            say(f"  canonical: {_verdict(canonical)}; accurate: {_verdict(accurate)}")
            if accurate.known:
                say(f"  known: {accurate.known}")
            if accurate.found:
                say(f"  {accurate.found}")


def _limits(name: str) -> list[tuple[str, str]]:
    """What happens to those who ask a subject for more than it promises, from its kept cases, each with its replay."""
    found = []
    for path in sorted(CASES.rglob("*.json")):
        kept = json.loads(path.read_text())
        first, *more = kept["verdict"] or [""]
        if kept["subject"] == name and first.startswith(NOT_PROMISED):
            limit, asked, what = first.removeprefix(NOT_PROMISED).partition("; asked anyway: ")
            what = next((line for line in (what, *more) if "DEVIATES" in line), what)
            found.append((limit + asked + what, f"python -m fuzz replay {path.relative_to(ROOT)}"))
    return found


def _verdict(finding: Finding) -> str:
    if finding.outcome == "holds":
        return "holds"
    return f"deviates {finding.ratio:.3g} x" if 1 < finding.ratio < float("inf") else finding.outcome


if __name__ == "__main__":
    sys.exit(main())
