"""What every command shares: the codes it ends with, and how options are read. Imports nothing that imports Triton."""

import argparse
import math
import sys
from collections.abc import Callable

HELD = 0
"""All that was promised was judged and holds, or what was asked for is done."""
FAILED = 1
"""Something failed, was found or survived."""
USAGE = 2
"""The options are wrong: one that there is not, an unknown subject, clause or mutant, a number out of range.

argparse's code. Under pytest it is `pytest.ExitCode.USAGE_ERROR`, 4, which is what pytest says of its own options; its
2 is an interrupt."""
NOTHING_JUDGED = 3
"""Nothing ran, or nothing of what ran was judged: no success."""
CANNOT_RUN = 4
"""The options are right, and what they ask for is not here, damaged, or broke off: a package, a device, a file."""

GRADES = ("accurate", "canonical")
CLAUSES = range(1, 16)
"""Numbers of the contract's clauses."""


class WrongUsage(argparse.ArgumentTypeError):
    """Options that are wrong, with the rule and what was given; argparse shows it as its own."""


def clauses(text: str) -> list[int]:
    """Numbers of clauses, as in 1,2,13, in ascending order."""
    try:
        numbers = {int(number) for number in text.split(",")}
    except ValueError:
        raise WrongUsage(f"must be numbers of clauses, as in 1,2,13; got {text!r}") from None
    unknown = sorted(numbers - set(CLAUSES))
    if unknown:
        raise WrongUsage(f"must be among {CLAUSES[0]} to {CLAUSES[-1]}; got {', '.join(map(str, unknown))}")
    return sorted(numbers)


def count(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise WrongUsage(f"must be a whole number of at least 1; got {text!r}")
    return int(text)


def duration(text: str) -> float:
    """A positive and finite number, of seconds or minutes."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise WrongUsage(f"must be a positive number; got {text!r}")
    return value


def subject(name: str):
    """The subject that an option names; `device.choose` must have run.

    Raises
    ------
    WrongUsage
        Where no subject is found by that name.
    kernels.subjects.Unavailable
        Where it is built in and its package or checkout is not here.
    """
    from kernels.subjects import SubjectError, Unavailable, load

    try:
        return load(name)
    except Unavailable:
        raise
    except SubjectError as error:
        raise WrongUsage(f"--subject: {error}") from error


def ended(command: Callable[[], int]) -> int:
    """The code of a command, which ends with one sentence where it cannot go on."""
    try:
        return command()
    except WrongUsage as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE
    except (ValueError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return CANNOT_RUN
