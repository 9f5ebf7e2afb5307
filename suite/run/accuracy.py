"""Accuracy: nets trained on one device and on k from the same seeds, and whether k lose any (controller's side).

Each pair is a fresh net from one seed, trained by the workload's recipe with the first session's workers when their
timing is over. The quick profile trains one pair, which is shown and judged only if it looks like a loss: then, as
ever in the full profile, all pairs of the recipe are trained, and all of them are judged.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from suite import record
from suite.cells import Arm, Cell, short
from suite.run import learning
from suite.run.measurement import Measurement
from suite.run.session import Crew, Say, Sessions
from suite.verdict import Outcome
from suite.verdict.accuracy import noninferiority
from suite.workloads import Recipe

SEED = 1  # of the first pair, and of the weights and the order of samples in everything that is timed


class Trained(NamedTuple):
    """What is trained: the same in both modes. With a world size above one it names the pair of one device and k."""

    trainer: str
    workload: str
    world_size: int


def wanted_pairs(run: Measurement) -> list[Trained]:
    """One for each trainer, workload and world size above one; none beside a base, where the budget is for time."""
    if run.config.against is not None:
        return []
    every = (Trained(cell.trainer, cell.workload, cell.world_size) for cell in run.cells if cell.world_size > 1)
    return list(dict.fromkeys(pair for pair in every if run.workload(pair.workload).accuracy is not None))


def training(run: Measurement, sessions: Sessions, say: Say) -> Callable[[Crew], None]:
    """What is done with the first session's workers once they are timed."""

    def train(crew: Crew) -> None:
        start = time.monotonic()
        done: set[tuple[Trained, int]] = set()

        def ensure(seed: int, *wanted: Trained) -> None:
            for one in wanted:
                if (one, seed) not in done:
                    done.add((one, seed))
                    _train(run, sessions, crew, one, seed, say)

        for pair in wanted_pairs(run):
            recipe, sides = run.workload(pair.workload).accuracy, (pair._replace(world_size=1), pair)
            assert recipe is not None
            ensure(SEED, *sides)
            if run.config.profile == "full" or judged(run, pair, 1).outcome is Outcome.FAIL:
                for seed in range(SEED + 1, SEED + recipe.seed_pairs):
                    ensure(seed, *sides)
        ensure(SEED, *(Trained(cell.trainer, cell.workload, cell.world_size) for cell in run.cells))
        run.training_s = time.monotonic() - start

    return train


def judged(run: Measurement, pair: Trained, comparisons: int) -> record.CheckRecord:
    """What the seed pairs trained so far say; it counts from as many as the recipe asks, or if it is a FAIL."""
    recipe = run.workload(pair.workload).accuracy
    assert recipe is not None
    many = _by_seed(run, pair)
    alone = _by_seed(run, pair._replace(world_size=1))
    both = [seed for seed in alone if seed in many]
    found = noninferiority(
        [(alone[seed].per_epoch[-1], many[seed].per_epoch[-1]) for seed in both],
        margin=recipe.margin,
        comparisons=comparisons,
        test_samples=many[both[0]].test_samples if both else None,
    )
    return record.CheckRecord(
        rule="accuracy",
        against="1 device",
        outcome=found.outcome,
        reason=found.reason,
        counts=found.outcome is Outcome.FAIL or len(both) >= recipe.seed_pairs,
    )


def checks(run: Measurement, cell: Cell, comparisons: int) -> tuple[record.CheckRecord, ...]:
    """The accuracy rule for a cell; nothing where no pair was trained."""
    pair = Trained(cell.trainer, cell.workload, cell.world_size)
    return (judged(run, pair, comparisons),) if pair in wanted_pairs(run) and _by_seed(run, pair) else ()


def _by_seed(run: Measurement, pair: Trained) -> dict[int, record.Accuracy]:
    return {found.seed: found for found in run.accuracies if (found.trainer, found.workload, found.world_size) == pair}


def _train(run: Measurement, sessions: Sessions, crew: Crew, wanted: Trained, seed: int, say: Say) -> None:
    recipe = run.workload(wanted.workload).accuracy
    arm = next((arm for arm in crew.groups if (arm.trainer, arm.workload, arm.world_size) == wanted), None)
    if recipe is None or arm is None:
        return
    told, shortened = _recipe(run, recipe)
    order = {**run.orders[arm], "seed": seed}
    what = f"{short(arm.trainer)} on {arm.world_size} device(s) with {told['dataset']['name']}, seed {seed}"
    epoch_s = sessions.timeout_s(arm, _steps(order, told))
    curve = learning.learn(partial(crew.request, arm), order, told, epoch_s, what, say)
    if curve is not None:
        run.accuracies.append(_accuracy(arm, seed, told["dataset"]["name"], curve, shortened))


def _steps(order: dict[str, Any], recipe: dict[str, Any]) -> int:
    """An epoch and its evaluation in steps such as were timed; a minibatch that is larger counts for several."""
    dataset, batch = recipe["dataset"], int(recipe["batch"])
    parts = (dataset["train_samples"], dataset["test_samples"])
    minibatches: int = sum(math.ceil(min(samples, recipe["samples"] or samples) / batch) for samples in parts)
    timed: int = order["global_batch"]
    return minibatches * math.ceil(batch / timed)


def _recipe(run: Measurement, recipe: Recipe) -> tuple[dict[str, Any], str]:
    """The recipe as workers are told it, and in words what was cut from it on a CPU."""
    on_cpu = run.config.devices.kind == "cpu"
    epochs = (on_cpu and recipe.cpu_epochs) or recipe.epochs
    samples = recipe.cpu_samples if on_cpu else None
    cut = [f"{epochs} of {recipe.epochs} epochs"] if epochs < recipe.epochs else []
    if samples is not None:
        cut.append(f"{samples} samples an epoch")
    order = {"batch": recipe.batch, "lr": recipe.lr, "init": recipe.init, "epochs": epochs, "samples": samples}
    return {**order, "dataset": run.datasets[recipe.dataset]}, ", ".join(cut)


def _accuracy(arm: Arm, seed: int, dataset: str, curve: learning.Curve, shortened: str) -> record.Accuracy:
    return record.Accuracy(
        trainer=arm.trainer,
        workload=arm.workload,
        world_size=arm.world_size,
        seed=seed,
        dataset=dataset,
        train_samples=curve.train_samples,
        test_samples=curve.test_samples,
        per_epoch=curve.per_epoch,
        train_s=curve.train_s,
        shortened=shortened,
    )
