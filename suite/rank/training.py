"""Training for real, to an accuracy: a workload's recipe on a trainer, epoch by epoch (worker's side).

The controller asks for every epoch (`suite.run.learning`), so that the accuracy of each reaches it when it is there,
and so that a hang is noticed after one epoch's deadline and not after a whole training's.
"""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from reference.data import Dataset, feed
from reference.evaluate import count_correct
from reference.loss import mean_loss
from reference.models.init import build
from reference.scatter import shard_bounds
from reference.schedule import warmup
from suite.properties import contract
from suite.properties.contract import close_trainer
from suite.rank.arm import PARTS, make_trainer, open_dataset
from suite.rank.timing import synchronise


class Training:
    """A fresh, seeded net on its way through a recipe, asked for one epoch after the other."""

    def __init__(self, rank: int, devices: list[torch.device], arm: dict[str, Any], recipe: dict[str, Any]) -> None:
        """Build the net and its trainer.

        Args:
            rank: of this process.
            devices: those that this process drives.
            arm: as in `suite.rank.arm.TimedArm`; trainer, model, world size and seed are taken from it.
            recipe: {"dataset": as `suite.rank.arm.prepare_dataset` returned it, "batch", "lr", "epochs", "init",
                "samples": at most so many, or None}, and optionally "warmup": {"start": the rate to climb from,
                "epochs": until "lr" is reached}.

        Raises:
            suite.properties.contract.ContractError: a warm-up is asked of a trainer whose step is not plain SGD.
        """
        per_device = arm["processes"] == "per-device"
        self._shard = {"world_size": arm["world_size"], "rank": rank} if per_device else {"world_size": 1, "rank": 0}
        self._devices, self._arm, self._recipe = devices, arm, recipe
        trainer = contract.load_trainer(arm["trainer"])
        oracle = contract.describe(trainer)["oracle"]
        if recipe.get("warmup") and oracle != "sgd":
            raise contract.ContractError(
                f"trainer {arm['trainer']!r} has oracle {oracle!r}: a warm-up divides the gradient by more, which is a "
                "smaller rate for plain SGD alone (oracle 'sgd'); train it without"
            )
        torch.manual_seed(arm["seed"] + rank)
        model = build(arm["workload"]["model"], recipe["init"], arm["seed"] + rank)
        self._trainer = make_trainer(trainer, model, devices, recipe["lr"], arm["workload"])
        whole = open_dataset(recipe["dataset"], devices[0], arm["workload"]["precision"])
        self._dataset = _first(whole, recipe["samples"])
        self._done = 0

    @property
    def finished(self) -> bool:
        """Whether all epochs of the recipe are done."""
        return self._done >= int(self._recipe["epochs"])

    def epoch(self, number: int) -> dict[str, Any]:
        """Train one epoch and evaluate; the last one lets the trainer go.

        Args:
            number: from 0.

        Returns:
            {"accuracy": share of the test set, "loss": this rank's share of the mean training loss (None where its
            trainer returns none), "train_s": this rank's seconds of training, "train_samples", "test_samples"}.

        Raises:
            ValueError: it is not this epoch's turn.
        """
        if number != self._done or self.finished:
            raise ValueError(
                f"epoch {number} was asked for after {self._done} of {self._recipe['epochs']}: a net goes through its "
                "recipe in order and once; epoch 0 begins anew"
            )
        for replica in self._trainer.replicas:
            replica.train()
        synchronise(self._devices)
        start = time.perf_counter()
        steps = self._train(number)
        synchronise(self._devices)
        train_s = time.perf_counter() - start
        loss = mean_loss(steps, len(self._dataset.train_y))
        test_X, test_y = self._dataset.test_X, self._dataset.test_y
        correct = _count_correct(list(self._trainer.replicas), self._devices, test_X, test_y, self._shard)
        self._done += 1
        if self.finished:
            self.close()
        samples = {"train_samples": len(self._dataset.train_y), "test_samples": len(test_y)}
        return {"accuracy": correct / len(test_y), "loss": loss, "train_s": train_s, **samples}

    def close(self) -> None:
        """Let the trainer end its threads."""
        close_trainer(self._trainer)

    def _train(self, epoch: int) -> list[tuple[Tensor | None, int]]:
        """Train an epoch; return of every step what the trainer returned, and what it was told to divide by."""
        samples, batch = len(self._dataset.train_y), self._recipe["batch"]
        batches = feed(
            self._dataset,
            self._arm["workload"]["loader"],
            batch,
            **self._shard,
            device=self._devices[0],
            seed=self._arm["seed"],
            epoch=epoch,
            cpus=set(self._arm["free_cores"]),
        )
        first = epoch * math.ceil(samples / batch)
        steps = []
        for number, (X, y) in enumerate(batches):
            divisor = self._divisor(first + number, min(batch, samples - number * batch))
            steps.append((self._trainer.step(X, y, divisor), divisor))
        return steps

    def _divisor(self, step: int, size: int) -> int:
        """What a step's summed gradient is divided by: the samples of its minibatch, or more while the rate climbs.

        A trainer has one rate for life and p <- p - lr * sum / divisor, so dividing by twice as much is half the rate.
        It is a number of samples and therefore whole: off by less than half a sample.
        """
        climb = self._recipe.get("warmup")
        if not climb:
            return size
        steps = climb["epochs"] * math.ceil(len(self._dataset.train_y) / self._recipe["batch"])
        lr = float(self._recipe["lr"])
        return round(size * lr / warmup(lr, step, steps, start=float(climb["start"])))


def _first(dataset: Dataset, samples: int | None) -> Dataset:
    """The first samples of both parts, where a recipe was cut short."""
    if samples is None:
        return dataset
    parts = {part: getattr(dataset, part)[:samples] for part in PARTS}
    return dataclasses.replace(dataset, **parts)


def _count_correct(
    replicas: list[nn.Module], devices: list[torch.device], X: Tensor, y: Tensor, shard: dict[str, int]
) -> int:
    """How many of the test samples are classified right, every sample counted once over all ranks.

    Replicas that keep statistics of their own (BatchNorm) are evaluated with the first one's, as one net.
    """
    if shard["world_size"] == 1:
        return count_correct(replicas, devices, X, y)
    for buffer in replicas[0].buffers():
        dist.broadcast(buffer, src=0)
    mine = shard_bounds(len(y), **shard)
    correct = torch.tensor(count_correct(replicas, devices, X[mine], y[mine]), device=devices[0])
    dist.all_reduce(correct)
    return int(correct)
