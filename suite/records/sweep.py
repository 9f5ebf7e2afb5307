"""What a sweep trains, batch x learning rate x world size by rule, and the file that keeps every net trained for it.

Weak scaling throughout: k devices take k times the batch (row 2-E1), and a rule says what becomes of the learning rate
(0-advice). On one device all rules agree, and two rules can come to the same rate from different ones: a net is named
by what it is trained with (`Setting`) and a seed, and trained once. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from reference.schedule import scale
from suite.plan.workloads import Workload
from suite.records.record import Environment, Machine, read_model

LINEAR_WARMUP = "linear-warmup"
RULES = ("constant", "linear", LINEAR_WARMUP, "book")
ONE_DEVICE = "-"  # in the place of a rule where there is nothing to scale

Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Setting(NamedTuple):
    """What a net is trained with.

    Attributes:
        world_size: devices.
        batch: samples a step over all of them.
        lr: the rate, after a warm-up where there is one.
        warmup: whether it climbs there from the one-device rate.
    """

    world_size: int
    batch: int
    lr: float
    warmup: bool


class Start(NamedTuple):
    """Batch and learning rate on one device, where every rule starts from."""

    batch: int
    lr: float


class Row(NamedTuple):
    """A rule applied to a start at a world size, and the setting it comes to."""

    start: Start
    rule: str
    setting: Setting


def scaled(rule: str, world_size: int, start: Start) -> Setting:
    """What a rule makes of a start on so many devices.

    Raises:
        ValueError: unknown rule, or a world size or batch below 1.
    """
    warmup = rule == LINEAR_WARMUP
    batch, lr = scale("weak", world_size, *start, lr_rule="linear" if warmup else rule)
    # Rounded, so that .1 x 1.5 and .15 are one rate and one training.
    return Setting(world_size, batch, float(f"{lr:.9g}"), warmup and world_size > 1)


class Grid(_Part):
    """What is asked for. `seeds` counts from 1."""

    batches: tuple[PositiveInt, ...] = Field(min_length=1)
    lrs: tuple[Rate, ...] = Field(min_length=1)
    rules: tuple[Literal["constant", "linear", "linear-warmup", "book"], ...] = Field(min_length=1)
    world_sizes: tuple[PositiveInt, ...] = Field(min_length=1)
    seeds: PositiveInt

    def rows(self) -> list[Row]:
        """Every rule at every start and world size; one row where there is one device."""
        return [
            Row(start, rule if world_size > 1 else ONE_DEVICE, scaled(rule, world_size, start))
            for start in (Start(batch, lr) for batch in self.batches for lr in self.lrs)
            for world_size in self.world_sizes
            for rule in (self.rules if world_size > 1 else self.rules[:1])
        ]

    def wanted(self) -> Iterator[tuple[Setting, int]]:
        """Every net with its seed, once; seed after seed, so that what is cut short has fewer seeds and no holes."""
        settings = list(dict.fromkeys(row.setting for row in self.rows()))
        return ((setting, seed) for seed in range(1, self.seeds + 1) for setting in settings)


class Trained(_Part):
    """One net: accuracy on the test set after every epoch, and seconds of training in it (the slowest rank's)."""

    world_size: PositiveInt
    batch: PositiveInt
    lr: Rate
    warmup: bool
    seed: PositiveInt
    per_epoch: tuple[Share, ...] = Field(min_length=1)
    train_s: tuple[Seconds, ...] = Field(min_length=1)
    oversubscribed: bool = False

    @property
    def setting(self) -> Setting:
        """What it was trained with."""
        return Setting(self.world_size, self.batch, self.lr, self.warmup)


class Failed(_Part):
    """A net that could not be trained, and why; it is tried again when the sweep goes on."""

    world_size: PositiveInt
    batch: PositiveInt
    lr: Rate
    warmup: bool
    seed: PositiveInt
    cause: str


class Sweep(_Part):
    """All nets of one trainer, workload, build and machine.

    Attributes:
        epochs: of every training.
        warmup_epochs: in which the rate climbs, under the rule that has it.
        grid: asked for last; `trained` may hold more.
    """

    schema_version: Literal[1] = 1
    trainer: str
    workload: Workload
    epochs: PositiveInt
    warmup_epochs: PositiveInt
    dataset: str
    train_samples: PositiveInt
    test_samples: PositiveInt
    machine: Machine
    environment: Environment
    grid: Grid
    trained: tuple[Trained, ...] = ()
    failed: tuple[Failed, ...] = ()

    @model_validator(mode="after")
    def _whole(self) -> Self:
        for net in self.trained:
            if not len(net.per_epoch) == len(net.train_s) == self.epochs:
                raise ValueError(f"a net of seed {net.seed} has {len(net.per_epoch)} of {self.epochs} epochs")
        return self

    def of(self, setting: Setting) -> dict[int, Trained]:
        """The nets of a setting, by seed, as far as the grid asks for them."""
        seeds = range(1, self.grid.seeds + 1)
        return {net.seed: net for net in self.trained if net.setting == setting and net.seed in seeds}

    def shown(self) -> list[Trained]:
        """The nets that the grid asks for; the file may have more."""
        wanted = set(self.grid.wanted())
        return [net for net in self.trained if (net.setting, net.seed) in wanted]

    def missing(self) -> list[tuple[Setting, int]]:
        """What the grid asks for and nobody has trained yet, in order."""
        there = {(net.setting, net.seed) for net in self.trained}
        return [one for one in self.grid.wanted() if one not in there]

    def after(self, epochs: int) -> Sweep:
        """The same nets after fewer epochs: nothing in a training depends on how many are to come."""
        cut = [
            net.model_copy(update={"per_epoch": net.per_epoch[:epochs], "train_s": net.train_s[:epochs]})
            for net in self.trained
        ]
        return self.model_copy(update={"epochs": epochs, "trained": tuple(cut)})

    def differences(self, other: Sweep) -> list[str]:
        """Why the nets of both must not stand in one figure, in words; none where only the grids differ."""
        own, others = _identity(self), _identity(other)
        return [f"{name} {own[name]} and not {others[name]}" for name in own if own[name] != others[name]]


def text(sweep: Sweep) -> str:
    """A sweep as its file has it."""
    return sweep.model_dump_json(indent=1) + "\n"


def read(path: Path) -> Sweep | None:
    """A sweep from its file; None where there is none yet.

    Raises:
        RecordError: it is not one, or not whole.
    """
    return read_model(path, Sweep) if path.exists() else None


def _identity(sweep: Sweep) -> dict[str, str]:
    """What decides what a training comes to, or how long it takes; a commit stands for the code of both sides."""
    versions = sorted(sweep.environment.versions.items())
    return {
        "trainer": sweep.trainer,
        "workload": f"{sweep.workload.name} ({sweep.workload.hash})",
        "epochs": str(sweep.epochs),
        "warm-up epochs": str(sweep.warmup_epochs),
        "data": f"{sweep.dataset} ({sweep.train_samples} + {sweep.test_samples})",
        "machine": f"{sweep.machine.key} ({sweep.machine.host})",
        "commit": sweep.environment.commit[:12],
        "versions": ", ".join(f"{name} {version}" for name, version in versions),
    }
