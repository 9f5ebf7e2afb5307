"""Trains the first minibatches of a user's workload and records what every module did (worker's side)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from reference import nest
from reference.data import feed
from reference.data import load as load_dataset
from reference.models.init import build
from suite.processes.jobs import ModelJob
from suite.properties import modules
from suite.room import accelerator, errors

COPIES = 6  # of the parameters in a process: the model, the trainer's, gradients, before and after a step, recorded
SPARE = 20  # more steps on one device, while none has taught it anything: a warm-up, or a loss scale that is too large
REMEDY = "name a smaller model: [tool.scaling.workloads.NAME.correctness] model = 'module:factory', or a smaller batch"


class TooLarge(MemoryError):
    """A model does not fit as often as the check needs it."""


def train(trainer: type[Any], devices: Sequence[torch.device], job: ModelJob, rank: int) -> modules.Record:
    """Train the workload's model in float64; return the record of `suite.properties.modules.observe`.

    Raises:
        TooLarge: there is not enough memory.
    """
    accelerator.make_exact(devices)
    model = build(job.model, job.init, job.seed + rank)
    _require_memory(model, job)
    dataset = load_dataset(job.dataset, Path(job.data_root))
    batch = min(job.batch, nest.samples(dataset.train_y))
    alone = job.world_size == 1
    batches = itertools.islice(feed(dataset, "resident", batch, seed=job.seed), job.steps + SPARE * alone)
    drawn = [nest.move(pair, "cpu", torch.float64) for pair in batches]
    accelerator.seed(devices, job.generator_seed + rank)
    place = {"rank": rank, "world_size": job.world_size if job.processes == "per-device" else 1}
    draws_from = job.generator_seed if job.shares_draws else None
    lesson = modules.Lesson(drawn[: job.steps], job.lr, draws_from, spare=drawn[job.steps :])
    try:
        with modules.comparable(model.double(), everything=job.stays_in_eval):
            return modules.observe(trainer, devices, model, lesson, **place)
    except (MemoryError, RuntimeError) as error:
        said = errors.text_of(error)
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in said:
            raise TooLarge(f"{said.partition(chr(10))[0] or type(error).__name__}; {REMEDY}") from error
        raise


def _require_memory(model: nn.Module, job: ModelJob) -> None:
    """Refuse a model that the processes of this machine cannot hold as often as they need it; CPUs only."""
    import psutil  # only here: a base's interpreter may lack it, and workers of a base load this module

    if job.devices[0] != "cpu":
        return
    values = sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    needed, free = values * 8 * COPIES * job.world_size, psutil.virtual_memory().available
    if needed > free:
        raise TooLarge(
            f"{job.model!r} has {values / 1e6:,.0f} million values: {job.world_size} of it in float64, {COPIES} times "
            f"over, take {needed / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free; {REMEDY}"
        )
