"""The judges in use, judged: which wrong functions they catch, and which honest ones they accuse.

`python -m properties.mutants.judges` prints the table. Every judge sees the same cases, the same outputs and the same
reference, the oracle's, rounded to the dtypes of the outputs; what differs is where it draws the line. Realistic inputs
are what a test of a kernel has: normal data, recurrentgemma's initialization; adversarial ones are what the strategies
of the contract draw besides. The contract's other clauses (bits, memory, splits) are left out: they judge no numbers.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from kernels.subjects import Subject
from kernels.subjects.run import Misbehaviour, NoAnswer, run
from oracle import Case, Reference, Result, judge, solve
from oracle.case import IN_CASE_DTYPE
from oracle.formats import FORMATS, round_to
from properties.mutants.honest import HONEST
from properties.mutants.plain import WRONG
from properties.strategies import Recipe

DTYPES = ("float32", "bfloat16")
INPUTS = ("realistic", "adversarial")
Judge = Callable[[Case, Result, Reference], bool]


def oracle(case: Case, result: Result, reference: Reference) -> bool:
    """Every output within its derived bound, in the accurate grade."""
    return judge(case, result, reference=reference).holds


def _tensors(case: Case, result: Result, reference: Reference) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(output, reference) in the dtype of the output."""
    for name, output in result.items():
        form = case.dtype if name in IN_CASE_DTYPE else "float32"
        dtype = getattr(torch, form)
        exact = round_to(np.asarray(getattr(reference, name), np.float64), FORMATS[form])
        yield torch.from_numpy(np.array(output)).to(dtype), torch.from_numpy(exact).to(dtype)


def _close(case: Case, result: Result, reference: Reference, tolerances: Callable[[torch.dtype], dict]) -> bool:
    try:
        for output, exact in _tensors(case, result, reference):
            torch.testing.assert_close(output, exact, equal_nan=True, **tolerances(output.dtype))
    except AssertionError:
        return False
    return True


def assert_close(case: Case, result: Result, reference: Reference) -> bool:
    """torch.testing.assert_close with its defaults: 1.3e-6 and 1e-5 in float32, 1.6e-2 and 1e-5 in bfloat16."""
    return _close(case, result, reference, lambda dtype: {})


def allclose(case: Case, result: Result, reference: Reference) -> bool:
    """The tolerances of state-spaces/mamba, tests/ops/test_selective_scan.py: a scan as this one is."""

    def tolerances(dtype):
        if dtype == torch.float32:
            return {"rtol": 6e-4, "atol": 2e-3}
        return {"rtol": 3e-2, "atol": 5e-2} if dtype == torch.bfloat16 else {"rtol": 3e-3, "atol": 5e-3}

    return _close(case, result, reference, tolerances)


def rms_ratio(case: Case, result: Result, reference: Reference) -> bool:
    """fla-org/flash-linear-attention, fla/utils/testing.py, with 0.005 as in tests/ops/test_hgrn.py.

    No NaN, and the root mean square of the difference below 0.005 of the reference's, or no element off by 1e-6.
    """
    for output, exact in _tensors(case, result, reference):
        output, exact = output.double(), exact.double()
        if not output.numel():
            continue
        difference = (exact - output).flatten()
        if difference.abs().max() <= 1e-6:
            continue
        ratio = difference.square().mean().sqrt() / (exact.flatten().square().mean().sqrt() + 1e-8)
        if output.isnan().any() or exact.isnan().any() or not ratio < 0.005:
            return False
    return True


JUDGES: dict[str, Judge] = {
    "oracle": oracle,
    "assert_close": assert_close,
    "mamba's allclose": allclose,
    "fla's RMS ratio": rms_ratio,
}


def cases(inputs: str, count: int) -> list[Case]:
    """`count` cases, half of them in each dtype; all finite, with cotangents on both outputs."""
    made = []
    for seed in range(count):
        dtype = DTYPES[seed % 2]
        rng = np.random.Generator(np.random.Philox(seed))

        def one_of(*choices, rng=rng):
            return choices[rng.integers(len(choices))]

        if inputs == "realistic":
            recipe = Recipe(
                dtype, 2, one_of(64, 100, 128), 8, "typical", "normal", one_of("absent", "sparse"), seed=seed
            )
            made.append(recipe.build())
            continue
        recipe = Recipe(
            dtype,
            int(rng.integers(1, 4)),
            one_of(1, 2, 7, 8, 9, 33, 64),
            int(rng.integers(1, 6)),
            one_of("mixed", "fast", "slow", "slowest", "wide", "extreme", "long"),
            one_of("normal", "spread", "wide", "saturated", "closed"),
            one_of("absent", "first", "sparse", "dense", "border", "all"),
            one_of("absent", "normal", "large"),
            scale=one_of(0, -8, 8),
            seed=seed,
        )
        made.append(recipe.build())
    return made


@dataclass
class Row:
    """A function and who rejected it, by inputs: the number of cases each judge rejected."""

    name: str
    honest: bool
    rejected: dict[str, dict[str, int]] = field(default_factory=dict)


def tried(name: str, function: Callable, of: list[tuple[Case, Reference]]) -> dict[str, int]:
    """How many cases each judge rejects; a function that raises, or breaks a rule, is rejected by all."""
    rejected = dict.fromkeys(JUDGES, 0)
    for case, reference in of:
        try:
            result = run(Subject(function, name), case)
        except (Misbehaviour, NoAnswer):
            result = None
        for title, verdict in JUDGES.items():
            rejected[title] += result is None or not verdict(case, result, reference)
    return rejected


def table(rows: list[Row], count: int) -> Table:
    """Caught wrong functions and accused honest ones, by judge and inputs."""
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), title=f"of {count} cases each; a function counts once")
    shown.add_column("judge", no_wrap=True)
    for inputs in INPUTS:
        shown.add_column(f"caught, {inputs}", justify="right")
        shown.add_column(f"falsely accused, {inputs}", justify="right")
    for title in JUDGES:
        cells = []
        for inputs in INPUTS:
            for honest in (False, True):
                alike = [row for row in rows if row.honest == honest]
                cells.append(f"{sum(row.rejected[inputs][title] > 0 for row in alike)} of {len(alike)}")
        shown.add_row(title, *cells)
    return shown


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0; 1 where the oracle accuses an honest function."""
    parser = argparse.ArgumentParser(prog="python -m properties.mutants.judges", description=main.__doc__)
    parser.add_argument("--cases", type=int, default=24, help="cases of each kind of inputs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write who rejected how many cases of whom")
    options = parser.parse_args(arguments)
    console = Console()
    functions = [(name, f, False) for name, f in WRONG.items()] + [(name, f, True) for name, f in HONEST.items()]
    drawn = {inputs: [(case, solve(case)) for case in cases(inputs, options.cases)] for inputs in INPUTS}
    rows = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        for name, function, honest in progress.track(functions, description="functions"):
            rows.append(Row(name, honest, {inputs: tried(name, function, drawn[inputs]) for inputs in INPUTS}))
    console.print(table(rows, options.cases))
    for row in rows:
        accusing = [title for title in JUDGES if row.honest and any(row.rejected[i][title] for i in INPUTS)]
        if accusing:
            console.print(f"{row.name} is honest, and accused by {', '.join(accusing)}", highlight=False)
    if options.json:
        document = {"cases": options.cases, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if any(row.honest and row.rejected[inputs]["oracle"] for row in rows for inputs in INPUTS) else 0


if __name__ == "__main__":
    sys.exit(main())
