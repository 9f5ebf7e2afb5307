"""Accuracy: nets trained on one device and on k from the same seeds, and whether k lose any (controller's side).

Each pair is a fresh net from one seed, trained by the workload's recipe with the first session's workers when their
timing is over. Strong scaling keeps the recipe; weak scaling trains with k times its batch and the rate that the
workload's rule makes of its own. Both are held against one device with the recipe as it is, which is trained once.

The quick profile trains one pair, which is shown and judged only if it looks like a loss: then, as ever in the full
profile, all pairs of the recipe are trained, and all of them are judged. What does not fit into the budget is not
trained, and the cell says so.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from reference.schedule import scale
from suite.plan.cells import Arm, Cell, short
from suite.plan.workloads import Recipe
from suite.records import record
from suite.run import learning
from suite.run.observations import Observations
from suite.run.session import Crew, Say, Sessions
from suite.verdict import Outcome
from suite.verdict.accuracy import noninferiority

SEED = 1  # of the first pair, and of the weights and the order of samples in everything that is timed
SHARE = 0.6  # of the budget is for training at most, the rest for timing


def wanted_pairs(run: Observations) -> list[Arm]:
    """The arms on several devices that are held against one device; none beside a base, whose budget is for time."""
    if run.plan.config.against is not None:
        return []
    several = (run.plan.own(cell) for cell in run.plan.cells if cell.world_size > 1)
    return list(dict.fromkeys(arm for arm in several if run.plan.workload(arm.workload).accuracy is not None))


def allowed_s(run: Observations, left_s: float) -> float:
    """Wall seconds that training may take: a share of the budget, and no more than is left of one the user gave."""
    share_s = SHARE * run.plan.config.budget_s
    return min(share_s, left_s) if run.plan.config.min_sessions == 1 else share_s


def training(run: Observations, sessions: Sessions, say: Say) -> Callable[[Crew], None]:
    """What is done with the first session's workers once they are timed."""

    def train(crew: Crew) -> None:
        start = time.monotonic()
        until = start + allowed_s(run, sessions.left_s())
        done: set[tuple[Arm, int]] = set()

        def ensure(seed: int, *wanted: Arm) -> None:
            for arm in wanted:
                if (arm, seed) not in done:
                    done.add((arm, seed))
                    _train(run, sessions, crew, arm, seed, until, say)

        pairs = wanted_pairs(run)
        for pair in pairs:
            ensure(SEED, _alone(pair), pair)
        ensure(SEED, *map(run.plan.own, run.plan.cells))
        all_of_them = run.plan.config.profile == "full"
        doubtful = [pair for pair in pairs if all_of_them or judged(run, pair, 1).outcome is Outcome.FAIL]
        # Seed by seed, so that where time runs out every pair has as many as the others.
        for more in range(1, max((_recipe(run, pair).seed_pairs for pair in doubtful), default=0)):
            for pair in doubtful:
                if more < _recipe(run, pair).seed_pairs:
                    ensure(SEED + more, _alone(pair), pair)
        run.training_s = time.monotonic() - start

    return train


def judged(run: Observations, pair: Arm, comparisons: int) -> record.CheckRecord:
    """What the seed pairs trained so far say; it counts from as many as the recipe asks, or if it is a FAIL."""
    recipe, many, alone = _recipe(run, pair), _by_seed(run, pair), _by_seed(run, _alone(pair))
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


def checks(run: Observations, cell: Cell, comparisons: int) -> tuple[record.CheckRecord, ...]:
    """The accuracy rule for a cell; nothing where no pair was trained."""
    pair = run.plan.own(cell)
    return (judged(run, pair, comparisons),) if pair in wanted_pairs(run) and _by_seed(run, pair) else ()


def reached(run: Observations, cell: Cell) -> float | None:
    """A cell's accuracy after the last epoch, the mean over its seeds; None where no net of it was trained."""
    found = [net.per_epoch[-1] for net in _by_seed(run, run.plan.own(cell)).values()]
    return statistics.fmean(found) if found else None


def why_none(run: Observations, cell: Cell) -> str:
    """Why a cell has no accuracy, in words; empty where it has one."""
    if _by_seed(run, run.plan.own(cell)):
        return ""
    if run.plan.config.against is not None:
        return "nothing is trained beside a base: the budget is for the comparison"
    if run.plan.workload(cell.workload).accuracy is None:
        return f"workload {cell.workload} has no recipe to train by"
    return run.untrained.get(run.plan.own(cell), "the run ended before it was trained")


def _recipe(run: Observations, arm: Arm) -> Recipe:
    recipe = run.plan.workload(arm.workload).accuracy
    assert recipe is not None, "an arm without a recipe is no pair"
    return recipe


def _alone(arm: Arm) -> Arm:
    """The same trainer on one device: one arm for both modes."""
    return replace(arm, mode="strong", world_size=1)


def _by_seed(run: Observations, arm: Arm) -> dict[int, record.Accuracy]:
    wanted = (arm.trainer, arm.workload, arm.mode, arm.world_size)
    return {net.seed: net for net in run.accuracies if (net.trainer, net.workload, net.mode, net.world_size) == wanted}


def _train(run: Observations, sessions: Sessions, crew: Crew, arm: Arm, seed: int, until: float, say: Say) -> None:
    if run.plan.workload(arm.workload).accuracy is None or arm not in crew.groups:
        return
    told, shortened = _told(run, arm)
    dataset = told["dataset"]
    order = {**run.orders[arm], "seed": seed}
    where = f"{arm.world_size} device(s)" + (f" ({arm.mode})" if arm.world_size > 1 else "")
    what = f"{short(arm.trainer)} on {where} with {dataset['name']}, seed {seed}"
    epoch_s, left_s = sessions.timeout_s(arm, _steps(order, told)), until - time.monotonic()
    try:
        # At the rate that was timed, and a recipe's batch is smaller as a rule: it will not take less.
        least_s = told["epochs"] * _samples(told, "train") / order["global_batch"] * sessions.step_s[arm]
        if least_s > left_s:
            raise learning.OutOfTime(least_s)
        curve = learning.learn(partial(crew.request, arm), order, told, epoch_s, what, say, left_s)
    except learning.OutOfTime as short_of:
        run.untrained[arm] = (
            f"{short_of.needed_s:.0f} s or more of training do not fit into what the budget has for it "
            f"({SHARE:.0%} of {run.plan.config.budget_s:.0f} s at most, for all cells); raise --scaling-budget"
        )
        return
    if curve is not None:
        run.accuracies.append(
            record.Accuracy(
                trainer=arm.trainer,
                workload=arm.workload,
                mode=arm.mode,
                world_size=arm.world_size,
                batch=told["batch"],
                lr=told["lr"],
                seed=seed,
                dataset=dataset["name"],
                shortened=shortened,
                **curve._asdict(),
            )
        )


def _samples(told: dict[str, Any], part: Literal["train", "test"]) -> int:
    """That an epoch trains or evaluates."""
    whole = int(told["dataset"][f"{part}_samples"])
    return min(whole, int(told["samples"] or whole))


def _steps(order: dict[str, Any], told: dict[str, Any]) -> int:
    """An epoch and its evaluation in steps such as were timed; a minibatch that is larger counts for several."""
    batch, timed = int(told["batch"]), int(order["global_batch"])
    minibatches = sum(math.ceil(_samples(told, part) / batch) for part in ("train", "test"))
    return minibatches * math.ceil(batch / timed)


def _told(run: Observations, arm: Arm) -> tuple[dict[str, Any], str]:
    """The recipe as an arm's workers are told it, and in words what was cut from it on a CPU.

    In weak scaling the batch grows with the devices, and the rate by the workload's rule, as in what is timed.
    """
    recipe, on_cpu = _recipe(run, arm), run.plan.config.devices.kind == "cpu"
    batch, lr = scale(arm.mode, arm.world_size, recipe.batch, recipe.lr, run.plan.workload(arm.workload).lr_rule)
    epochs = (on_cpu and recipe.cpu_epochs) or recipe.epochs
    samples = recipe.cpu_samples * batch // recipe.batch if on_cpu and recipe.cpu_samples else None
    cut = [f"{epochs} of {recipe.epochs} epochs"] if epochs < recipe.epochs else []
    if samples is not None:
        cut.append(f"{samples} samples an epoch")
    told = {"batch": batch, "lr": lr, "init": recipe.init, "epochs": epochs, "samples": samples}
    return {**told, "dataset": run.datasets[recipe.dataset]}, ", ".join(cut)
