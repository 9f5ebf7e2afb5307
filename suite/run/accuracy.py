"""Accuracy: nets trained on one device and on k from the same seeds, and whether k devices lose any.

One device is compared with the nets of accepted runs, where it trained from the same seeds. Each net starts from its
seed and is trained by the workload's recipe, with the first session's workers when their timing is over, or, next to
accepted commits in the quick profile, in what the comparison leaves of the budget (docs/adr/0004). Strong scaling keeps
the recipe; weak scaling trains with k times its batch and the rate of the workload's rule. Both are compared with one
device and the recipe as it is, which is trained once.

The quick profile trains one pair, and the recipe's other pairs only if that one looks like a loss; the full profile
trains all. What does not fit into the budget is not trained, and the cell says so.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from reference.schedule import scale
from suite.plan.cells import Arm, Cell, short
from suite.plan.workloads import Recipe, no_recipe
from suite.processes.failure import WorkerFailure
from suite.processes.jobs import Job, TrainingRecipe
from suite.records import record
from suite.run import learning
from suite.run.groups import Groups
from suite.run.observations import Observations
from suite.run.session import Say, Sessions
from suite.verdict import Outcome
from suite.verdict.accuracy import noninferiority

SEED = 1  # of the first pair, and of the weights and the order of samples in everything that is timed
SHARE = 0.6  # of the budget is for training at most, the rest for timing
KEPT_SHARE = 0.2  # of it is kept for training where waterfalls come first


def trained(run: Observations) -> list[Arm]:
    """Return the arms that a recipe trains; none in a run with a named base."""
    if run.plan.config.against is not None:
        return []
    own = dict.fromkeys(map(run.plan.own, run.plan.cells))
    return [arm for arm in own if _has_recipe(run, arm) and not _no_labels(run, arm)]


def wanted_pairs(run: Observations) -> list[Arm]:
    """Return the arms whose nets are compared: several devices with one device, and one with accepted runs."""
    return [arm for arm in trained(run) if arm.world_size > 1 or _accepted(run, arm)]


def needed(run: Observations) -> list[Arm]:
    """Return the arms that are trained, with those on one device that they are compared with; none that was lost."""
    both = dict.fromkeys(each for arm in trained(run) for each in (arm.on_one, arm))
    return [arm for arm in both if arm in run.steps and arm not in run.lost]


def allowed_s(run: Observations, left_s: float, session_s: float = 0.0) -> float:
    """Return how many wall seconds training may take: a share of the budget.

    No more than `left_s`, where the user set the budget and when sessions are over; and no more than a profile's
    stretched budget leaves beside the sessions that take place in any case (`Plan.beside_s`).

    Args:
        run: in its first session, or after its last.
        left_s: of the budget.
        session_s: that each session takes without training.
    """
    config = run.plan.config
    share_s = SHARE * config.budget.seconds
    if config.budget.fixed or run.sessions:
        return min(share_s, left_s)
    return min(share_s, max(0.0, run.plan.beside_s(left_s, session_s, 0)))


def train_last(
    run: Observations,
    sessions: Sessions,
    train: Callable[[Groups], None],
    left_s: float,
    starting_s: float,
    say: Say,
) -> None:
    """Train nets in what the comparison has left of the budget.

    Args:
        run, sessions: whose timing is over.
        train: from `training`.
        left_s: of the budget.
        starting_s: what the processes of the `needed` arms take to start at least; with less, nothing is trained, and
            the arms say so.
        say: receives a line.
    """
    arms = needed(run)
    if left_s <= starting_s:
        why = "the comparison with accepted commits took the budget; raise --scaling-budget"
        run.untrained |= dict.fromkeys(arms, why)
    elif arms:
        say(f"the comparison is over, and {allowed_s(run, left_s):.0f} s are left for training")
        sessions.train_apart(arms, train)


def training(run: Observations, sessions: Sessions, say: Say) -> Callable[[Groups], None]:
    """Return a function that trains nets with a session's groups."""

    def train(groups: Groups) -> None:
        start = run.plan.clock()
        until = start + allowed_s(run, sessions.left_s(), groups.session.usual_s)
        done: set[_Net] = set()
        for net in _in_order(run):
            if net not in done:
                done.add(net)
                _train(run, sessions, groups, net, until, say)
        groups.session.training_s = run.plan.clock() - start

    return train


class _Net(NamedTuple):
    arm: Arm
    seed: int


def _in_order(run: Observations) -> Iterator[_Net]:
    """Yield every net to train; which pairs need more seeds is read from the first ones."""
    pairs = sorted(wanted_pairs(run), key=lambda arm: -arm.world_size)  # what has no time are the smallest
    if run.compares_first:  # time runs out as a rule, and other runs have the other pairs
        random.Random(run.plan.seed).shuffle(pairs)
    yield from (_Net(arm, SEED) for pair in pairs for arm in (pair.on_one, pair))
    yield from (_Net(run.plan.own(cell), SEED) for cell in run.plan.cells)
    full = run.plan.config.profile == "full"
    doubtful = trained(run) if full else [pair for pair in pairs if _looks_like_a_loss(run, pair)]
    # Seed by seed, so that where time runs out every pair has as many as the others.
    for more in range(1, max((_recipe(run, pair).seed_pairs for pair in doubtful), default=0)):
        for pair in doubtful:
            # One device has no pair from a seed that no accepted run has; a full run trains it, to be accepted itself.
            paired = full or pair.world_size > 1 or SEED + more in _accepted(run, pair)
            if paired and more < _recipe(run, pair).seed_pairs:
                yield from (_Net(arm, SEED + more) for arm in (pair.on_one, pair))


def _looks_like_a_loss(run: Observations, pair: Arm) -> bool:
    """Return whether the first seed lost half the margin or more, which only the other seeds can tell from chance."""
    of_reference, own = _reference(run, pair).get(SEED), _by_seed(run, pair).get(SEED)
    if of_reference is None or own is None:
        return False
    return of_reference - own.per_epoch[-1] >= _recipe(run, pair).margin / 2


def _reference(run: Observations, pair: Arm) -> dict[int, float]:
    """Return by seed the accuracies that an arm is compared with: on one device, or there in accepted runs."""
    if pair.world_size == 1:
        return _accepted(run, pair)
    return {seed: net.per_epoch[-1] for seed, net in _by_seed(run, pair.on_one).items()}


def _accepted(run: Observations, arm: Arm) -> dict[int, float]:
    """Return by seed the accuracies that an arm on one device had in accepted runs."""
    identity, trained_on = run.identity(arm), run.datasets.get(_recipe(run, arm).dataset)
    if identity is None or trained_on is None:
        return {}
    return run.plan.baseline.accuracies(identity, trained_on.name)


def judged(run: Observations, pair: Arm, comparisons: int) -> record.CheckRecord:
    """Return what the seed pairs trained so far say.

    The check counts from as many pairs as the recipe asks for, and as a FAIL from any number.
    """
    recipe, own, reference = _recipe(run, pair), _by_seed(run, pair), _reference(run, pair)
    both = [seed for seed in reference if seed in own]
    against = "accepted runs" if pair.world_size == 1 else "1 device"
    verdict = noninferiority(
        [(reference[seed], own[seed].per_epoch[-1]) for seed in both],
        margin=recipe.margin,
        comparisons=comparisons,
        test_samples=own[both[0]].test_samples if both else None,
        than=f"in {against}" if pair.world_size == 1 else f"on {against}",
    )
    return record.CheckRecord(
        rule="accuracy",
        against=against,
        outcome=verdict.outcome,
        reason=verdict.reason,
        kind=verdict.why.kind,
        counts=verdict.outcome is Outcome.FAIL or len(both) >= recipe.seed_pairs,
    )


def checks(run: Observations, cell: Cell, comparisons: int) -> tuple[record.CheckRecord, ...]:
    """Return the accuracy check of a cell; none where none of its pairs was trained."""
    pair = run.plan.own(cell)
    return (judged(run, pair, comparisons),) if pair in wanted_pairs(run) and _by_seed(run, pair) else ()


def reached(run: Observations, cell: Cell) -> float | None:
    """Return a cell's accuracy after the last epoch, the mean over its seeds; None where it was not trained."""
    last = [net.per_epoch[-1] for net in _by_seed(run, run.plan.own(cell)).values()]
    return statistics.fmean(last) if last else None


def reached_loss(run: Observations, cell: Cell) -> float | None:
    """Return a cell's test loss after the last epoch, the mean over its seeds; None where none was measured."""
    last = [net.test_loss[-1] for net in _by_seed(run, run.plan.own(cell)).values() if net.test_loss]
    finite = [loss for loss in last if loss is not None]
    return statistics.fmean(finite) if finite else None


def why_none(run: Observations, cell: Cell) -> record.Missing | None:
    """Return why a cell has no accuracy; None where it has one."""
    if cell.runs_script or _by_seed(run, run.plan.own(cell)):  # only a script itself knows how it evaluates
        return None
    if run.plan.config.against is not None:
        why = "nothing is trained in a run with a base: the budget is for the comparison"
    elif not _has_recipe(run, run.plan.own(cell)):
        return record.Missing(figure="accuracy", why=no_recipe(cell.workload), because="no recipe")
    elif targets := _no_labels(run, run.plan.own(cell)):
        why = (
            f"y is {targets}, and an accuracy is the share of class labels, int64, that get the highest score; "
            "time and gradients do not need one"
        )
    else:
        why = run.untrained.get(run.plan.own(cell), "the run ended before it was trained")
    return record.Missing(figure="accuracy", why=why)


def _has_recipe(run: Observations, arm: Arm) -> bool:
    return run.plan.workload(arm.workload).accuracy is not None


def _no_labels(run: Observations, arm: Arm) -> str:
    """Return what the targets are that an arm would be trained on where they are no class labels, else ""."""
    prepared = run.datasets.get(_recipe(run, arm).dataset)
    return "" if prepared is None else prepared.no_labels


def _recipe(run: Observations, arm: Arm) -> Recipe:
    recipe = run.plan.workload(arm.workload).accuracy
    assert recipe is not None, "wanted_pairs leaves out arms without a recipe"
    return recipe


def _by_seed(run: Observations, arm: Arm) -> dict[int, record.Accuracy]:
    wanted = (arm.trainer, arm.workload, arm.mode, arm.world_size)
    return {net.seed: net for net in run.accuracies if (net.trainer, net.workload, net.mode, net.world_size) == wanted}


def _train(run: Observations, sessions: Sessions, groups: Groups, net: _Net, until: float, say: Say) -> None:
    arm, seed = net
    if not _has_recipe(run, arm) or _no_labels(run, arm):
        return
    if arm not in groups.by_arm:
        run.untrained[arm] = _why_ended(run, groups, arm)
        return
    recipe, shortened = _recipe_of(run, arm)
    dataset, job = recipe.dataset, replace(run.jobs[arm], seed=seed)
    mode, mark = f" ({arm.mode})" if arm.world_size > 1 else "", run.plan.config.devices.mark(arm.world_size)
    where = f"{arm.world_size} device(s){mode}{mark}"
    what = f"{short(arm.trainer)} on {where} with {dataset.name}, seed {seed}"
    epoch_s, left_s = sessions.timeout_s(arm, _steps(job, recipe)), until - run.plan.clock()
    try:
        # A recipe's batch is smaller than the timed one as a rule, so training is not faster than what was timed.
        least_s = recipe.epochs * recipe.count("train") / job.global_batch * sessions.step_s[arm]
        if least_s > left_s:
            raise learning.OutOfTime(least_s)
        limits = learning.Limits(epoch_s, run.plan.first_step_s(arm), left_s, run.plan.clock)
        curve = learning.learn(partial(groups.request, arm), job, recipe, limits, what, say)
    except learning.NotScored as error:
        run.untrained[arm] = f"not measured: {error}"
        return
    except learning.OutOfTime as error:
        has = "has left for it" if run.compares_first else "has for it"
        run.untrained[arm] = (
            f"{error.needed_s:.0f} s or more of training do not fit into what the budget {has} "
            f"({SHARE:.0%} of {run.plan.config.budget.seconds:.0f} s at most, for all cells); raise --scaling-budget"
        )
        return
    if curve is not None:
        learned = curve._asdict()
        not_finite = learned.pop("not_finite")
        run.accuracies.append(
            record.Accuracy(
                trainer=arm.trainer,
                workload=arm.workload,
                mode=arm.mode,
                world_size=arm.world_size,
                batch=recipe.batch,
                lr=recipe.lr,
                seed=seed,
                dataset=dataset.name,
                shortened=shortened,
                **learned,
            )
        )
        what_diverged = f"parameter {not_finite!r}" if not_finite else ""
        if curve.loss and curve.loss[-1] is None:
            what_diverged = "the loss"
        if what_diverged:
            cause = (
                f"{what_diverged} of {arm.id}, seed {seed}, is not finite after {recipe.epochs} epoch(s); "
                f"{dataset.remedy}"
            )
            groups.session.failures[arm] = WorkerFailure(arm.side, cause)


def _why_ended(run: Observations, groups: Groups, arm: Arm) -> str:
    """Return in words that an arm has no processes, and what broke them: an arm that shared them, or a variant."""
    causes = [(other, failure.cause) for other, failure in groups.session.failures.items()]
    causes += [(other, cause) for (other, _), cause in run.unprobed.items()]
    shared = [cause for other, cause in causes if other.processes == arm.processes]
    return ": ".join(["its workers had ended before it was trained", *shared[:1]])


def _steps(job: Job, recipe: TrainingRecipe) -> int:
    """Return an epoch and its evaluation in timed steps; a minibatch that is larger than theirs counts as several."""
    return recipe.minibatches * math.ceil(recipe.batch / job.global_batch)


def _recipe_of(run: Observations, arm: Arm) -> tuple[TrainingRecipe, str]:
    """Return the recipe as an arm's workers are told it, and in words what was cut from it on a CPU."""
    recipe, on_cpu = _recipe(run, arm), run.plan.config.devices.kind == "cpu"
    batch, lr = scale(arm.mode, arm.world_size, recipe.batch, recipe.lr, run.plan.workload(arm.workload).lr_rule)
    epochs = (on_cpu and recipe.cpu_epochs) or recipe.epochs
    samples = recipe.cpu_samples * batch // recipe.batch if on_cpu and recipe.cpu_samples else None
    cut = [f"{epochs} of {recipe.epochs} epochs"] if epochs < recipe.epochs else []
    if samples is not None:
        cut.append(f"{samples} samples an epoch")
    dataset = run.datasets[recipe.dataset]
    made = TrainingRecipe(dataset=dataset, batch=batch, lr=lr, epochs=epochs, init=recipe.init, samples=samples)
    return made, ", ".join(cut)
