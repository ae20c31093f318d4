"""A setting's rows as a table to read and as JSON."""

from kernels.bench.clock import Timing, bandwidth
from kernels.bench.measure import Measurement, Row
from kernels.bench.setting import KINDS, Setting

LABELS = {"forward": "forward", "inference": "no_grad", "backward": "backward"}
HEAD = ("subject", *(text for label in LABELS.values() for text in (f"{label} ms", "%")), "+MiB", "judged")
"""%: of the copy's bandwidth, by minimal bytes. +MiB: memory of forward beyond inputs and outputs. judged: the worst
error, as a part of its bound."""


def title(setting: Setting, copy: Timing, copied: int) -> str:
    """One line over a table."""
    return f"{setting}; % of a copy, {bandwidth(copy, copied):.0f} GB/s, by minimal bytes"


def lines(setting: Setting, rows: list[Row], copy: Timing, copied: int) -> tuple[list[list[str]], list[str]]:
    """(table of strings under `HEAD`, notes): right ones by time, then incomplete, wrong and absent ones.

    A cell without a number says "note", and a note says why.
    """
    table, notes = [], []
    whole = bandwidth(copy, copied)
    for row in sorted(rows, key=lambda row: row.order):
        cells = [row.name]
        for kind in KINDS:
            measurement = row.measurements.get(kind, Measurement(reason=row.reason))
            timing = measurement.timing
            if timing is None:
                cells += ["note", "-"]
                if measurement.reason != row.reason:
                    notes.append(f"{row.name}, {LABELS[kind]}: {measurement.reason}")
                continue
            share = f"{100 * bandwidth(timing, setting.bytes(kind)) / whole:.1f}" if row.ranked else "-"
            cells += [f"{timing.ms:.4g} ±{timing.spread:.1f}%", share]
            note = _method(timing)
            if note:
                notes.append(f"{row.name}, {LABELS[kind]}: {note}")
        if row.reason:
            notes.append(f"{row.name}: {row.reason}")
        if row.wrong:
            notes.append(f"{row.name} is WRONG and not ranked: {row.wrong}")
        notes += [f"{row.name}: {note}" for verdict in row.verdicts.values() for note in verdict.notes]
        extra = row.measurements.get("forward", Measurement()).extra_bytes
        cells.append("-" if extra is None else f"{extra / 2**20:.0f}")
        cells.append("WRONG" if row.wrong else f"right, {row.ratio:.2f}" if row.right else "-")
        table.append(cells)
    return table, notes


def _method(timing: Timing) -> str | None:
    parts = []
    if timing.method == "graph" and timing.as_called_ms is not None and timing.as_called_ms > 1.2 * timing.ms:
        parts.append(f"timed in a CUDA graph; called from Python {timing.as_called_ms:.4g} ms")
    if timing.method == "as called":
        parts.append("timed as called, what the host takes to launch included")
    if timing.note:
        parts.append(timing.note)
    return "; ".join(parts) or None


def show(heading: str, table: list[list[str]], notes: list[str]):
    """Print; on a terminal with rich, where it is installed."""
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        print(plain(heading, table, notes))
        return
    console = Console()
    if not console.is_terminal:
        print(plain(heading, table, notes))
        return
    drawn = Table(title=heading, box=box.SIMPLE_HEAD, padding=(0, 1))
    for name in HEAD:
        drawn.add_column(name, justify="left" if name in ("subject", "judged") else "right", no_wrap=True)
    for cells in table:
        drawn.add_row(*cells)
    console.print(drawn)
    for note in notes:
        console.print(note, highlight=False, markup=False, soft_wrap=True)


def plain(heading: str, table: list[list[str]], notes: list[str]) -> str:
    """The same as text."""
    widths = [max(len(cells[k]) for cells in [list(HEAD), *table]) for k in range(len(HEAD))]
    padded = ["  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) for cells in table]
    head = "  ".join(name.ljust(width) for name, width in zip(HEAD, widths, strict=True))
    return "\n".join(line.rstrip() for line in (heading, "", head, *padded, *notes, ""))


def as_json(setting: Setting, rows: list[Row], copy: Timing, copied: int, sets: int) -> dict:
    """Everything measured in one setting; a % of copy only where a row is ranked."""
    whole = bandwidth(copy, copied)
    return {
        "shape": list(setting.shape),
        "dtype": setting.dtype,
        "resets": str(setting.resets),
        "input_sets": sets,
        "copy": {**_timing(copy), "bytes": copied, "gb_per_s": whole},
        "rows": [_row(row, setting, whole) for row in sorted(rows, key=lambda row: row.order)],
    }


def _row(row: Row, setting: Setting, whole: float) -> dict:
    measurements = {}
    for kind, measurement in row.measurements.items():
        entry: dict = {"bytes": setting.bytes(kind)}
        if measurement.timing:
            speed = bandwidth(measurement.timing, setting.bytes(kind))
            entry |= {
                **_timing(measurement.timing),
                "gb_per_s": speed,
                "percent_of_copy": 100 * speed / whole if row.ranked else None,
                "extra_bytes": measurement.extra_bytes,
            }
        else:
            entry["reason"] = measurement.reason
        measurements[kind] = entry
    return {
        "subject": row.name,
        "versions": row.versions,
        "grade": row.grade,
        "profile": row.profile,
        "ranked": row.ranked,
        "reason": row.reason,
        "failed": row.failed,
        "wrong": row.wrong,
        "verdicts": {name: _verdict(verdict) for name, verdict in row.verdicts.items()},
        "measurements": measurements,
    }


def _timing(timing: Timing) -> dict:
    return {
        "ms": timing.ms,
        "spread_percent": timing.spread,
        "method": timing.method,
        "as_called_ms": timing.as_called_ms,
        "note": timing.note,
        "samples_ms": [float(f"{sample:.6g}") for sample in timing.samples],
    }


def _verdict(verdict) -> dict:
    return {
        "holds": verdict.holds,
        "notes": list(verdict.notes),
        "outputs": {
            output.name: {
                "elements": output.elements,
                "failed": output.failed,
                "unjudged": output.unjudged,
                "ratio": output.ratio if output.ratio < float("inf") else "infinite",
                "worst": output.worst,
            }
            for output in verdict.outputs
        },
    }
