"""A training as the controller follows it: asked for an epoch at a time, so that its curve is seen while it grows.

The net stays with the workers (`suite.rank.training`). Every epoch has a deadline of its own; a rank that dies, raises
or hangs ends the group as in any command.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from suite.channel import Message
from suite.render.sparkline import sparkline
from suite.run.session import FIRST_STEP_TIMEOUT_S, Say

Ask = Callable[..., list[Message] | None]
"""`Group.request`, or a `Crew`'s for one arm, which answers None where the group is gone."""


class Curve(NamedTuple):
    """What a training brought.

    Attributes:
        per_epoch: test accuracy after every epoch, a share.
        train_s: seconds of training in every epoch, the slowest rank's, evaluation not in it.
        train_samples: of an epoch.
        test_samples: that were classified after it.
    """

    per_epoch: tuple[float, ...]
    train_s: tuple[float, ...]
    train_samples: int
    test_samples: int


def learn(ask: Ask, arm: dict[str, Any], recipe: dict[str, Any], epoch_s: float, what: str, say: Say) -> Curve | None:
    """Train a fresh net to the end of its recipe.

    Args:
        ask: puts a command to every rank.
        arm: what the workers are told of trainer, model, devices and seed.
        recipe: as `suite.rank.training.Training` takes it.
        epoch_s: the deadline of an epoch, its evaluation included; the first has time to build and compile as well.
        what: is trained, in words.
        say: is told every epoch's accuracy.

    Returns:
        None where `ask` did.

    Raises:
        WorkerFailure: `ask` raised it.
    """
    done: list[list[Message]] = []
    say(describe(what, recipe["epochs"], []))
    for epoch in range(recipe["epochs"]):
        timeout_s = epoch_s + (FIRST_STEP_TIMEOUT_S if epoch == 0 else 0.0)
        answers = ask("train", timeout_s, arm=arm, recipe=recipe, epoch=epoch)
        if answers is None:
            return None
        done.append(answers)
        say(describe(what, recipe["epochs"], [ranks[0]["accuracy"] for ranks in done]))
    return Curve(
        per_epoch=tuple(ranks[0]["accuracy"] for ranks in done),
        train_s=tuple(max(rank["train_s"] for rank in ranks) for ranks in done),
        train_samples=done[0][0]["train_samples"],
        test_samples=done[0][0]["test_samples"],
    )


def describe(what: str, epochs: int, accuracies: Sequence[float]) -> str:
    """How far a training has come: 'training ddp on 2 device(s): epoch 7 of 20, accuracy 0.93 ▁▂▄▆▇'.

    Args:
        what: is trained.
        epochs: in all.
        accuracies: of those that are done.
    """
    if not accuracies:
        return f"training {what}: epoch 1 of {epochs}"
    return (
        f"training {what}: epoch {len(accuracies)} of {epochs}, accuracy {accuracies[-1]:.2f} {sparkline(accuracies)}"
    )
