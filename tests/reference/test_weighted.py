"""Shares by weight: exact gradients for any weights, and weights measured from each device's speed.

Devices of several kinds: `tests/reference/test_per_device.py`, and a GPU beside a CPU in `tests/gpu`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from reference.trainers.weighted import Weighted
from tests.support.strategies import CPU, LR, Case, batch, bit_equal, cases, check_step, conv_net, smooth_net, values

pytestmark = pytest.mark.usefixtures("one_intra_op_thread")


def rank_here() -> int:
    """Return the device in whose thread this is called, -1 in the caller's own."""
    name = threading.current_thread().name
    return int(name.removeprefix("replica-")) if name.startswith("replica-") else -1


class Counted(nn.Module):
    """The identity; counts the samples that each device sees. All copies count together."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[int] = Counter()

    def __deepcopy__(self, memo: object) -> Counted:
        return self

    def forward(self, X: Tensor) -> Tensor:
        self.seen[rank_here()] += len(X)
        return X


@settings(max_examples=40)
@given(case=cases(conv_net, (1, 6, 6), torch.float64), data=st.data())
def test_steps_equal_one_devices_for_any_weights(case: Case, data: st.DataObject) -> None:
    """1 to 8 devices, 1 to 20 samples, weights given (any of them 0) or measured."""
    one = st.floats(0, 100) | st.just(0.0)
    weights = data.draw(st.none() | st.lists(one, min_size=case.world_size, max_size=case.world_size).filter(any))
    trainer = Weighted(case.net, case.devices, lr=LR, weights=weights, warmup=1)
    for X, y in case.batches:
        check_step(trainer, X, y)
    trainer.close()


@pytest.mark.parametrize("weights", [(0, 3, 1), (3, 0, 1), (1, 0, 0)])
def test_a_device_of_weight_0_gets_no_samples_and_the_same_update(weights: tuple[float, ...]) -> None:
    """The first device sums and updates for the others, and may have weight 0 too."""
    counted = Counted()
    trainer = Weighted(nn.Sequential(counted, smooth_net()).double(), [CPU] * 3, lr=LR, weights=weights)
    start = values(trainer.replicas[0])
    trainer.step(*batch(8), 8)
    assert counted.seen == {rank: 8 * weight / sum(weights) for rank, weight in enumerate(weights) if weight}
    for replica in trainer.replicas:
        assert bit_equal(replica, trainer.replicas[0])
        assert not any(torch.equal(a, b) for a, b in zip(start, values(replica), strict=True))
    check_step(trainer, *batch(5))
    trainer.close()


def test_an_error_on_one_device_leaves_no_gradient_for_the_next_step() -> None:
    trainer = Weighted(smooth_net().double(), [CPU] * 2, lr=LR, weights=[1, 1])
    X, y = batch(4)
    with pytest.raises(IndexError, match="Target 9 is out of bounds"):
        trainer.step(X, torch.tensor([0, 1, 2, 9]), 4)
    check_step(trainer, X, y)
    trainer.close()


class TakesTime(Counted):
    """Moves the clock of its device by so many seconds a sample, and by one more at its first call there."""

    def __init__(self, seconds: Sequence[float]) -> None:
        super().__init__()
        self.seconds, self.now_s = seconds, Counter[int]()

    def clock(self) -> float:
        """Return the seconds on this device's clock."""
        return self.now_s[rank_here()]

    def forward(self, X: Tensor) -> Tensor:
        first_call = rank_here() not in self.seen
        self.now_s[rank_here()] += len(X) * self.seconds[rank_here()] + first_call
        return super().forward(X)


def timed_trainer(monkeypatch: pytest.MonkeyPatch, seconds: Sequence[float]) -> tuple[Weighted, TakesTime]:
    """Return a trainer whose devices take so many seconds a sample by clocks of their own, and the module in it."""
    module = TakesTime(seconds)
    monkeypatch.setattr("reference.trainers.weighted.perf_counter", module.clock)
    return Weighted(nn.Sequential(module, smooth_net()).double(), [CPU] * len(seconds), lr=LR), module


def test_weights_are_the_best_samples_per_second_of_three_even_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow first call and the disturbed third do not count, and later steps change nothing."""
    trainer, module = timed_trainer(monkeypatch, [1 / 8, 1 / 2])
    for slower in (1, 1, 4):
        assert trainer.weights == (1, 1)
        module.seconds = [slower / 8, slower / 2]
        check_step(trainer, *batch(10))
    assert (module.seen[0], module.seen[1]) == (15, 15)
    assert trainer.weights == (8, 2)
    module.seconds = [10, 10]
    check_step(trainer, *batch(10))
    assert (module.seen[0], module.seen[1]) == (15 + 8, 15 + 2)
    assert trainer.weights == (8, 2)
    trainer.close()


def test_measuring_goes_on_until_every_device_has_had_enough_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, _ = timed_trainer(monkeypatch, [1 / 8, 1 / 8, 1 / 2])
    for n in (2, 2, 2, 9, 9, 2, 2):
        trainer.step(*batch(n), n)
        assert trainer.weights == (1, 1, 1)
    trainer.step(*batch(9), 9)
    assert trainer.weights == (8, 8, 2)
    trainer.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weights": [1, 2, 3]}, r"weights are \[1, 2, 3\] for 2 devices: give one per device, or None to measure"),
        ({"weights": []}, r"weights are \[\] for 2 devices"),
        ({"weights": [1, -1]}, r"weights are \[1, -1\]: they must be finite and at least 0"),
        ({"weights": [0, 0]}, r"weights are \[0, 0\]: .* one above 0"),
        ({"warmup": 0}, "warmup is 0: a speed needs at least 1 timed share per device"),
    ],
)
def test_bad_arguments_are_refused_when_the_trainer_is_made(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Weighted(smooth_net(), [CPU] * 2, lr=LR, **arguments)
