"""A campaign's worker: tries units of work in this process, and says a line of JSON for whatever comes of them."""

import json
import math
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from properties import device

EXAMPLES = 200
"""Examples of a unit: enough for Hypothesis to climb towards a ratio, and every clause gets its turn."""
FEWER_AT_FIRST = 4
"""The first round is so many times shorter, so that a short campaign sees every clause."""
WORDS = 0.5
"""Seconds between two counts."""


def main(request: dict) -> None:
    """Answer units, a line of JSON each on standard input, until it ends.

    Says {"what": "counted" | "failing" | "done", "test", "examples", "ratio", ...}; "done" has what was found, if
    anything: its kind, its file's name and the verdict.
    """
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a subject prints is no line of ours
    if request["device"] != "cpu":
        device.use_one_gpu(request["number"])
    device.choose(request["device"])
    import torch

    torch.set_num_threads(1)
    worker = _Worker(request, out)
    for line in sys.stdin:
        worker.work(json.loads(line))


class _Worker:
    def __init__(self, request: dict, out):
        from kernels.subjects import load

        self.subject = load(request["subject"])
        self.device, self.grade, self.folder = request["device"], request["grade"], Path(request["folder"])
        self.out = out

    def say(self, what: str, **fields) -> None:
        print(json.dumps({"what": what, **fields}), file=self.out)

    def work(self, unit: dict) -> None:
        from hypothesis import HealthCheck, Phase, settings

        from fuzz.campaign import kind_of
        from kernels.subjects.run import NoAnswer
        from properties.clauses import CONTRACT
        from properties.contract import Session, search
        from properties.trial import Trial

        clause = CONTRACT[unit["test"]]
        if not unit["always"]:
            clause = replace(clause, always=lambda scope: ())
        recorder = _counting(self, unit)

        def passed_over(error: BaseException) -> bool:
            recorder.repeated += (alike := kind_of(str(error)) in unit["known"])
            return alike

        profile = settings(
            max_examples=EXAMPLES // FEWER_AT_FIRST if unit["always"] else EXAMPLES,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.target),  # the reducer is quicker than the shrinker, and its case smaller
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        )
        trial = Trial(self.subject, self.device, self.grade)
        found: dict = {}
        try:
            search(clause, Session(trial, unit["seed"], recorder, passed_over=passed_over), profile)
        except (Exception, NoAnswer) as error:
            self.say("failing", **recorder.counts())
            kind = kind_of(str(error))
            found = {"clause": clause.number, "kind": kind, "file": "", "verdict": str(error)}
            if recorder.keep() is not None:
                if isinstance(error, AssertionError):
                    recorder.minimize(lambda text: kind_of(text) == kind)
                found["file"] = recorder.kept.name
        self.say("done", **recorder.counts(), **found)
        recorder.keep_worst()


def _counting(worker: _Worker, unit: dict):
    """A recorder that counts, and remembers the highest ratio of an example that held."""
    from fuzz.recorder import Recorder

    class Counting(Recorder):
        tried, ratio, repeated, worst = 0, 0.0, 0, None
        said = 0.0

        def begin(self, clause, trial, recipe, case, params):
            super().begin(clause, trial, recipe, case, params)
            self.trial = trial
            self.tried += 1
            if time.monotonic() - self.said > WORDS:
                worker.say("counted", **self.counts())

        def end(self):
            super().end()
            ratio = max(self.trial.ratios.values(), default=0.0)
            if math.isfinite(ratio) and ratio > max(self.ratio, unit["worst"]):
                self.worst = replace(self.current, verdict=f"holds, worst ratio {ratio:.3g}")
            self.ratio = max(self.ratio, ratio if math.isfinite(ratio) else 0.0)

        def failed(self, error):
            self.trial.ratios.clear()  # of what held only
            super().failed(error)

        def counts(self) -> dict:
            """What has happened since this was last asked."""
            counts = {"test": unit["test"], "examples": self.tried, "ratio": self.ratio, "repeated": self.repeated}
            self.tried, self.repeated, self.said = 0, 0, time.monotonic()
            return counts

        def keep_worst(self):
            """The case with the highest ratio, for whoever wants to know how near the bounds are."""
            if self.worst is not None:
                self.worst.write(self.folder / "worst" / f"{unit['test']}.json")

    return Counting(worker.folder)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
