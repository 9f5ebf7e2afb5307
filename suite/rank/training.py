"""Trains a workload's recipe to an accuracy, epoch by epoch (worker's side).

The controller asks for every epoch (`suite.run.learning`), so each accuracy reaches it at once, and a hang ends at the
deadline of one epoch.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch import distributed as dist

from reference import nest
from reference.calling import NoScores
from reference.data import Dataset, feed
from reference.evaluate import count_correct, count_labels, score_texts
from reference.loss import mean_loss
from reference.models.init import build
from reference.nest import Nest
from reference.per_device import synchronize
from reference.scatter import shard_bounds
from suite.processes.jobs import Epoch, Job, TrainingRecipe
from suite.properties import contract
from suite.rank.arm import PARTS, make_trainer, open_dataset
from suite.rank.timing import first_not_finite
from suite.room import accelerator


class Training:
    """The training of a fresh, seeded net by a recipe, one epoch a call."""

    def __init__(self, rank: int, devices: list[torch.device], job: Job, recipe: TrainingRecipe) -> None:
        """Build the net and its trainer; the recipe has what is not in the job."""
        self._shard = job.shard(rank)
        self._devices, self._job, self._recipe = devices, job, recipe
        trainer = contract.load_trainer(job.trainer)
        accelerator.seed(devices, job.seed + rank)
        model = build(job.workload.model, recipe.init, job.seed + rank)
        self._trainer = make_trainer(trainer, model, devices, recipe.lr, job.workload)
        whole = open_dataset(recipe.dataset, devices[0], accelerator.set_precision(job.workload.precision))
        self._dataset = _first(whole, recipe.samples)
        self._done = 0

    @property
    def finished(self) -> bool:
        """Whether all epochs of the recipe are done."""
        return self._done >= self._recipe.epochs

    def epoch(self, number: int) -> Epoch:
        """Train one epoch and evaluate; the last one closes the trainer. A ValueError where another epoch is next."""
        if number != self._done or self.finished:
            raise ValueError(
                f"epoch {number} was asked for after {self._done} of {self._recipe.epochs}: a net trains each epoch "
                "once and in order; epoch 0 begins with a fresh net"
            )
        for replica in self._trainer.replicas:
            replica.train()
        synchronize(self._devices)
        start = time.perf_counter()
        steps = self._train(number)
        synchronize(self._devices)
        train_s = time.perf_counter() - start
        samples = nest.samples(self._dataset.train_y)
        loss = mean_loss(steps, samples)
        not_finite = first_not_finite(self._trainer.replicas[0])
        test_X, test_y = self._dataset.test_X, self._dataset.test_y
        correct, nats, not_scored = _score(list(self._trainer.replicas), self._devices, test_X, test_y, self._shard)
        labels = max(1, count_labels(test_y))
        self._done += 1
        if self.finished:
            self.close()
        return Epoch(
            accuracy=correct / labels,
            train_s=train_s,
            train_samples=samples,
            test_samples=nest.samples(test_y),
            loss=loss,
            test_loss=None if nats is None else nats / labels,
            not_finite=not_finite,
            not_scored=not_scored,
        )

    def close(self) -> None:
        """Close the trainer, which ends its threads."""
        contract.close_trainer(self._trainer)

    def _train(self, epoch: int) -> list[tuple[Tensor | None, int]]:
        """Train an epoch; return each step's loss and divisor."""
        samples, batch = nest.samples(self._dataset.train_y), self._recipe.batch
        batches = feed(
            self._dataset,
            self._job.workload.loader,
            batch,
            world_size=self._shard["world_size"],
            rank=self._shard["rank"],
            device=self._devices[0],
            seed=self._job.seed,
            epoch=epoch,
            cpus=set(self._job.free_cores),
        )
        steps = []
        for number, (X, y) in enumerate(batches):
            divisor = min(batch, samples - number * batch)
            with accelerator.autocast(self._job.workload.precision, self._devices[0]):
                steps.append((self._trainer.step(X, y, divisor), divisor))
        return steps


def _first(dataset: Dataset, samples: int | None) -> Dataset:
    """Return the data set with at most so many samples in each part; all of them for None."""
    if samples is None:
        return dataset
    parts = {part: nest.take(getattr(dataset, part), slice(samples)) for part in PARTS}
    return dataclasses.replace(dataset, **parts)


def _score(
    replicas: list[nn.Module], devices: list[torch.device], X: Nest, y: Nest, shard: dict[str, int]
) -> tuple[int, float | None, str]:
    """Return how many test labels are predicted right, and of texts also the sum of their cross-entropy in nats.

    The third value says why the outputs on this rank have no accuracy; it is empty where they have one.
    Every label is counted once over all ranks. All replicas are evaluated with the buffers (BatchNorm's statistics) of
    rank 0's first one.
    """
    several = shard["world_size"] > 1
    mine = shard_bounds(nest.samples(y), **shard)
    X, y = nest.take(X, mine), nest.take(y, mine)
    if several:
        for buffer in replicas[0].buffers():
            dist.broadcast(buffer, src=0)
    scored: Sequence[float]
    texts, why_not = nest.labels(y).ndim > 1, ""
    try:
        scored = score_texts(replicas, devices, X, y) if texts else [count_correct(replicas, devices, X, y)]
    except NoScores as error:  # which a rank without samples does not see, and waits for the others
        scored, why_not = [0.0] * (2 if texts else 1), str(error)
    if several:
        totals = torch.tensor(scored, dtype=torch.float64, device=devices[0])
        dist.all_reduce(totals)
        scored = totals.tolist()
    return int(scored[0]), scored[1] if texts else None, why_not
