"""What a sweep trains, batch x learning rate x world size by rule, and the file with the nets that it trained.

Weak scaling throughout: k devices take k times the batch (row 2-E1), and a rule says what the learning rate becomes
(0-advice). On one device all rules agree, and two rules can come to the same rate from different ones: a net is
identified by what it is trained with (`Setting`) and a seed, and trained once. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from reference.schedule import scale
from suite.plan.workloads import Workload
from suite.records.record import Environment, Machine
from suite.room.part import Part

LINEAR_WARMUP = "linear-warmup"
RULES = ("constant", "linear", LINEAR_WARMUP, "book")
ONE_DEVICE = "-"  # instead of a rule's name where there is nothing to scale


class Setting(NamedTuple):
    """What a net is trained with.

    Attributes:
        batch: samples a step over all devices.
        warmup: whether the rate climbs to `lr` from that of one device.
    """

    world_size: int
    batch: int
    lr: float
    warmup: bool

    def __str__(self) -> str:
        climb = " after warm-up" if self.warmup else ""
        return f"{self.world_size} device(s), batch {self.batch}, lr {self.lr:g}{climb}"


class Start(NamedTuple):
    """Batch and learning rate on one device, which every rule starts from."""

    batch: int
    lr: float


class Row(NamedTuple):
    """A rule applied to a start at a world size, and the setting it comes to."""

    start: Start
    rule: str
    setting: Setting


def scaled(rule: str, world_size: int, start: Start) -> Setting:
    """Return what a rule makes of a start on this many devices.

    Raises:
        ValueError: unknown rule, or a world size or batch below 1.
    """
    warmup = rule == LINEAR_WARMUP
    batch, lr = scale("weak", world_size, *start, lr_rule="linear" if warmup else rule)
    # Rounded, so that .1 x 1.5 and .15 are one rate and one training.
    return Setting(world_size, batch, float(f"{lr:.9g}"), warmup and world_size > 1)


class Grid(Part):
    """What is asked for; seeds count from 1."""

    batches: tuple[int, ...]
    lrs: tuple[float, ...]
    rules: tuple[str, ...]
    world_sizes: tuple[int, ...]
    seeds: int

    def rows(self) -> list[Row]:
        """Return every rule at every start and world size; one row where there is one device."""
        return [
            Row(start, rule if world_size > 1 else ONE_DEVICE, scaled(rule, world_size, start))
            for start in (Start(batch, lr) for batch in self.batches for lr in self.lrs)
            for world_size in self.world_sizes
            for rule in (self.rules if world_size > 1 else self.rules[:1])
        ]

    def wanted(self) -> Iterator[tuple[Setting, int]]:
        """Yield every net with its seed, once; seed by seed, so that a sweep cut short has fewer seeds and no holes."""
        settings = list(dict.fromkeys(row.setting for row in self.rows()))
        return ((setting, seed) for seed in range(1, self.seeds + 1) for setting in settings)


class Trained(Part):
    """One net: accuracy on the test set after every epoch, and seconds of training in it (the slowest rank's)."""

    world_size: int
    batch: int
    lr: float
    warmup: bool
    seed: int
    per_epoch: tuple[float, ...]
    train_s: tuple[float, ...]
    oversubscribed: bool = False

    @property
    def setting(self) -> Setting:
        """What it is trained with."""
        return Setting(self.world_size, self.batch, self.lr, self.warmup)


class Sweep(Part):
    """All nets of one trainer, workload, build and machine.

    Attributes:
        epochs: of every training.
        warmup_epochs: in which the rate climbs, under the rule that has it.
        failed: the nets that could not be trained, each with its cause.
    """

    schema_version: Literal[1] = 1
    trainer: str
    workload: Workload
    epochs: int
    warmup_epochs: int
    dataset: str
    train_samples: int
    test_samples: int
    machine: Machine
    environment: Environment
    grid: Grid
    trained: tuple[Trained, ...] = ()
    failed: tuple[str, ...] = ()

    def of(self, setting: Setting) -> dict[int, Trained]:
        """Return the nets of a setting, by seed."""
        return {net.seed: net for net in self.trained if net.setting == setting}

    def missing(self) -> int:
        """Count the nets that the grid asks for and that are not trained."""
        return len(set(self.grid.wanted()) - {(net.setting, net.seed) for net in self.trained})

    def after(self, epochs: int) -> Sweep:
        """Return the same nets after fewer epochs: nothing in a training depends on how many are to come."""
        cut = [
            net.model_copy(update={"per_epoch": net.per_epoch[:epochs], "train_s": net.train_s[:epochs]})
            for net in self.trained
        ]
        return self.model_copy(update={"epochs": epochs, "trained": tuple(cut)})
