"""Checks a trainer on a user's own model and first minibatches: k devices against one, module by module."""

from __future__ import annotations

import shlex
import tempfile
from dataclasses import asdict
from pathlib import Path

from suite.checks.bench import Bench
from suite.plan.config import Config
from suite.plan.workloads import Workload
from suite.processes.jobs import ModelJob
from suite.properties.answers import SHARED_DRAWS, Judgement

TIMEOUT_S = 300.0  # for a model of any size; a hang ends with it
SEED = 0
RANDOM = (
    "one device alone computes something else with another seed, and k devices do not agree with it even on the random "
    "numbers that it draws for each sample: leave randomness out, by a factory without dropout in "
    "[tool.scaling.workloads.NAME.correctness] model, or a trainer that keeps eval mode"
)
# Options that say on what, and where the other options come from.
REPEATED = ("--config-file=", "--override-ini=", "--scaling-data-root=", "--scaling-devices=", "--scaling-world-sizes=")


def check(bench: Bench, trainer: str, workload: Workload, world_size: int, data_root: Path) -> Judgement:
    """Train a workload's model on one device and on k, and compare what its modules did.

    Args:
        bench: the worker processes.
        trainer: a table name, `module:Class` or `path.py:Class`.
        workload: whose model, dataset and rate are used; its `correctness` says how much of them.
        world_size: k.
        data_root: the folder of the datasets.

    Returns:
        Right or wrong, or a note on what could not be compared.

    Raises:
        suite.processes.failure.WorkerFailure: trainer, model or dataset raised, or there is too little memory.
    """
    about, gpus = bench.about(trainer), len(set(bench.devices.names))
    if bench.devices.kind != "cpu" and not about.shares_gpus and gpus < world_size:
        return Judgement(note=f"two of its ranks cannot share a GPU: not checked on {world_size} devices")
    with tempfile.TemporaryDirectory(dir=bench.pool.folder) as folder:

        def train(name: str, k: int, generator_seed: int = SEED, *, shares_draws: bool = False) -> list[str]:
            group, place = bench.place(trainer, k)
            job = ModelJob(
                **asdict(place),
                world_size=k,
                model=workload.correctness.model or workload.model,
                init=workload.init,
                dataset=workload.dataset,
                data_root=str(data_root),
                batch=min(workload.correctness.batch, workload.batch),
                steps=workload.correctness.steps,
                lr=workload.lr,
                seed=SEED,
                generator_seed=generator_seed,
                shares_draws=shares_draws,
                file=str(Path(folder) / name),
            )
            group.request(dict, "train_model", TIMEOUT_S, arm=job)
            return [f"{job.file}-{rank}" for rank in range(place.size)]

        def compare(alone: list[str], ranks: list[str]) -> Judgement:
            return bench.group(1, trainer).request_first(Judgement, "compare_models", alone=alone[0], ranks=ranks)

        alone = train("alone", 1)
        judgement = compare(alone, train("together", world_size))
        # Where one device alone is broken, both comparisons say the same.
        if judgement.finding:
            again = compare(alone, train("again", 1, SEED + 1000)).finding
            if again not in ("", judgement.finding):
                alone = train("alone", 1, shares_draws=True)
                if not compare(alone, train("together", world_size, shares_draws=True)).finding:
                    return Judgement(note=SHARED_DRAWS)
                return Judgement(f"{RANDOM} ({again})")
        return judgement


def explain(config: Config, trainer: str, workload: Workload, world_size: int, judgement: Judgement) -> str:
    """Return a failure as it is shown: what is wrong, what it looks like, and how to see it again.

    The command repeats what the run was told of items, devices and data. The world size is not named: two are the
    least even where only one device is there.
    """
    lines = [f"{trainer}, workload {workload.name!r}, {world_size} devices: {judgement.finding}"]
    lines += [f"  looks like: {suspect}" for suspect in judgement.suspects]
    where = ["--pyargs", "suite.checks"] if "--pyargs" in config.repeat else []
    told = [argument for argument in config.repeat if argument.startswith(REPEATED)]
    chosen = [f"--scaling-workload={workload.name}", f"--scaling-trainer={trainer}", "-k", "own_model"]
    command = ["pytest", *where, *config.repeat[:2], *told, *chosen]  # the first two are -m and its value
    return "\n".join([*lines, f"  see it again: {shlex.join(command)}"])
