"""Records of first runs, and what the first screen of an output says of a record."""

from __future__ import annotations

from suite.records.record import Record
from suite.render import lead
from tests.support import records

TYPED = ["-m", "scaling", "--scaling-world-sizes=1,2"]


def cells_of(world_sizes: str, mode: str = "strong", trainer: str = "ddp") -> str:
    """Return the options that choose these cells of `lenet`."""
    chosen = f"--scaling-trainer={trainer} --scaling-workload=lenet --scaling-mode={mode}"
    return f"{chosen} --scaling-world-sizes={world_sizes}"


def first_run(**changes: object) -> Record:
    """Return a run of twelve cells with nothing to compare with, two of them with a cause."""
    cells = records.matrix(trainers=("scratch", "data_parallel", "ddp"), outcome="NO BASELINE", accuracy=0.97)
    cells[1]["waterfalls"] = [records.waterfall()]
    cells[3]["waterfalls"] = [records.waterfall(exchange=0.0112)]
    cells[5]["waterfalls"] = [unsure()]
    nets = [
        records.accuracy(trainer=trainer, mode=mode, world_size=k)
        for trainer in ("scratch", "data_parallel", "ddp")
        for mode, k in (("strong", 1), ("strong", 2), ("weak", 2))
    ]
    return records.make(**({"cells": cells, "accuracies": nets, "repeat": TYPED} | changes))


def unsure() -> dict[str, object]:
    """Return a waterfall whose intervals support no cause."""
    fall = records.waterfall()
    for bar in fall["bars"]:
        bar["step_s"] = records.interval(bar["step_s"]["estimate"], 5.0)
    return fall


def facts(record: Record) -> dict[str, str]:
    return {fact.name: "\n".join(fact.lines) for fact in lead.facts(record)}


def steps(record: Record) -> dict[str, str]:
    return {step.what: step.command for step in lead.steps(record)}
