"""Tries mutants in this process and writes what happens, a line of JSON each, to its own standard output."""

import json
import os
import sys

from properties import device


def main(request: dict) -> None:
    """Try every seed on every mutant that the request names.

    Lines say {"what": "trying" | "kill" | "done", "name", "seed", "clause", "test", ...}; a mutant that takes the
    process down has its test in the last one.
    """
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a mutant prints is no line of ours

    def say(what: str, **fields) -> None:
        print(json.dumps({"what": what, **fields}), file=out)

    device.choose(request["device"])
    import torch

    torch.set_num_threads(1)
    from kernels.subjects import Subject
    from properties.mutants.kill import clauses, kill_by

    for name in request["names"]:
        if request["kind"] == "plain":
            from properties.mutants.plain import WRONG

            subject = Subject(WRONG[name], name)
        else:
            from properties.mutants.patch import patched
            from properties.mutants.patches import PATCHES

            subject = patched(PATCHES[name])
        for seed in range(request["seeds"]):
            found = 0
            for clause in clauses(subject, request["device"]):
                about = {"name": name, "seed": seed, "clause": clause.number, "test": clause.name}
                say("trying", **about)
                kill = kill_by(clause, subject, seed=seed, examples=request["examples"], device=request["device"])
                if kill is None:
                    continue
                found += 1
                least = _least(kill, subject, request) if request["minimize"] and found == 1 and seed == 0 else {}
                fields = {"examples": kill.examples, "seconds": kill.seconds, "text": _headline(kill.text)}
                say("kill", **about, **fields, **({"case": None, "least": None} | least))
                if request["first"]:
                    break
        say("done", name=name)


def _headline(text: str) -> str:
    lines = text.splitlines()
    return next((line for line in lines if "DEVIATES" in line), lines[0])


def _least(kill, subject, request: dict) -> dict:
    """[B, T, D] of the minimized case, and whether one of anything fewer passes."""
    from fuzz.minimize import Reducer

    if kill.case is None:
        return {}
    reducer = Reducer(kill.clause, subject, request["device"], "accurate")
    reduced = reducer.reduce((kill.case, kill.params))
    example = (kill.case, kill.params) if reduced is None else reduced[0]
    shape = list(example[1].get("size", example[0].shape))
    return {"case": shape, "least": not reducer.removable(example)}


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
