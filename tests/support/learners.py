"""Trainers that are watched while they learn, a small data set for them, and what a worker is told of both."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch import distributed as dist

from reference.trainers.ddp import DDPTrainer
from reference.trainers.fsdp import FSDPTrainer
from reference.trainers.single import Single
from suite.processes.jobs import Job, ModelSpec, Prepared, TrainingRecipe
from suite.rank.arm import prepare_dataset
from suite.room.quiet import available_cores

TRAIN, TEST = 192, 64

Pair = tuple[Tensor, Tensor]


def overlapping_blobs() -> tuple[Pair, Pair]:
    """Two overlapping classes, which no net separates without mistakes, so that accuracies differ."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(TRAIN + TEST) % 2
    X = torch.randn(TRAIN + TEST, 5, generator=generator) + 0.7 * (2 * y[:, None] - 1)
    return (X[:TRAIN], y[:TRAIN]), (X[TRAIN:], y[TRAIN:])


def spoilt_blobs() -> tuple[Pair, Pair]:
    """The blobs, of which one has a feature that is not a number."""
    train, test = overlapping_blobs()
    train[0][3, 2] = torch.nan
    return train, test


def prepared(folder: Path) -> Prepared:
    """The blobs, as `suite.rank.arm.prepare_dataset` writes them for workers."""
    return prepare_dataset("tests.support.learners:overlapping_blobs", "", str(folder / "blobs"))


UNUSED = Prepared(name="none", folder="", train_samples=0, test_samples=0)
"""For jobs whose training brings its own dataset."""


def job(trainer: str, world_size: int = 1, seed: int = 1, **workload: Any) -> Job:
    """A job that a worker gets; `workload` replaces fields of what it builds."""
    plain = ModelSpec(model="toy", loader="resident", precision="float32", memory_format="contiguous", compile=False)
    return Job(
        trainer=trainer,
        world_size=world_size,
        processes="one" if world_size == 1 else "per-device",
        backend="gloo",
        devices=("cpu",) * world_size,
        seed=seed,
        free_cores=tuple(available_cores()),
        workload=replace(plain, **workload),
        dataset=UNUSED,
        global_batch=32,
        lr=0.2,
    )


def recipe(dataset: Prepared, **changes: Any) -> TrainingRecipe:
    """A recipe of three epochs of six steps; `changes` replace fields."""
    return replace(TrainingRecipe(dataset=dataset, batch=32, lr=0.2, epochs=3, init="default"), **changes)


class Noted(Single):
    """Plain SGD that records every instance, the divisors of its steps, and how often it was closed."""

    made: ClassVar[list[Noted]] = []

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        self.divisors: list[int] = []
        self.closed = 0
        self.made.append(self)

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        self.divisors.append(global_batch_size)
        return super().step(X, y, global_batch_size)

    def close(self) -> None:
        self.closed += 1


class Silent(Single):
    """Plain SGD that returns no loss."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> None:  # type: ignore[override]
        super().step(X, y, global_batch_size)


class DivergesSilently(DDPTrainer):
    """Returns no loss, and its parameters are not numbers after a step."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> None:  # type: ignore[override]
        super().step(X, y, global_batch_size)
        with torch.no_grad():
            next(self.replicas[0].parameters()).fill_(torch.nan)


class LosesAShard(FSDPTrainer):
    """Returns no loss, and the last rank's part of the first parameter is infinite after a step."""

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> None:  # type: ignore[override]
        super().step(X, y, global_batch_size)
        if dist.get_rank() == dist.get_world_size() - 1:
            with torch.no_grad():
                next(self.replicas[0].parameters()).to_local().fill_(torch.inf)  # type: ignore[attr-defined]


class DiesInTheThirdEpoch(DDPTrainer):
    """Rank 1 is killed from outside in the thirteenth step."""

    steps = 0

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        self.steps += 1
        if self.steps == 13 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(X, y, global_batch_size)
