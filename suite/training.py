"""Training for real, to an accuracy: a workload's recipe on a trainer, epoch by epoch (worker's side)."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from reference.data import Dataset, feed
from reference.evaluate import count_correct
from reference.models.init import build
from reference.scatter import shard_bounds
from suite import contract
from suite.arm import PARTS, close_trainer, make_trainer, open_dataset
from suite.timing import synchronise


def train(rank: int, devices: list[torch.device], arm: dict[str, Any], recipe: dict[str, Any]) -> dict[str, Any]:
    """Train a fresh, seeded net by `recipe` and evaluate it after every epoch.

    Args:
        rank: of this process.
        devices: those that this process drives.
        arm: as in `suite.arm.TimedArm`; trainer, model, world size and seed are taken from it.
        recipe: {"dataset": as `suite.arm.prepare_dataset` returned it, "batch", "lr", "epochs", "init", "samples": at
            most so many, or None}.

    Returns:
        {"epochs": [{"accuracy": share of the test set, "train_s": seconds of training}], "train_samples",
        "test_samples"}.
    """
    per_device = arm["processes"] == "per-device"
    shard = {"world_size": arm["world_size"], "rank": rank} if per_device else {"world_size": 1, "rank": 0}
    torch.manual_seed(arm["seed"] + rank)
    model = build(arm["workload"]["model"], recipe["init"], arm["seed"] + rank)
    trainer = make_trainer(contract.load_trainer(arm["trainer"]), model, devices, recipe["lr"], arm["workload"])
    whole = open_dataset(recipe["dataset"], devices[0], arm["workload"]["precision"])
    dataset = _first(whole, recipe["samples"])
    samples = len(dataset.train_y)
    epochs = []
    for epoch in range(recipe["epochs"]):
        for replica in trainer.replicas:
            replica.train()
        synchronise(devices)
        start = time.perf_counter()
        batches = feed(
            dataset,
            arm["workload"]["loader"],
            recipe["batch"],
            **shard,
            device=devices[0],
            seed=arm["seed"],
            epoch=epoch,
            cpus=set(arm["free_cores"]),
        )
        for number, (X, y) in enumerate(batches):
            trainer.step(X, y, min(recipe["batch"], samples - number * recipe["batch"]))
        synchronise(devices)
        train_s = time.perf_counter() - start
        correct = _count_correct(list(trainer.replicas), devices, dataset.test_X, dataset.test_y, shard)
        epochs.append({"accuracy": correct / len(dataset.test_y), "train_s": train_s})
    close_trainer(trainer)
    return {"epochs": epochs, "train_samples": samples, "test_samples": len(dataset.test_y)}


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

    Replicas that keep statistics of their own (BatchNorm) are evaluated with rank 0's, as one net.
    """
    if shard["world_size"] == 1:
        return count_correct(replicas, devices, X, y)
    for buffer in replicas[0].buffers():
        dist.broadcast(buffer, src=0)
    mine = shard_bounds(len(y), **shard)
    correct = torch.tensor(count_correct(replicas, devices, X[mine], y[mine]), device=devices[0])
    dist.all_reduce(correct)
    return int(correct)
