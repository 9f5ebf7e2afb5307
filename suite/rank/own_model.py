"""Trains the first minibatches of a user's workload and writes what every module did (worker's side).

Records are files, because the outputs of all modules do not fit into a message.
"""

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
from suite.properties import compared, modules
from suite.properties.answers import Judgement
from suite.rank import kept
from suite.room import accelerator, errors

COPIES = 6  # of the parameters in a process: the model, the trainer's, gradients, before and after a step, recorded
SPARE = 20  # more steps on one device, while none has taught it anything: a warm-up, or a loss scale that is too large
REMEDY = "name a smaller model: [tool.scaling.workloads.NAME.correctness] model = 'module:factory', or a smaller batch"


class TooLarge(MemoryError):
    """A model does not fit as often as the check needs it."""


def train(trainer: type[Any], devices: Sequence[torch.device], job: ModelJob, rank: int) -> bool:
    """Train the workload's model in float64 and write the record of `suite.properties.modules.observe`.

    Returns:
        Whether a module of it was in training mode in a forward.

    Raises:
        TooLarge: there is not enough memory.
        Exception: what the trainer, the model's factory or the dataset's raises.
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
            record = modules.observe(trainer, devices, model, lesson, **place)
    except (MemoryError, RuntimeError) as error:
        said = errors.text_of(error)
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in said:
            raise TooLarge(f"{said.partition(chr(10))[0] or type(error).__name__}; {REMEDY}") from error
        raise
    kept.write(record, Path(f"{job.file}-{rank}"))
    return any(a_pass["training"] for step in record["steps"] for a_pass in step["passes"])


def compare(alone: str, ranks: Sequence[str]) -> Judgement:
    """Compare the records in these files, as `suite.properties.compared.judge` does."""
    records = [kept.read(Path(path)) for path in (alone, *ranks)]
    return compared.judge(records[0], records[1:])


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
