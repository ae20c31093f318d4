"""`python -m kernels.bench.plot FILE.json ... PICTURE`: bandwidth against T, from what the benchmark wrote; no GPU."""

import argparse
import importlib.util
import json
import sys
from collections import defaultdict
from pathlib import Path

from kernels.bench.setting import KINDS

TITLES = {
    "inference": "forward under no_grad",
    "forward": "forward, saving what backward needs",
    "backward": "backward",
}
"""In the order of the panels."""
FORMATS = (".png", ".svg", ".pdf")
COLORS = ("#0072b2", "#d55e00", "#009e73", "#000000", "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito: told apart by everybody; on white. The markers say the same again."""
MARKERS = "osD^vPX"

Points = dict[tuple[int, str], dict[str, list[tuple[int, float]]]]


def check(picture: str):
    """Before anything is measured: whether `picture` can be drawn and written.

    Raises
    ------
    ValueError
        With the reason.
    """
    path = Path(picture)
    if path.suffix not in FORMATS:
        raise ValueError(f"--plot: a picture's name ends with {', '.join(FORMATS)}; got {picture!r}")
    if not path.resolve().parent.is_dir():
        raise ValueError(f"--plot: there is no folder for {picture!r}; make it first")
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError(
            "--plot needs matplotlib, which is not installed: give --json FILE instead, and where it is installed, "
            f"python -m kernels.bench.plot FILE {picture}"
        )


def points(runs: list[dict]) -> Points:
    """(T, % of copy) by (B D, kind) and line, in the order of T; only of what was right, and ranked.

    A line is a subject, with dtype and density of resets where the runs have several. Of two measurements of the same,
    the later one counts.
    """
    settings = [setting for run in runs for setting in run["settings"]]
    several = [len({setting[what] for setting in settings}) > 1 for what in ("dtype", "resets")]
    found: dict = defaultdict(lambda: defaultdict(dict))
    for setting in settings:
        batch, steps, width = setting["shape"]
        varying = [text for text, vary in zip(_protocol(setting), several, strict=True) if vary]
        for row in setting["rows"]:
            line = ", ".join([row["subject"], *varying])
            for kind in KINDS:
                percent = row["measurements"].get(kind, {}).get("percent_of_copy")
                if percent is not None:
                    found[batch * width, kind][line][steps] = percent
    return {panel: {line: sorted(at.items()) for line, at in lines.items()} for panel, lines in found.items()}


def caption(runs: list[dict]) -> str:
    """Device, protocol, date, commit and versions; and who is missing for being wrong."""
    settings = [setting for run in runs for setting in run["settings"]]
    copies = [setting["copy"]["gb_per_s"] for setting in settings]
    protocols = [", ".join(_protocol(setting)) for setting in settings]
    sources = [
        f"{run['date'][:10]}, commit {(run['versions']['commit'] or 'unknown')[:12]}"
        + ("-dirty" if (run["versions"]["commit"] or "").endswith("-dirty") else "")
        + f", torch {run['versions']['torch']}, triton {run['versions']['triton']}"
        for run in runs
    ]
    wrong = [row["subject"] for setting in settings for row in setting["rows"] if row["wrong"]]
    lines = [
        f"{_once(run['device']['name'] for run in runs)}; {_once(protocols)}",
        f"100 % is a device copy of the same run: {min(copies):.0f} to {max(copies):.0f} GB/s, by minimal bytes "
        "(4 arrays forward, 7 backward)",
        _once(sources),
    ]
    return "\n".join([*lines, f"not drawn where it is WRONG: {_once(wrong)}"] if wrong else lines)


def _protocol(setting: dict) -> tuple[str, str]:
    return setting["dtype"], "no resets" if setting["resets"] == "0" else f"resets {setting['resets']}"


def _once(texts) -> str:
    return "; ".join(dict.fromkeys(texts))


def draw(runs: list[dict], picture: str):
    """A panel for each B D and kind, a line for each subject, written to `picture`.

    Raises
    ------
    ValueError
        Where nothing in `runs` may be drawn.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    found = points(runs)
    if not found:
        raise ValueError("there is nothing to plot: no subject was timed and right")
    chains = sorted({chain for chain, _ in found})
    names = list(dict.fromkeys(line for panel in found.values() for line in panel))
    lengths = sorted({steps for panel in found.values() for line in panel.values() for steps, _ in line})
    highest = max(percent for panel in found.values() for line in panel.values() for _, percent in line)
    figure = Figure(figsize=(12, 1.9 + 2.6 * len(chains)), layout="constrained", facecolor="white")
    axes = figure.subplots(len(chains), len(TITLES), sharex=True, sharey=True, squeeze=False)
    styles = {
        name: {"color": COLORS[k % len(COLORS)], "marker": MARKERS[k % len(MARKERS)]} for k, name in enumerate(names)
    }
    handles = {}
    for chain, beside in zip(chains, axes, strict=True):
        for kind, axis in zip(TITLES, beside, strict=True):
            for name, line in found.get((chain, kind), {}).items():
                (handles[name],) = axis.plot(*zip(*line, strict=True), label=name, markersize=4, **styles[name])
            axis.set_xscale("log", base=2)
            axis.set_xticks(lengths, [_length(steps) for steps in lengths], rotation=45, minor=False)
            axis.set_ylim(0, max(100, 1.05 * highest))
            axis.grid(color="0.9")
            axis.set_axisbelow(True)
        beside[0].set_ylabel(f"B D = {chain:,}\n% of copy bandwidth")
    for kind, axis, below in zip(TITLES, axes[0], axes[-1], strict=True):
        axis.set_title(TITLES[kind])
        below.set_xlabel("T (steps)")
    figure.legend(handles=[handles[name] for name in names], loc="outside upper center", ncols=len(COLORS))
    figure.supxlabel(caption(runs), fontsize="small", color="0.3")
    with rc_context({"svg.fonttype": "none"}):  # letters, not their outlines
        figure.savefig(picture, dpi=150)


def _length(steps: int) -> str:
    return f"{steps // 1024}Ki" if steps % 1024 == 0 else str(steps)


def main(arguments: list[str] | None = None) -> int:
    """Draw bandwidth against T from what python -m kernels.bench --json wrote. Exit code: 0; 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m kernels.bench.plot", description=main.__doc__)
    parser.add_argument("json", nargs="+", metavar="FILE.json", help="what was measured, on one device or several")
    parser.add_argument("picture", metavar="PICTURE", help=f"ends with {', '.join(FORMATS)}")
    given = parser.parse_args(arguments)
    try:
        check(given.picture)
        draw([read(file) for file in given.json], given.picture)
    except ValueError as error:
        parser.error(str(error))
    return 0


def read(file: str) -> dict:
    """What the benchmark wrote to `file`.

    Raises
    ------
    ValueError
        Where that is something else.
    """
    try:
        run = json.loads(Path(file).read_text(encoding="utf-8"))
        if run["format"] == 1 and run["settings"]:
            return run
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{file} was not written by python -m kernels.bench --json ({error!r})") from error
    raise ValueError(f"{file} holds no settings of format 1; measure again with python -m kernels.bench --json {file}")


if __name__ == "__main__":
    sys.exit(main())
