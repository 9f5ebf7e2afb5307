"""The overlapped exchange: it does overlap, it never starts too early, and nothing that breaks makes it hang."""

from __future__ import annotations

import copy
import gc
import os
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from reference.all_reduce import ALL_REDUCE
from reference.all_reduce.traffic import count_traffic
from reference.trainers.scratch import Scratch
from reference.trainers.scratch_overlap import Bucket, ScratchOverlap, make_buckets
from tests.support.strategies import (
    CPU,
    LR,
    Case,
    Gated,
    batch,
    bit_equal,
    cases,
    check_step,
    conv_net,
    smooth_net,
    values,
)

PATIENCE_S = 10.0
"""How long something that must happen is waited for; it is never waited for in full unless the test fails."""
LATE_S = 0.05
"""How long something that must not happen is waited for."""


pytestmark = pytest.mark.usefixtures("one_intra_op_thread")


def nothing() -> None:
    """Do nothing."""


class InBackward(torch.autograd.Function):
    """The identity; its backward calls a function."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, call: Callable[[], None]) -> Tensor:
        ctx.call = call
        return X.view_as(X)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        ctx.call()
        return grad, None


class Calls(nn.Module):
    """The identity; forward and backward each call a function, in the thread of the replica."""

    def __init__(self, forward: Callable[[], None] = nothing, backward: Callable[[], None] = nothing) -> None:
        super().__init__()
        self.in_forward, self.in_backward = forward, backward

    def forward(self, X: Tensor) -> Tensor:
        """Return X (n, ...) as it is."""
        self.in_forward()
        output: Tensor = InBackward.apply(X, self.in_backward)
        return output


def on_replicas(ranks: Collection[int], call: Callable[[], object]) -> Callable[[], None]:
    """Return a function that calls ``call`` in the threads of these replicas only: the oracle runs in the caller's."""
    names = {f"replica-{rank}" for rank in ranks}

    def only_there() -> None:
        if threading.current_thread().name in names:
            call()

    return only_there


# The same gradients.


@pytest.mark.parametrize("bucket_bytes", [1, 300], ids=["a-parameter", "a-few"])
@settings(max_examples=15)
@given(case=cases(conv_net, (1, 6, 6), torch.float64))
def test_steps_equal_one_devices_on_any_split(bucket_bytes: int, case: Case) -> None:
    """1 to 8 devices, 1 to 20 samples: uneven shards and idle devices. In one bucket: `pytest -m correctness`."""
    trainer = ScratchOverlap(case.net, case.devices, lr=LR, bucket_bytes=bucket_bytes)
    for X, y in case.batches:
        check_step(trainer, X, y)
    trainer.close()


@settings(max_examples=15)
@given(case=cases(smooth_net, (6,), torch.float32))
def test_overlap_does_not_change_a_single_bit(case: Case) -> None:
    """The naive sum is taken in the order of the devices, with or without buckets."""
    overlapped, plain = ScratchOverlap(case.net, case.devices, lr=LR), Scratch(case.net, case.devices, lr=LR)
    for X, y in case.batches:
        assert torch.equal(overlapped.step(X, y, len(X)), plain.step(X, y, len(X)))
        assert all(bit_equal(ours, theirs) for ours, theirs in zip(overlapped.replicas, plain.replicas, strict=True))
    overlapped.close()
    plain.close()


def late_net(device_1_waits: Callable[[], Any]) -> nn.Module:
    """Return a net whose backward begins with a wait on device 1."""
    return nn.Sequential(smooth_net(), Calls(backward=on_replicas({1}, device_1_waits))).double()


def test_a_bucket_waits_for_the_last_device() -> None:
    """Device 1 begins its backward when device 0 has long ended."""
    trainer = ScratchOverlap(late_net(lambda: threading.Event().wait(LATE_S)), [CPU] * 2, lr=LR)
    check_step(trainer, *batch(5))
    trainer.close()


def test_a_bucket_that_waits_for_the_first_device_only_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant sums device 0's gradients with what an earlier step has left in device 1's buffers."""
    summed = threading.Event()

    def telling(tensors: Sequence[Tensor]) -> None:
        ALL_REDUCE["naive"](tensors)
        summed.set()

    monkeypatch.setattr(Bucket, "complete", property(lambda bucket: all(rank > 0 for _, rank in bucket.waiting)))
    net = late_net(lambda: summed.wait(PATIENCE_S))
    trainer = ScratchOverlap(net, [CPU] * 2, lr=LR, all_reduce_=telling)
    with pytest.raises(AssertionError):
        check_step(trainer, *batch(5))
    trainer.close()


@pytest.mark.parametrize("name", ALL_REDUCE)
def test_every_all_reduce_of_the_table_serves(name: str) -> None:
    """And `count_traffic` around a step sees what the exchange's thread sends: 2 (k - 1) times the gradients in all."""
    net = smooth_net().double()
    trainer = ScratchOverlap(net, [CPU] * 3, lr=LR, bucket_bytes=300, all_reduce_=ALL_REDUCE[name])
    for n in (7, 1, 5):
        with count_traffic() as traffic:
            check_step(trainer, *batch(n))
        assert sum(traffic.link_bytes.values()) == 2 * 2 * sum(param.nbytes for param in net.parameters())
    trainer.close()


def test_parameters_that_some_or_no_shards_use() -> None:
    """Zeros from the devices without one, not what the step before has left; untouched where there is none at all."""
    torch.manual_seed(0)
    net = Gated().double()
    exchanged: list[int] = []

    def telling(tensors: Sequence[Tensor]) -> None:
        exchanged.append(tensors[0].numel())
        ALL_REDUCE["naive"](tensors)

    trainer = ScratchOverlap(net, [CPU] * 3, lr=LR, bucket_bytes=1, all_reduce_=telling)
    X, y = batch(6)
    for first_features in ([1, 1, 1, 1, 1, 1], [-1, -1, -1, -1, 1, 1], [1, 1, -1, -1, -1, -1], [-1] * 6):
        X[:, 0] = torch.tensor(first_features)
        before = values(trainer.replicas[0])
        check_step(trainer, X, y)
        changed = [not torch.equal(a, b) for a, b in zip(before, values(trainer.replicas[0]), strict=True)]
        assert changed == [True] * 2 + [1 in first_features] * 2 + [False] * 2
        assert len(exchanged) == sum(changed), "what nobody uses needs no exchange"
        exchanged.clear()
    trainer.close()


def test_a_tied_parameter_is_exchanged_once_with_all_its_terms() -> None:
    """Autograd adds up what its places contribute before the hook hears of it."""
    first, last = nn.Linear(6, 6), nn.Linear(6, 6)
    last.weight = first.weight
    net = nn.Sequential(first, nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), last).double()
    trainer = ScratchOverlap(net, [CPU] * 3, lr=LR, bucket_bytes=1)
    for n in (7, 1, 5):
        check_step(trainer, *batch(n))
    trainer.close()


def test_parameters_may_be_frozen_and_unfrozen_between_steps() -> None:
    """A frozen one stays as it is and takes part afterwards, also if it was frozen when the trainer was made."""
    net = nn.Sequential(smooth_net(), nn.Linear(4, 4)).double()
    net[0].requires_grad_(False)
    trainer = ScratchOverlap(net, [CPU] * 2, lr=LR)
    for frozen in ([0, 1, 2, 3], [2], []):
        for replica in trainer.replicas:
            for number, param in enumerate(replica.parameters()):
                param.requires_grad_(number not in frozen)
        before, (X, y) = values(trainer.replicas[0]), batch(5)
        trainer.step(X, y, 5)
        unchanged = [torch.equal(a, b) for a, b in zip(before, values(trainer.replicas[0]), strict=True)]
        assert [number for number, same in enumerate(unchanged) if same] == frozen
        assert bit_equal(*trainer.replicas)
    check_step(trainer, *batch(5))
    trainer.close()


# The overlap.


@pytest.mark.parametrize(
    ("bucket_bytes", "wait_s", "overlaps"), [(1, PATIENCE_S, True), (1 << 20, LATE_S, False)], ids=["buckets", "one"]
)
def test_the_last_layer_is_exchanged_while_the_first_one_is_computed(
    bucket_bytes: int, wait_s: float, overlaps: bool
) -> None:
    """The first layer's backward does not end until an exchange has begun; with a single bucket none can begin."""
    begun, first_layer_saw = threading.Event(), []
    exchanged: list[int] = []

    def telling(tensors: Sequence[Tensor]) -> None:
        exchanged.append(tensors[0].numel())
        begun.set()
        ALL_REDUCE["naive"](tensors)

    slow = Calls(backward=on_replicas(range(3), lambda: first_layer_saw.append(begun.wait(wait_s))))
    net = nn.Sequential(nn.Linear(6, 5), slow, nn.Tanh(), nn.Linear(5, 4)).double()
    trainer = ScratchOverlap(net, [CPU] * 3, lr=LR, bucket_bytes=bucket_bytes, all_reduce_=telling)
    check_step(trainer, *batch(7))
    assert first_layer_saw == [overlaps] * 3
    # Within a layer autograd is free in the order of weight and bias.
    assert [sorted(exchanged[:2]), sorted(exchanged[2:])] == ([[4, 20], [5, 30]] if overlaps else [[59], []])
    trainer.close()


def test_an_idle_device_holds_no_bucket_up() -> None:
    """Its zeros are there from the beginning."""
    begun, saw = threading.Event(), []

    def telling(tensors: Sequence[Tensor]) -> None:
        begun.set()
        ALL_REDUCE["naive"](tensors)

    slow = Calls(backward=on_replicas(range(4), lambda: saw.append(begun.wait(PATIENCE_S))))
    net = nn.Sequential(nn.Linear(6, 5), slow, nn.Linear(5, 4)).double()
    trainer = ScratchOverlap(net, [CPU] * 4, lr=LR, bucket_bytes=1, all_reduce_=telling)
    check_step(trainer, *batch(2))
    assert saw == [True] * 2
    trainer.close()


def test_buckets_hold_neighbours_of_one_dtype_from_the_last_parameter_on() -> None:
    """At most so many bytes together; a larger parameter is alone."""
    net = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 3), nn.Linear(3, 10), nn.Linear(1, 1).double())
    net[1].bias.requires_grad_(False)
    buckets = make_buckets([net, copy.deepcopy(net)], bucket_bytes=64)
    # Bytes: 3.bias 8, 3.weight 8; then float32: 2.bias 40, 2.weight 120, 1.weight 24, 0.bias 8, 0.weight 8.
    names = [["3.bias", "3.weight"], ["2.bias"], ["2.weight"], ["1.weight", "0.bias", "0.weight"]]
    assert [bucket.names for bucket in buckets] == names
    assert [[len(flat) for flat in bucket.flats] for bucket in buckets] == [[n, n] for n in (2, 10, 30, 10)]
    assert [flat.dtype for flat in buckets[0].flats + buckets[1].flats] == [torch.float64] * 2 + [torch.float32] * 2
    buckets[3].flats[1].copy_(torch.arange(10.0))
    assert [views[1].tolist() for views in buckets[3].views] == [[[0, 1], [2, 3], [4, 5]], [6, 7], [[8], [9]]]


# What breaks.


def failing_once() -> Callable[..., None]:
    """Return a function that raises when it is called for the first time."""
    calls: list[None] = []

    def fail(*_: object) -> None:
        calls.append(None)
        if len(calls) == 1:
            raise FloatingPointError("this once")

    return fail


@pytest.mark.parametrize("where", ["forward", "backward", "exchange"])
def test_an_error_reaches_the_caller_and_the_next_step_is_right(where: str) -> None:
    """On one device of three, in the middle of the net: some buckets are exchanged already, others never come."""
    fail = failing_once()
    calls = Calls(**{where: on_replicas({1}, fail)}) if where != "exchange" else Calls()
    net = nn.Sequential(nn.Linear(6, 5), calls, nn.Linear(5, 4)).double()

    def all_reduce_(tensors: Sequence[Tensor]) -> None:
        if where == "exchange":
            fail()
        ALL_REDUCE["naive"](tensors)

    trainer = ScratchOverlap(net, [CPU] * 3, lr=LR, bucket_bytes=1, all_reduce_=all_reduce_)
    with pytest.raises(FloatingPointError, match="this once"):
        trainer.step(*batch(7), 7)
    assert all(bit_equal(replica, net) for replica in trainer.replicas), "half a step has been taken"
    check_step(trainer, *batch(7))
    trainer.close()


def test_an_error_waits_for_the_exchange_that_is_under_way() -> None:
    """The next step would write into buffers that are being summed."""
    begun, ended = threading.Event(), []

    def slow(tensors: Sequence[Tensor]) -> None:
        begun.set()
        threading.Event().wait(LATE_S)
        ended.append(tensors[0].numel())

    def fail() -> None:
        assert begun.wait(PATIENCE_S)
        raise FloatingPointError("device 1")

    net = nn.Sequential(nn.Linear(6, 5), Calls(backward=on_replicas({1}, fail)), nn.Linear(5, 4)).double()
    trainer = ScratchOverlap(net, [CPU] * 2, lr=LR, bucket_bytes=1, all_reduce_=slow)
    with pytest.raises(FloatingPointError, match="device 1"):
        trainer.step(*batch(4), 4)
    assert sorted(ended) == [4, 20]
    trainer.close()


def test_gradients_of_a_step_that_broke_off_do_not_count() -> None:
    """Here those of a device that had finished its backward."""
    net = nn.Sequential(smooth_net(), Calls(backward=on_replicas({1}, failing_once()))).double()
    trainer = ScratchOverlap(net, [CPU] * 2, lr=LR)
    with pytest.raises(FloatingPointError, match="this once"):
        trainer.step_unsynced(*batch(4), 4)
    check_step(trainer, *batch(4))
    trainer.close()


class Twice(nn.Module):
    """A layer used within a checkpoint and outside of it."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.shared, self.reentrant = nn.Linear(6, 4), nn.Linear(4, 4), reentrant

    def forward(self, X: Tensor) -> Tensor:
        """Map X (n, 6) to scores (n, 4)."""
        output: Tensor = self.shared(checkpoint(self.shared, self.first(X), use_reentrant=self.reentrant))
        return output


def test_a_gradient_that_comes_in_two_parts_is_refused() -> None:
    """Re-entrant checkpointing runs a backward of its own, so the first part looks like the whole."""
    trainer = ScratchOverlap(Twice(reentrant=True).double(), [CPU] * 2, lr=LR)
    message = r"parameter 'shared\.\w+' got a gradient on device \d twice in one backward.*use_reentrant=False"
    with pytest.raises(RuntimeError, match=message):
        trainer.step(*batch(4), 4)
    trainer.close()
    trainer = ScratchOverlap(Twice(reentrant=False).double(), [CPU] * 2, lr=LR)
    check_step(trainer, *batch(4))
    trainer.close()


@pytest.mark.parametrize("forget", [False, True], ids=["close", "del"])
def test_threads_end_with_close_or_with_the_trainer(forget: bool) -> None:
    """Hooks live as long as their parameters: they must not keep a forgotten trainer alive."""
    before = set(threading.enumerate())
    trainer = ScratchOverlap(smooth_net().double(), [CPU] * 2, lr=LR)
    trainer.step(*batch(4), 4)
    net = weakref.ref(trainer.replicas[1])
    threads = set(threading.enumerate()) - before
    assert sorted(thread.name for thread in threads) == ["exchange_0", "replica-0", "replica-1"]
    if forget:
        del trainer
        gc.collect()
        assert net() is None
    else:
        trainer.close()
        trainer.close()
        with pytest.raises(RuntimeError, match="closed: make a new one"):
            trainer.step(*batch(4), 4)
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_replicas_outlive_their_trainer() -> None:
    """As plain modules, which can be copied and trained on."""
    trainer = ScratchOverlap(smooth_net(), [CPU] * 2, lr=LR)
    (net, _) = trainer.replicas
    del trainer
    gc.collect()
    copy.deepcopy(net)(torch.ones(1, 6)).sum().backward()
    net(torch.ones(1, 6)).sum().backward()
    assert all(param.grad is not None for param in net.parameters())


def test_the_exchange_has_one_intra_op_thread_and_leaves_the_callers_alone() -> None:
    """It may be on any core that the caller may be on; a second intra-op thread would wait for a replica's."""
    before, cores, seen = torch.get_num_threads(), os.sched_getaffinity(0), []

    def look(*_: object) -> None:
        seen.append((torch.get_num_threads(), os.sched_getaffinity(0)))

    torch.set_num_threads(2)
    try:
        trainer = ScratchOverlap(smooth_net().double(), [CPU] * 2, lr=LR, all_reduce_=look)
        trainer.step(*batch(4), 4)
        later = threading.Thread(target=look)
        later.start()
        later.join()
    finally:
        torch.set_num_threads(before)
    assert seen == [(1, cores), (2, cores)]
    trainer.close()


def test_one_device_needs_no_exchange() -> None:
    """World size 1 is the identity, and has no thread."""
    before = set(threading.enumerate())
    trainer = ScratchOverlap(conv_net().double(), [CPU], lr=LR, all_reduce_=failing_once())
    assert set(threading.enumerate()) <= before
    check_step(trainer, torch.randn(3, 1, 6, 6, dtype=torch.float64), torch.randint(4, (3,)))
    trainer.close()


def test_devices_of_two_kinds_are_reported() -> None:
    """Another trainer takes them."""
    with pytest.raises(ValueError, match=r"devices are of 2 kinds, \['cpu', 'cuda'\]: .* the trainer `weighted`"):
        ScratchOverlap(smooth_net(), [CPU, torch.device("cuda:0")], lr=LR)


def test_a_bucket_without_room_is_reported() -> None:
    """There is no such thing."""
    with pytest.raises(ValueError, match="bucket_bytes is 0: a bucket must hold at least 1 byte"):
        ScratchOverlap(smooth_net(), [CPU] * 2, lr=LR, bucket_bytes=0)
