"""Commands: `python -m fuzz replay FILE`, `minimize FILE`, `keep FILE`; a campaign: `run`; a score: `mutants`."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from fuzz import run, score
from fuzz.kept import CASES, KeptError, read
from properties import command_line, device
from properties.command_line import FAILED, GRADES, HELD, NOTHING_JUDGED


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 the clause holds (or the file was kept), 1 it fails, 2 the options are wrong, 3 nothing was judged
    or it is not promised, 4 it cannot be run."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__, epilog=main.__doc__)
    commands = parser.add_subparsers(required=True)
    replay = commands.add_parser("replay", help="run the clause of a kept case once more")
    replay.add_argument("file", type=Path)
    replay.add_argument("--subject", help="default: the subject it was found on")
    replay.add_argument("--grade", choices=GRADES, help="default: the one it was found in, whatever the subject")
    replay.add_argument("--device", choices=("cpu", "cuda"), help="default: the device it was found on, if it is there")
    replay.set_defaults(run=_replay)
    smaller = commands.add_parser("minimize", help="put the smallest case that still fails in the place of a kept one")
    smaller.add_argument("file", type=Path)
    smaller.add_argument("--subject", help="default: the subject it was found on")
    smaller.add_argument(
        "--seconds", type=command_line.duration, default=20.0, help="how long to look for one; default: 20"
    )
    smaller.set_defaults(run=_minimize)
    keep = commands.add_parser("keep", help="move a found case to the committed corpus")
    keep.add_argument("file", type=Path)
    keep.set_defaults(run=_keep)
    campaign = commands.add_parser("run", help="try the whole contract on a subject for as long as you like")
    run.add_options(campaign)
    campaign.set_defaults(run=run.main)
    mutants = commands.add_parser("mutants", help="which wrong functions and patched kernels the contract convicts")
    score.add_options(mutants)
    mutants.set_defaults(run=score.main)
    options = parser.parse_args(arguments)
    return command_line.ended(lambda: options.run(options))


def _replay(options) -> int:
    kept = read(options.file)
    chosen = device.choose(options.device or (kept.device if device.available(kept.device) else "cpu"))
    from fuzz.replay import replay
    from kernels.subjects import load

    subject = command_line.subject(options.subject) if options.subject else load(kept.subject)
    outcome = replay(kept, subject=options.subject, grade=options.grade, device=chosen)
    print(f"clause {kept.clause}, {kept.test}")
    print(f"subject {subject.title}, {options.grade or kept.grade} grade, {chosen}")
    print(outcome.text)
    return NOTHING_JUDGED if not (outcome.promised and outcome.judged) else HELD if outcome.holds else FAILED


def _minimize(options) -> int:
    kept = read(options.file)
    chosen = device.choose(kept.device if device.available(kept.device) else "cpu")
    from fuzz.minimize import minimize_file
    from fuzz.recorder import command
    from fuzz.replay import replay
    from kernels.subjects import load

    subject = command_line.subject(options.subject) if options.subject else load(kept.subject)
    outcome = replay(kept, subject=options.subject, device=chosen)
    if outcome.holds or not outcome.judged:
        raise KeptError(f"{options.file} does not fail: {outcome.text}")
    now = replace(kept, subject=subject.name, device=chosen, verdict=outcome.text)
    path, smallest = minimize_file(options.file, now, subject, seconds=options.seconds)
    rows, steps, width = smallest.case.shape
    print(f"{rows} rows, {steps} steps, {width} channels{' as before' if smallest is now else ''}: {smallest.verdict}")
    print(command(path))
    return 0


def _keep(options) -> int:
    kept = read(options.file)
    target = kept.write(CASES / str(kept.clause) / kept.file_name)
    if not options.file.samefile(target):
        options.file.unlink()
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
