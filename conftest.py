"""Wires pytest: options, Hypothesis profiles, workers to GPUs, subjects to clauses, recording, exit codes."""

import contextlib
import random
import time
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, settings

from properties import command_line, device
from properties.command_line import GRADES, NOTHING_JUDGED, WrongUsage
from properties.profiles import PROFILES

DEVICE = pytest.StashKey[str]()
SEED = pytest.StashKey[int]()
SUBJECTS = pytest.StashKey[dict]()

for name, examples in PROFILES.items():
    settings.register_profile(
        name,
        max_examples=examples,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=set(Phase) - {Phase.explain},
        report_multiple_bugs=False,
        print_blob=False,
    )


def pytest_addoption(parser):
    group = parser.getgroup("rglru", "RG-LRU conformance")
    group.addoption(
        "--subject",
        action="append",
        default=[],
        help="what to judge: a built-in name, FILE.py:FUNCTION, MODULE:FUNCTION or an entry point; repeatable",
    )
    group.addoption("--grade", choices=GRADES, help="accurate or canonical; default: each subject's own")
    group.addoption("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    group.addoption("--clauses", help="only these clauses of the contract, as in 1,2,13")
    group.addoption("--profile", choices=tuple(PROFILES), default="default", help="how many examples a clause gets")
    group.addoption("--examples", type=int, help="how many examples, instead of the profile's")
    group.addoption("--slow", action="store_true", help="also the suite's own slow tests, as tox and CI do")
    group.addoption("--require-device", action="store_true", help="fail without a CUDA device or when a GPU test skips")


def pytest_configure(config):
    worker = hasattr(config, "workerinput")
    if worker:
        device.use_one_gpu(int(config.workerinput["workerid"].removeprefix("gw")))
    try:
        config.stash[DEVICE] = device.choose(config.getoption("device"))
        if config.getoption("require_device") and config.stash[DEVICE] != "cuda":
            raise ValueError("--require-device: PyTorch sees no CUDA device")
        config.stash[SUBJECTS] = _load_subjects(config)
        config.stash[SEED] = _seed(config)
        _wanted_clauses(config)
        if config.getoption("examples") is not None and config.getoption("examples") < 1:
            raise ValueError(f"--examples must be at least 1; got {config.getoption('examples')}")
    except (WrongUsage, ValueError, RuntimeError) as error:
        raise pytest.UsageError(str(error)) from error
    examples = config.getoption("examples")
    if examples is None:
        settings.load_profile(config.getoption("profile"))
    else:
        settings.register_profile("given", settings.get_profile(config.getoption("profile")), max_examples=examples)
        settings.load_profile("given")
    if worker:
        import torch

        torch.set_num_threads(1)
    else:
        config.pluginmanager.register(Tally(config))


def _load_subjects(config) -> dict:
    from kernels.subjects import PRODUCTION

    return {name: command_line.subject(name) for name in config.getoption("subject") or PRODUCTION}


def _seed(config) -> int:
    """The seed of the run: given, handed down to a worker, or drawn."""
    inherited = getattr(config, "workerinput", {}).get("rglru_seed")
    given = config.getoption("hypothesis_seed", None)
    if inherited is not None:
        return inherited
    if given and not given.isdigit():
        raise ValueError(f"--hypothesis-seed must be a whole number; got {given!r}")
    return int(given) if given else random.SystemRandom().randrange(2**32)


def _wanted_clauses(config) -> list[int] | None:
    given = config.getoption("clauses")
    try:
        return None if given is None else command_line.clauses(given)
    except WrongUsage as error:
        raise WrongUsage(f"--clauses {error}") from None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """xdist: the same seed in every worker."""
    node.workerinput["rglru_seed"] = node.config.stash[SEED]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """As many workers as cores, but no more than keep the GPUs busy; who is done takes from the others.

    Tests take from a millisecond to a minute: dealt out beforehand, one worker waits minutes for another.
    """
    if config.option.dist == "no":
        config.option.dist = "worksteal"
    return device.workers(config.getoption("device") or "cuda")


def pytest_report_header(config):
    subjects = ", ".join(subject.title for subject in config.stash[SUBJECTS].values())
    return (
        f"rglru: device {config.stash[DEVICE]}, profile {config.getoption('profile')}, subjects "
        f"{subjects}; the same examples again: --hypothesis-seed={config.stash[SEED]}"
    )


def pytest_generate_tests(metafunc):
    if "session" in metafunc.fixturenames:
        metafunc.parametrize("session", list(metafunc.config.stash[SUBJECTS]), indirect=True)


@pytest.fixture
def session(request):
    """A clause's session: the subject of this parameter on the run's device, recorded."""
    from fuzz.kept import found_on
    from fuzz.recorder import Recorder
    from properties.contract import Session
    from properties.trial import Trial

    config = request.config
    subject = config.stash[SUBJECTS][request.param]
    trial = Trial(subject, config.stash[DEVICE], config.getoption("grade") or subject.grade)
    clause = request.node.get_closest_marker("clause").args[0]
    kept = found_on(subject.name, clause, request.node.originalname)
    known = tuple((k.recipe, k.case, k.params) for k in kept if trial.unpromised(k.case) is None)
    session = Session(trial, config.stash[SEED], Recorder(), known)
    yield session
    report = {"clause": clause, "subject": subject.name, "grade": trial.grade, **session.report}
    request.node.user_properties += [(name, value) for name, value in report.items() if value is not None]


def pytest_collection_modifyitems(config, items):
    wanted = _wanted_clauses(config)
    kept, dropped = [], []
    for item in items:
        mark = item.get_closest_marker("clause")
        if mark is None:
            slow = item.get_closest_marker("slow") is not None and not config.getoption("slow")
            keep = not slow and not config.getoption("subject") and wanted is None
        else:
            keep = wanted is None or mark.args[0] in wanted
            _expect_known_deviation(config, item)
        (kept if keep else dropped).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def _expect_known_deviation(config, item):
    subject = config.stash[SUBJECTS][item.callspec.params["session"]]
    for deviation in subject.deviations:
        if deviation.test == item.originalname:
            item.user_properties.append(("known", deviation.reason))
            item.add_marker(pytest.mark.xfail(reason=deviation.reason, strict=True))


class Tally:
    """Counts what became of the clauses, in the process that reports; decides the exit code where pytest cannot."""

    def __init__(self, config):
        self.config = config
        self.outcomes: Counter = Counter()
        self.not_promised: Counter = Counter()
        self.skipped_on_device = False
        self.start = time.time()

    def pytest_runtest_logreport(self, report):
        if report.skipped and not hasattr(report, "wasxfail") and "gpu" in report.keywords:
            self.skipped_on_device = True
        if "clause" not in report.keywords or (report.when != "call" and report.passed):
            return
        if report.skipped and not hasattr(report, "wasxfail"):
            self.outcomes["not promised"] += 1
            self.not_promised[str(report.longrepr[2]).removeprefix("Skipped: not promised: ")] += 1
        elif hasattr(report, "wasxfail"):
            self.outcomes["known to deviate"] += 1
        else:
            self.outcomes["held" if report.passed else "failed"] += 1

    def pytest_sessionfinish(self, session, exitstatus):
        if self._judged_nothing(exitstatus):
            session.exitstatus = NOTHING_JUDGED
        if self.config.getoption("require_device") and self.skipped_on_device and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _judged_nothing(self, exitstatus) -> bool:
        """Whether a run that was to judge ended without a failure and without a verdict."""
        asked = self.config.getoption("subject") or self.config.getoption("clauses") or self.outcomes
        ended = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED, NOTHING_JUDGED)
        return bool(asked) and ended and self.outcomes.total() == self.outcomes["not promised"]

    def pytest_terminal_summary(self, terminalreporter, exitstatus):
        from fuzz.kept import FOUND, abandoned
        from fuzz.recorder import command

        for path in sorted(FOUND.glob("running-*.json")):
            with contextlib.suppress(FileNotFoundError):  # another run may remove its own at any time
                if path.stat().st_mtime >= self.start and abandoned(path):
                    terminalreporter.write_line(f"left behind by a process that died: {command(path)}")
        if self.outcomes:
            counts = ", ".join(
                f"{self.outcomes[k]} {k}"
                for k in ("held", "failed", "known to deviate", "not promised")
                if self.outcomes[k]
            )
            reasons = ", ".join(sorted(self.not_promised))
            terminalreporter.write_line(f"clauses: {counts}" + (f" ({reasons})" if reasons else ""))
        if self._judged_nothing(exitstatus):
            terminalreporter.write_line("nothing was judged: that is no success")
        if terminalreporter.no_header or not terminalreporter.showheader:
            for subject in self.config.stash[SUBJECTS].values():
                if subject.title != subject.name:  # what it was made of is part of what is said of it
                    terminalreporter.write_line(subject.title)
