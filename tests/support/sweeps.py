"""Sweeps built by hand: nets with the accuracy that a test chooses, without any process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from suite.plan.workloads import BUILT_IN
from suite.records.record import Environment
from suite.records.sweep import Grid, Setting, Sweep, Trained
from tests.support.measurements import COMMIT, MACHINE, VERSIONS

EPOCHS = 3
SMALL = ["--lrs", "0.1,0.2", "--lr-rules", "constant,linear", "--epochs", str(EPOCHS), "--seeds", "2"]
NETS = 2 * (2 + 3)  # of each seed: .1 and .2 on one device; .1, .2 and .4 on two

Reach = Callable[[Setting, int], float]


def grid(**changes: Any) -> Grid:
    """Two rates, all rules, one and two devices, two seeds; `changes` replace fields."""
    fields: dict[str, Any] = {
        "batches": (32,),
        "lrs": (0.1, 0.2),
        "rules": ("constant", "linear", "linear-warmup", "book"),
        "world_sizes": (1, 2),
        "seeds": 2,
    }
    return Grid.model_validate({**fields, **changes})


def net(setting: Setting, seed: int, reached: float = 0.9, **changes: Any) -> Trained:
    """A net that reaches `reached` in three equal steps; its first epoch takes five seconds and the others one."""
    fields = {
        **setting._asdict(),
        "seed": seed,
        "per_epoch": tuple(reached * (epoch + 1) / EPOCHS for epoch in range(EPOCHS)),
        "train_s": (5.0, 1.0, 1.0),
    }
    return Trained.model_validate({**fields, **changes})


def sweep(reach: Reach | None = None, **changes: Any) -> Sweep:
    """A sweep, complete where `reach` gives the accuracy of a net, otherwise without nets; `changes` replace fields."""
    fields: dict[str, Any] = {
        "trainer": "ddp",
        "workload": BUILT_IN["lenet"],
        "epochs": EPOCHS,
        "warmup_epochs": 2,
        "dataset": "digits",
        "train_samples": 1437,
        "test_samples": 360,
        "machine": MACHINE,
        "environment": Environment(versions=VERSIONS, commit=COMMIT, dirty=False),
        "grid": grid(),
        **changes,
    }
    if reach is not None:
        fields.setdefault("trained", tuple(net(*one, reach(*one)) for one in fields["grid"].wanted()))
    return Sweep(**fields)
