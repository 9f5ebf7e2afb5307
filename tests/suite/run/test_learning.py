"""A training as the controller follows it, with ranks that only pretend; and the line that shows its curve."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from suite.processes.answers import Epoch
from suite.processes.failure import WorkerFailure
from suite.processes.jobs import Prepared, TrainingRecipe
from suite.render.characters import sparkline
from suite.run.learning import Curve, Limits, NotScored, OutOfTime, learn
from suite.run.plan import FIRST_STEP_TIMEOUT_S
from suite.run.session import Say
from tests.support.measurements import arm, job

JOB = job(arm(2))


class Ranks:
    """Two ranks, the second one slower, that answer until an epoch in which the group is gone."""

    def __init__(self, gone_in: int | None = None, raises: bool = False) -> None:
        self.gone_in, self.raises = gone_in, raises
        self.asked: list[tuple[int, float]] = []
        self.losses: tuple[float | None, ...] = (None, None)
        self.test_losses: tuple[float | None, ...] = (None,) * 9
        self.epochs_s: tuple[float, ...] = (1.0, 1.0, 1.0)
        self.now = 0.0

    def __call__(self, kind: type[Epoch], command: str, timeout_s: float, /, **told: Any) -> list[Epoch] | None:
        assert (command, told["recipe"], told["arm"]) == ("train", self.recipe, JOB)
        epoch = told["epoch"]
        self.asked.append((epoch, timeout_s))
        self.now += self.epochs_s[epoch]
        if epoch == self.gone_in:
            if self.raises:
                raise WorkerFailure("group", "rank 1: gone")
            return None
        common = kind(accuracy=0.25 * (epoch + 1), train_s=1.0 + epoch, train_samples=100, test_samples=20)
        common = replace(common, test_loss=self.test_losses[epoch])
        return [replace(common, train_s=common.train_s + r, loss=loss) for r, loss in enumerate(self.losses)]

    @property
    def recipe(self) -> TrainingRecipe:
        dataset = Prepared(name="digits", folder="", train_samples=100, test_samples=20)
        return TrainingRecipe(dataset=dataset, batch=32, lr=0.1, epochs=len(self.epochs_s), init="default")

    def learn(self, say: Say = lambda line: None, allowed_s: float = math.inf) -> Curve | None:
        limits = Limits(30.0, allowed_s=allowed_s, clock=lambda: self.now)
        return learn(self, JOB, self.recipe, limits, "ddp", say)


def test_every_epoch_is_shown_before_the_next_begins() -> None:
    ranks, shown = Ranks(), []
    curve = ranks.learn(lambda line: shown.append((len(ranks.asked), line)))
    assert shown == [
        (0, "training ddp: epoch 1 of 3"),
        (1, "training ddp: epoch 1 of 3, accuracy 0.25 ▃"),
        (2, "training ddp: epoch 2 of 3, accuracy 0.50 ▃▅"),
        (3, "training ddp: epoch 3 of 3, accuracy 0.75 ▃▅▇"),
    ]
    assert curve == ((0.25, 0.5, 0.75), (2.0, 3.0, 4.0), 100, 20, (), (), ""), "the slowest rank's seconds count"
    assert ranks.asked == [(0, 30.0 + FIRST_STEP_TIMEOUT_S), (1, 30.0), (2, 30.0)]


@pytest.mark.parametrize(
    ("shares", "expected"),
    [((0.25, 0.5), (0.75,) * 3), ((0.25, None), ()), ((0.25, math.nan), (None,) * 3), ((math.inf, 0.5), (None,) * 3)],
)
def test_loss_is_the_sum_of_the_ranks_shares(shares: tuple[float | None, ...], expected: tuple[float | None]) -> None:
    """Empty where a rank's trainer returns none; None for an epoch whose loss is not finite."""
    ranks = Ranks()
    ranks.losses = shares
    curve = ranks.learn()
    assert curve is not None
    assert curve.loss == expected


def test_the_loss_of_test_texts_is_that_of_all_ranks_together() -> None:
    ranks = Ranks()
    ranks.test_losses = (2.5, math.nan, 1.5)
    curve = ranks.learn()
    assert curve is not None
    assert curve.test_loss == (2.5, None, 1.5)


@pytest.mark.parametrize(
    ("epochs_s", "allowed_s", "trained"),
    [
        ((9.0, 1.0, 1.0), 11.0, 3),  # a slow first epoch does not predict the others
        ((9.0, 1.0, 1.0), 8.0, 1),
        ((1.0, 5.0, 5.0), 10.0, 2),
        ((1.0, 5.0, 1.0), 6.5, 2),
        ((1.0, 1.0, 5.0, 1.0), 8.5, 4),  # the shortest epoch predicts the others
    ],
)
def test_training_stops_as_soon_as_it_cannot_end_in_time(
    epochs_s: tuple[float, ...], allowed_s: float, trained: int
) -> None:
    ranks = Ranks()
    ranks.epochs_s = epochs_s
    if trained == len(epochs_s):
        assert ranks.learn(allowed_s=allowed_s) is not None
    else:
        with pytest.raises(OutOfTime, match=r"the training takes about \d+ s") as out:
            ranks.learn(allowed_s=allowed_s)
        assert out.value.needed_s > allowed_s
    assert len(ranks.asked) == trained


def test_a_net_without_an_accuracy_is_not_trained_on() -> None:
    """A rank without test samples cannot tell."""
    asked = []

    def ask(kind: type[Epoch], command: str, timeout_s: float, /, **told: Any) -> list[Epoch]:
        asked.append(told["epoch"])
        seen = kind(accuracy=0.0, train_s=1.0, train_samples=100, test_samples=20)
        return [seen, replace(seen, not_scored="no scores")]

    with pytest.raises(NotScored, match=r"^no scores$"):
        learn(ask, JOB, Ranks().recipe, Limits(30.0), "ddp", lambda line: None)
    assert asked == [0]


def test_group_that_is_gone_is_not_asked_again_and_a_failure_reaches_the_caller() -> None:
    ranks = Ranks(gone_in=1)
    assert ranks.learn() is None
    assert [epoch for epoch, _ in ranks.asked] == [0, 1]
    with pytest.raises(WorkerFailure, match="rank 1: gone"):
        Ranks(gone_in=2, raises=True).learn()


@pytest.mark.parametrize(
    ("shares", "shown"),
    [
        ((), ""),
        ((0.0,), "▁"),
        ((1.0,), "█"),
        ((0.12, 0.13, 0.5, 0.99), "▁▂▅█"),
        ([0.0] * 99 + [1.0], "▁" * 19 + "█"),
        ([0.0, 1.0] * 20, "█" * 20),
    ],
)
def test_sparkline_has_one_block_per_share_and_at_most_twenty(shares: list[float], shown: str) -> None:
    assert sparkline(shares) == shown
