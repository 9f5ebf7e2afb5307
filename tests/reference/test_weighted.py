"""Shares by weight: exact gradients for any weights, and weights that follow the devices' real speeds."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from reference.replicas import PerDevice
from reference.trainers.weighted import Weighted
from tests.support.strategies import CPU, LR, Case, batch, bit_equal, cases, check_step, conv_net, smooth_net, values

OTHER_KIND = torch.device("meta")
"""Stands for a device that is not a CPU where no kernel is run."""


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
        """Return X (n, ...) as it is."""
        self.seen[rank_here()] += len(X)
        return X


class Sleeps(Counted):
    """Takes its time for each sample: so many seconds on the device of that number."""

    def __init__(self, seconds: Sequence[float]) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, X: Tensor) -> Tensor:
        """Return X (n, ...) as it is."""
        time.sleep(len(X) * self.seconds[rank_here()])
        return super().forward(X)


# Gradients.


@settings(max_examples=40)
@given(case=cases(conv_net, (1, 6, 6), torch.float64), data=st.data())
def test_steps_equal_one_devices_for_any_weights(case: Case, data: st.DataObject) -> None:
    """1 to 8 devices, 1 to 20 samples, weights of 0 among them, also for the first device; or measured ones."""
    one = st.floats(0, 100) | st.just(0.0)
    weights = data.draw(st.none() | st.lists(one, min_size=case.world_size, max_size=case.world_size).filter(any))
    trainer = Weighted(case.net, case.devices, lr=LR, weights=weights, warmup=1)
    for X, y in case.batches:
        check_step(trainer, X, y)
    trainer.close()


class MeanOfShardMeans(Weighted):
    """Wrong: every share counts alike, whatever its size."""

    def _backward(self, X: Tensor, y: Tensor) -> Tensor:
        loss = super()._backward(X, y)
        for params, weight in zip(self.device_params, self.weights, strict=True):
            for param in params:
                if param.grad is not None:
                    param.grad *= sum(self.weights) / len(self.weights) / weight
        return loss


@pytest.mark.parametrize(("weights", "wrong"), [([1, 1], False), ([3, 1], True)])
def test_a_mean_of_shard_means_is_caught_when_shares_are_unequal(weights: list[float], wrong: bool) -> None:
    """With equal shares it is right, which is why it survives so often."""
    trainer = MeanOfShardMeans(smooth_net().double(), [CPU] * 2, lr=LR, weights=weights)
    if wrong:
        with pytest.raises(AssertionError):
            check_step(trainer, *batch(8))
    else:
        check_step(trainer, *batch(8))
    trainer.close()


@pytest.mark.parametrize("weights", [(0, 3, 1), (3, 0, 1), (1, 0, 0)])
def test_a_device_of_weight_0_gets_nothing_and_follows_all_the_same(weights: tuple[float, ...]) -> None:
    """Also the first one, which sums and updates for the others."""
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
    """The other device had finished its share."""
    trainer = Weighted(smooth_net().double(), [CPU] * 2, lr=LR, weights=[1, 1])
    X, y = batch(4)
    with pytest.raises(IndexError, match="Target 9 is out of bounds"):
        trainer.step(X, torch.tensor([0, 1, 2, 9]), 4)
    check_step(trainer, X, y)
    trainer.close()


# Measured weights.


class Clock:
    """A clock for each device, which a module in the net moves on."""

    def __init__(self) -> None:
        self.now_s: Counter[int] = Counter()

    def __call__(self) -> float:
        return self.now_s[rank_here()]


class TakesTime(Counted):
    """Moves the clock of its device by so many seconds a sample, and by one more at its first call there."""

    def __init__(self, clock: Clock, seconds: Sequence[float]) -> None:
        super().__init__()
        self.clock, self.seconds = clock, seconds

    def forward(self, X: Tensor) -> Tensor:
        """Return X (n, ...) as it is."""
        first_call = rank_here() not in self.seen
        self.clock.now_s[rank_here()] += len(X) * self.seconds[rank_here()] + first_call
        return super().forward(X)


def timed_trainer(monkeypatch: pytest.MonkeyPatch, seconds: Sequence[float]) -> tuple[Weighted, TakesTime]:
    """Return a trainer whose devices take so many seconds a sample by clocks of their own, and the module in it."""
    clock = Clock()
    monkeypatch.setattr("reference.trainers.weighted.perf_counter", clock)
    module = TakesTime(clock, seconds)
    return Weighted(nn.Sequential(module, smooth_net()).double(), [CPU] * len(seconds), lr=LR), module


def test_weights_are_the_best_samples_per_second_of_three_even_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the slow first call counts nor the disturbed third; after that nothing changes any more."""
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


def test_measuring_goes_on_until_every_device_has_had_its_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that was idle has not shown its speed."""
    trainer, _ = timed_trainer(monkeypatch, [1 / 8, 1 / 8, 1 / 2])
    for n in (2, 2, 2, 9, 9, 2, 2):
        trainer.step(*batch(n), n)
        assert trainer.weights == (1, 1, 1)
    trainer.step(*batch(9), 9)
    assert trainer.weights == (8, 8, 2)
    trainer.close()


def test_measured_weights_follow_real_speeds() -> None:
    """A sleep is never shorter than asked for, so the slow device's speed has a ceiling of 100 samples/s."""
    module = Sleeps([0.001, 0.01])
    trainer = Weighted(nn.Sequential(module, smooth_net()).double(), [CPU] * 2, lr=LR)
    for _ in range(3):
        trainer.step(*batch(10), 10)
    fast, slow = trainer.weights
    assert slow <= 100
    assert fast > 2 * slow
    before = module.seen.copy()
    trainer.step(*batch(30), 30)
    fast_share, slow_share = (module.seen[rank] - before[rank] for rank in range(2))
    assert fast_share > slow_share
    assert fast_share + slow_share == 30
    trainer.close()


# Devices of several kinds, as far as a CPU can show it.


def test_a_device_of_another_kind_works_beside_the_cpu_threads() -> None:
    """It is served by the caller, whose current streams hold there, while the CPU devices are busy."""
    devices = PerDevice([OTHER_KIND, CPU, OTHER_KIND, CPU])
    pairs = [threading.Barrier(2), threading.Barrier(2)]

    def meet(rank: int) -> int:
        pairs[rank // 2].wait(timeout=10)
        return rank_here()

    assert devices.map(meet, range(4)) == [-1, 1, -1, 3]
    devices.close()


def test_an_error_on_a_device_of_another_kind_is_raised_once_the_cpu_has_ended() -> None:
    """Otherwise a thread would go on with tensors that the caller has given up."""
    devices, ended = PerDevice([OTHER_KIND, CPU]), []

    def work(rank: int) -> None:
        if rank == 0:
            raise KeyError("the other kind")
        time.sleep(0.05)
        ended.append(rank)

    with pytest.raises(KeyError, match="the other kind"):
        devices.map(work, range(2))
    assert ended == [1]
    devices.close()


def test_a_single_cpu_device_beside_another_kind_has_a_core_of_its_own() -> None:
    """And the caller keeps its number of intra-op threads."""
    before, devices = torch.get_num_threads(), PerDevice([OTHER_KIND, CPU])
    assert devices.map(lambda rank: torch.get_num_threads(), range(2)) == [before, 1]
    devices.close()


# What is refused.


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, 2, 3], r"weights are \[1, 2, 3\] for 2 devices: give one a device, or None to measure"),
        ([], r"weights are \[\] for 2 devices"),
        ([1, -1], r"weights are \[1, -1\]: they must be finite and at least 0"),
        ([1, float("nan")], r"weights are \[1, nan\]"),
        ([1, float("inf")], r"weights are \[1, inf\]"),
        ([0, 0], r"weights are \[0, 0\]: .* one above 0"),
    ],
)
def test_bad_weights_are_refused_when_the_trainer_is_made(weights: list[float], message: str) -> None:
    """Not at the first step."""
    with pytest.raises(ValueError, match=message):
        Weighted(smooth_net(), [CPU] * 2, lr=LR, weights=weights)


def test_a_warm_up_of_nothing_is_refused() -> None:
    """It would leave no speed to weigh by."""
    with pytest.raises(ValueError, match="warmup is 0: a speed needs at least 1 timed share a device"):
        Weighted(smooth_net(), [CPU] * 2, lr=LR, warmup=0)


def test_a_closed_trainer_is_reported() -> None:
    """Its threads have ended."""
    trainer = Weighted(smooth_net().double(), [CPU] * 2, lr=LR)
    trainer.close()
    with pytest.raises(RuntimeError, match="this PerDevice is closed: make a new one"):
        trainer.step(*batch(4), 4)
