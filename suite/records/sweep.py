"""What a sweep trains, and the file with the nets that it trained. Pure.

Scaling is weak throughout: k devices take k times the batch of one (row 2-E1). Every rate is trained on every number of
devices, so whatever a rule makes of the rate (0-advice) is one of them, if it is in the grid.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from reference.schedule import LR_RULES, scale
from suite.plan.workloads import Workload
from suite.records.record import Environment, Machine
from suite.room.part import Part


class Setting(NamedTuple):
    """What a net is trained with; `batch` is samples a step over all devices."""

    world_size: int
    batch: int
    lr: float

    def __str__(self) -> str:
        return f"{self.world_size} device(s), batch {self.batch}, lr {self.lr:g}"


class Trained(Part):
    """One net: accuracy on the test set after every epoch, and seconds of training in it (the slowest rank's)."""

    setting: Setting
    seed: int
    per_epoch: tuple[float, ...]
    train_s: tuple[float, ...]
    oversubscribed: bool = False


class Sweep(Part):
    """All nets of one trainer, workload, build and machine."""

    schema_version: Literal[1] = 1
    trainer: str
    workload: Workload
    batches: tuple[int, ...]  # samples a step on one device
    lrs: tuple[float, ...]  # the same on every number of devices
    world_sizes: tuple[int, ...]
    seeds: int  # how many, from 1
    epochs: int
    dataset: str
    test_samples: int
    machine: Machine
    environment: Environment
    trained: tuple[Trained, ...] = ()
    failed: tuple[str, ...] = ()  # nets that could not be trained, each with its cause

    @property
    def settings(self) -> list[Setting]:
        """Every setting, by world size, batch and rate."""
        return [Setting(k, k * batch, lr) for k in self.world_sizes for batch in self.batches for lr in self.lrs]

    @property
    def missing(self) -> list[tuple[Setting, int]]:
        """The nets that are not trained, seed by seed, so that a sweep cut short has fewer seeds and no holes."""
        there = {(net.setting, net.seed) for net in self.trained}
        wanted = ((setting, seed) for seed in range(1, self.seeds + 1) for setting in self.settings)
        return [each for each in wanted if each not in there]

    def of(self, setting: Setting) -> list[Trained]:
        """Return the nets of a setting."""
        return [net for net in self.trained if net.setting == setting]

    def rules(self, setting: Setting) -> list[str]:
        """Return the rules that make its rate of the recipe's for one device."""
        recipe, k = self.workload.accuracy, setting.world_size
        if recipe is None or k == 1:
            return []
        # Rounded, so that 0.1 x 1.5 and 0.15 are one rate.
        return [rule for rule in LR_RULES if f"{scale('weak', k, 1, recipe.lr, rule)[1]:.9g}" == f"{setting.lr:.9g}"]
