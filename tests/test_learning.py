"""A training as the controller follows it, with ranks that only pretend; and the line that shows its curve."""

from __future__ import annotations

from typing import Any

import pytest

from suite.failure import WorkerFailure
from suite.render.sparkline import sparkline
from suite.run.learning import describe, learn
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
    assert curve == ((0.25, 0.5, 0.75), (2.0, 3.0, 4.0), 100, 20), "the slowest rank's seconds count"


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
