"""A training as the controller follows it: asked for one epoch at a time, so that each accuracy is shown at once.

The net stays with the workers (`suite.rank.training`). Every epoch has its own deadline; a rank that dies, raises or
hangs ends the group as in any command.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from suite.processes.jobs import Epoch, Job, TrainingRecipe
from suite.render.scale import sparkline
from suite.run.plan import FIRST_STEP_TIMEOUT_S
from suite.run.session import Say

Ask = Callable[..., list[Epoch] | None]
"""`Group.request`, or `Groups.request` for one arm, which answers None where the group is gone."""


class Curve(NamedTuple):
    """What a training measured.

    Attributes:
        per_epoch: test accuracy after every epoch, from 0 to 1.
        train_s: seconds of training in every epoch, of the slowest rank, without evaluation.
        train_samples: of an epoch.
        test_samples: that were classified after it.
        loss: mean training loss of every epoch, None where it was not finite; empty where the trainer returns none.
        test_loss: of texts, nats a test label after every epoch, None where not finite; empty for other data.
        not_finite: a parameter that was not finite after the last epoch; "" where all were finite.
    """

    per_epoch: tuple[float, ...]
    train_s: tuple[float, ...]
    train_samples: int
    test_samples: int
    loss: tuple[float | None, ...] = ()
    test_loss: tuple[float | None, ...] = ()
    not_finite: str = ""


class OutOfTime(Exception):
    """A training does not fit into the time that it may take; it needs `needed_s` seconds or a little more."""

    def __init__(self, needed_s: float) -> None:
        super().__init__(f"the training takes about {needed_s:.0f} s")
        self.needed_s = needed_s


class NotScored(Exception):
    """The outputs of a net have no accuracy; the message says why."""


class Limits(NamedTuple):
    """How long a training may take.

    Attributes:
        epoch_s: the deadline of an epoch with its evaluation; the first epoch gets `first_step_s` more.
        first_step_s: for what the first step builds and compiles.
        allowed_s: wall seconds of the whole training. It ends as soon as an epoch shows that it will not fit.
        clock: returns the seconds by which `allowed_s` is counted.
    """

    epoch_s: float
    first_step_s: float = FIRST_STEP_TIMEOUT_S
    allowed_s: float = math.inf
    clock: Callable[[], float] = time.monotonic


def learn(ask: Ask, job: Job, recipe: TrainingRecipe, limits: Limits, what: str, say: Say) -> Curve | None:
    """Train a new net to the end of its recipe.

    Args:
        ask: sends a command to every rank.
        job: what the workers are told of trainer, model, devices and seed.
        recipe: of the training.
        limits: of its time.
        what: names the training in the progress lines that `say` receives.

    Returns:
        The curve; None where `ask` returned None.

    Raises:
        OutOfTime: the training takes longer than it is allowed.
        NotScored: after the first epoch.
        WorkerFailure: `ask` raised it.
    """
    done: list[list[Epoch]] = []
    begun, shortest_s = limits.clock(), math.inf
    say(describe(what, recipe.epochs, []))
    for epoch in range(recipe.epochs):
        epoch_begun = limits.clock()
        timeout_s = limits.epoch_s + (limits.first_step_s if epoch == 0 else 0.0)
        answers = ask(Epoch, "train", timeout_s, arm=job, recipe=recipe, epoch=epoch)
        if answers is None:
            return None
        if why := next((answer.not_scored for answer in answers if answer.not_scored), ""):
            raise NotScored(why)
        done.append(answers)
        say(describe(what, recipe.epochs, [ranks[0].accuracy for ranks in done]))
        now, left = limits.clock(), recipe.epochs - len(done)
        if epoch > 0:  # the first epoch also builds and compiles, so it does not predict the others
            shortest_s = min(shortest_s, now - epoch_begun)
        needed_s = now - begun + (left * shortest_s if epoch > 0 else 0.0)
        if left and needed_s > limits.allowed_s:
            raise OutOfTime(needed_s)
    tests = [ranks[0].test_loss for ranks in done if ranks[0].test_loss is not None]
    losses = [[rank.loss for rank in ranks if rank.loss is not None] for ranks in done]
    return Curve(
        per_epoch=tuple(ranks[0].accuracy for ranks in done),
        train_s=tuple(max(rank.train_s for rank in ranks) for ranks in done),
        train_samples=done[0][0].train_samples,
        test_samples=done[0][0].test_samples,
        loss=tuple(map(_mean_loss, losses)) if list(map(len, losses)) == list(map(len, done)) else (),
        test_loss=tuple(loss if math.isfinite(loss) else None for loss in tests),
        not_finite=next((rank.not_finite for rank in done[-1] if rank.not_finite), ""),
    )


def _mean_loss(shares: Sequence[float]) -> float | None:
    """Return the sum of the ranks' shares; None where it is not finite, because a record cannot hold that."""
    total = sum(shares)
    return total if math.isfinite(total) else None


def describe(what: str, epochs: int, accuracies: Sequence[float]) -> str:
    """Return the progress of a training: 'training ddp on 2 device(s): epoch 7 of 20, accuracy 0.93 ▁▂▄▆▇'."""
    if not accuracies:
        return f"training {what}: epoch 1 of {epochs}"
    return (
        f"training {what}: epoch {len(accuracies)} of {epochs}, accuracy {accuracies[-1]:.2f} {sparkline(accuracies)}"
    )
