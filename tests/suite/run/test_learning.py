"""A training as the controller follows it, with ranks that only pretend; and the line that shows its curve."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from suite.processes.failure import WorkerFailure
from suite.render.sparkline import sparkline
from suite.run import learning
from suite.run.learning import OutOfTime, describe, learn
from suite.run.session import FIRST_STEP_TIMEOUT_S

RECIPE = {"epochs": 3}


class Ranks:
    """Two of them, the second one slower, which answer until an epoch in which the group is gone."""

    def __init__(self, gone_in: int | None = None, raises: bool = False) -> None:
        self.gone_in, self.raises = gone_in, raises
        self.asked: list[tuple[int, float]] = []

    def __call__(self, command: str, timeout_s: float, /, **told: Any) -> list[dict[str, Any]] | None:
        assert (command, told["recipe"], told["arm"]) == ("train", RECIPE, {"seed": 4})
        epoch = told["epoch"]
        self.asked.append((epoch, timeout_s))
        if epoch == self.gone_in:
            if self.raises:
                raise WorkerFailure("group", "rank 1: gone")
            return None
        common = {"accuracy": 0.25 * (epoch + 1), "train_samples": 100, "test_samples": 20}
        return [common | {"train_s": 1.0 + epoch}, common | {"train_s": 2.0 + epoch}]


def test_every_epoch_is_said_before_the_next_is_asked_for() -> None:
    ranks, heard = Ranks(), []
    curve = learn(ranks, {"seed": 4}, RECIPE, 30.0, "ddp", lambda line: heard.append((len(ranks.asked), line)))
    assert heard == [
        (0, "training ddp: epoch 1 of 3"),
        (1, "training ddp: epoch 1 of 3, accuracy 0.25 ▃"),
        (2, "training ddp: epoch 2 of 3, accuracy 0.50 ▃▅"),
        (3, "training ddp: epoch 3 of 3, accuracy 0.75 ▃▅▇"),
    ]
    assert curve == ((0.25, 0.5, 0.75), (2.0, 3.0, 4.0), 100, 20, ()), "the slowest rank's seconds count"


@pytest.mark.parametrize(
    ("shares", "expected"),
    [((0.25, 0.5), (0.75,) * 3), ((0.25, None), ()), ((0.25, math.nan), (None,) * 3), ((math.inf, 0.5), (None,) * 3)],
)
def test_a_loss_is_the_sum_of_the_ranks_shares(shares: tuple[float | None, ...], expected: tuple[float | None]) -> None:
    """None of it where a rank's trainer returns none; an epoch whose loss is no number has none that can be kept."""

    def ranks(*_: Any, **told: Any) -> list[dict[str, Any]]:
        common = {"accuracy": 0.5, "train_samples": 100, "test_samples": 20, "train_s": 1.0}
        return [common | {"loss": share} for share in shares]

    curve = learn(ranks, {}, RECIPE, 30.0, "ddp", lambda line: None)
    assert curve is not None
    assert curve.loss == expected


@pytest.mark.parametrize(
    ("epochs_s", "allowed_s", "trained"),
    [
        ((9.0, 1.0, 1.0), 11.0, 3),  # a first epoch that is slow is not taken for the others
        ((9.0, 1.0, 1.0), 8.0, 1),
        ((1.0, 5.0, 5.0), 10.0, 2),
        ((1.0, 5.0, 1.0), 6.5, 2),
    ],
)
def test_a_training_ends_as_soon_as_it_cannot_end_in_time(
    monkeypatch: pytest.MonkeyPatch, epochs_s: tuple[float, ...], allowed_s: float, trained: int
) -> None:
    ranks, clock = Ranks(), [0.0]
    monkeypatch.setattr(learning, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def ask(*command: Any, **told: Any) -> list[dict[str, Any]] | None:
        clock[0] += epochs_s[told["epoch"]]
        return ranks(*command, **told)

    if trained == len(epochs_s):
        assert learn(ask, {"seed": 4}, RECIPE, 30.0, "ddp", lambda line: None, allowed_s) is not None
    else:
        with pytest.raises(OutOfTime, match=r"the training takes about \d+ s") as out:
            learn(ask, {"seed": 4}, RECIPE, 30.0, "ddp", lambda line: None, allowed_s)
        assert out.value.needed_s > allowed_s
    assert len(ranks.asked) == trained


def test_every_epoch_has_its_deadline_and_the_first_one_time_to_build() -> None:
    ranks = Ranks()
    learn(ranks, {"seed": 4}, RECIPE, 30.0, "ddp", lambda line: None)
    assert ranks.asked == [(0, 30.0 + FIRST_STEP_TIMEOUT_S), (1, 30.0), (2, 30.0)]


def test_where_the_group_is_gone_nobody_is_asked_again() -> None:
    ranks = Ranks(gone_in=1)
    assert learn(ranks, {"seed": 4}, RECIPE, 30.0, "ddp", lambda line: None) is None
    assert [epoch for epoch, _ in ranks.asked] == [0, 1]


def test_a_failure_goes_on_to_who_asked() -> None:
    with pytest.raises(WorkerFailure, match="rank 1: gone"):
        learn(Ranks(gone_in=2, raises=True), {"seed": 4}, RECIPE, 30.0, "ddp", lambda line: None)


def test_the_line_has_the_last_accuracy_and_the_curve() -> None:
    line = describe("ddp on 2 device(s) with digits, seed 1", 20, [0.1, 0.4, 0.7, 0.93])
    assert line == "training ddp on 2 device(s) with digits, seed 1: epoch 4 of 20, accuracy 0.93 ▁▄▆█"


@pytest.mark.parametrize(
    ("shares", "shown"),
    [((), ""), ((0.0,), "▁"), ((1.0,), "█"), ((0.12, 0.13, 0.5, 0.99), "▁▂▅█")],
)
def test_blocks_stand_for_shares_of_one(shares: tuple[float, ...], shown: str) -> None:
    assert sparkline(shares) == shown


def test_a_long_curve_is_thinned_and_ends_with_its_last() -> None:
    shown = sparkline([0.0] * 99 + [1.0])
    assert shown == "▁" * 19 + "█"
    assert sparkline([0.0, 1.0] * 20, width=20) == "█" * 20
