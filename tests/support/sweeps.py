"""Sweeps built by hand: nets with the accuracy that a test chooses, without any process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from suite.plan.workloads import BUILT_IN
from suite.records.record import Environment
from suite.records.sweep import Setting, Sweep, Trained
from tests.support.measurements import COMMIT, MACHINE, VERSIONS

EPOCHS = 3
SMALL = ["--lrs", "0.1,0.2", "--epochs", str(EPOCHS), "--seeds", "2"]
NETS = 2 * 2 * 2  # rates, world sizes, seeds

Reach = Callable[[Setting, int], float]


def net(setting: Setting, seed: int, reached: float = 0.9, **changes: Any) -> Trained:
    """A net that reaches `reached` in three equal steps; its first epoch takes five seconds and the others one."""
    fields = {
        "setting": setting,
        "seed": seed,
        "per_epoch": tuple(reached * (epoch + 1) / EPOCHS for epoch in range(EPOCHS)),
        "train_s": (5.0, 1.0, 1.0),
    }
    return Trained.model_validate({**fields, **changes})


def sweep(reach: Reach | None = None, **changes: Any) -> Sweep:
    """A sweep of two rates on one and two devices by two seeds; complete where `reach` gives the accuracy of a net."""
    fields: dict[str, Any] = {
        "trainer": "ddp",
        "workload": BUILT_IN["lenet"],
        "batches": (32,),
        "lrs": (0.1, 0.2),
        "world_sizes": (1, 2),
        "seeds": 2,
        "epochs": EPOCHS,
        "dataset": "digits",
        "test_samples": 360,
        "machine": MACHINE,
        "environment": Environment(versions=VERSIONS, commit=COMMIT, dirty=False),
        **changes,
    }
    empty = Sweep(**fields)
    if reach is None:
        return empty
    return empty.model_copy(update={"trained": tuple(net(*one, reach(*one)) for one in empty.missing)})
