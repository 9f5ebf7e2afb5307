"""The overlapped exchange: it overlaps, it never starts too early, and errors do not make it hang."""

from __future__ import annotations

import copy
import gc
import os
import threading
import weakref
from collections.abc import Callable, Collection, Sequence

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from reference.all_reduce import ALL_REDUCE
from reference.all_reduce.traffic import count_traffic
from reference.trainers.scratch import Scratch
from reference.trainers.scratch_overlap import ScratchOverlap, make_buckets
from tests.support.strategies import (
    CPU,
    LR,
    Case,
    batch,
    bit_equal,
    cases,
    check_step,
    conv_net,
    smooth_net,
    values,
)

WAIT_S = 10.0
"""The longest wait for something that must happen."""
LATE_S = 0.05
"""The wait for something that must not happen."""


pytestmark = pytest.mark.usefixtures("one_intra_op_thread")


class Calls(nn.Module):
    """The identity; forward and backward each call a function, in the thread of the replica."""

    def __init__(self, forward: Callable[[], None] = lambda: None, backward: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.in_forward, self.in_backward = forward, backward

    def forward(self, X: Tensor) -> Tensor:
        self.in_forward()
        output = X.view_as(X)
        if output.requires_grad:
            output.register_hook(lambda grad: self.in_backward())
        return output


def on_replicas(ranks: Collection[int], call: Callable[[], object]) -> Callable[[], None]:
    """Return a function that calls ``call`` in the threads of these replicas only: the oracle runs in the caller's."""
    names = {f"replica-{rank}" for rank in ranks}

    def only_there() -> None:
        if threading.current_thread().name in names:
            call()

    return only_there


@pytest.mark.parametrize("bucket_bytes", [1, 300, 1 << 20], ids=["a-parameter", "a-few", "all"])
@settings(max_examples=15)
@given(case=cases(conv_net, (1, 6, 6), torch.float64) | cases(smooth_net, (6,), torch.float32))
def test_a_step_is_that_of_the_trainer_without_overlap_to_the_last_bit(bucket_bytes: int, case: Case) -> None:
    """The naive all-reduce sums in the order of the devices, with or without buckets."""
    overlapped = ScratchOverlap(case.net, case.devices, lr=LR, bucket_bytes=bucket_bytes)
    plain = Scratch(case.net, case.devices, lr=LR)
    for X, y in case.batches:
        assert torch.equal(overlapped.step(X, y, len(X)), plain.step(X, y, len(X)))
        assert all(bit_equal(ours, theirs) for ours, theirs in zip(overlapped.replicas, plain.replicas, strict=True))
    overlapped.close()
    plain.close()


def test_a_bucket_waits_for_the_last_device() -> None:
    """Device 1 begins its backward after device 0 has ended its own."""
    waits = Calls(backward=on_replicas({1}, lambda: threading.Event().wait(LATE_S)))
    trainer = ScratchOverlap(nn.Sequential(smooth_net(), waits).double(), [CPU] * 2, lr=LR)
    check_step(trainer, *batch(5))
    trainer.close()


@pytest.mark.parametrize("name", ALL_REDUCE)
def test_every_all_reduce_of_the_table_can_exchange(name: str) -> None:
    """`count_traffic` around a step counts what the exchange's thread sends: 2 (k - 1) times the gradients in all."""
    net = smooth_net().double()
    trainer = ScratchOverlap(net, [CPU] * 3, lr=LR, bucket_bytes=300, all_reduce_=ALL_REDUCE[name])
    for n in (7, 1, 5):
        with count_traffic() as traffic:
            check_step(trainer, *batch(n))
        assert sum(traffic.link_bytes.values()) == 2 * 2 * sum(param.nbytes for param in net.parameters())
    trainer.close()


def test_parameters_may_be_frozen_and_unfrozen_between_steps() -> None:
    """A parameter may be frozen when the trainer is made, and is trained once it is unfrozen."""
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


@pytest.mark.parametrize(
    ("bucket_bytes", "wait_s", "overlaps", "n"),
    [(1, WAIT_S, True, 7), (1, WAIT_S, True, 2), (1 << 20, LATE_S, False, 7)],
    ids=["buckets", "buckets, one device idle", "one bucket"],
)
def test_the_last_layer_is_exchanged_while_the_first_one_is_computed(
    bucket_bytes: int, wait_s: float, overlaps: bool, n: int
) -> None:
    """The first layer's backward waits until an exchange has begun; with a single bucket none can begin."""
    begun, first_layer_saw = threading.Event(), []
    exchanged: list[int] = []

    def telling(tensors: Sequence[Tensor]) -> None:
        exchanged.append(tensors[0].numel())
        begun.set()
        ALL_REDUCE["naive"](tensors)

    slow = Calls(backward=on_replicas(range(3), lambda: first_layer_saw.append(begun.wait(wait_s))))
    net = nn.Sequential(nn.Linear(6, 5), slow, nn.Tanh(), nn.Linear(5, 4)).double()
    trainer = ScratchOverlap(net, [CPU] * 3, lr=LR, bucket_bytes=bucket_bytes, all_reduce_=telling)
    check_step(trainer, *batch(n))
    assert first_layer_saw == [overlaps] * min(n, 3)
    # Within a layer autograd is free in the order of weight and bias.
    assert [sorted(exchanged[:2]), sorted(exchanged[2:])] == ([[4, 20], [5, 30]] if overlaps else [[59], []])
    trainer.close()


def test_buckets_hold_neighbours_of_one_dtype_from_the_last_parameter_on() -> None:
    """A bucket has at most `bucket_bytes`; a parameter that is larger has a bucket to itself."""
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


def failing_once() -> Callable[..., None]:
    calls: list[None] = []

    def fail(*_: object) -> None:
        calls.append(None)
        if len(calls) == 1:
            raise FloatingPointError("this once")

    return fail


@pytest.mark.parametrize("where", ["forward", "backward", "exchange"])
def test_an_error_reaches_the_caller_and_the_next_step_is_right(where: str) -> None:
    """The error is on one device of three, when some buckets are exchanged and others are not."""
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
    """Otherwise the next step would write into buffers that are being summed."""
    begun, ended = threading.Event(), []

    def slow(tensors: Sequence[Tensor]) -> None:
        begun.set()
        threading.Event().wait(LATE_S)
        ended.append(tensors[0].numel())

    def fail() -> None:
        assert begun.wait(WAIT_S)
        raise FloatingPointError("device 1")

    net = nn.Sequential(nn.Linear(6, 5), Calls(backward=on_replicas({1}, fail)), nn.Linear(5, 4)).double()
    trainer = ScratchOverlap(net, [CPU] * 2, lr=LR, bucket_bytes=1, all_reduce_=slow)
    with pytest.raises(FloatingPointError, match="device 1"):
        trainer.step(*batch(4), 4)
    assert sorted(ended) == [4, 20]
    trainer.close()


class Twice(nn.Module):
    """A layer used within a checkpoint and outside of it."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.shared, self.reentrant = nn.Linear(6, 4), nn.Linear(4, 4), reentrant

    def forward(self, X: Tensor) -> Tensor:
        return self.shared(checkpoint(self.shared, self.first(X), use_reentrant=self.reentrant))


def test_a_gradient_that_comes_in_two_parts_is_refused() -> None:
    """Re-entrant checkpointing runs its own backward, whose gradient looks like the whole one."""
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
    """Hooks must not keep a dropped trainer alive; its replicas stay plain modules that can be copied and trained."""
    before = set(threading.enumerate())
    trainer = ScratchOverlap(smooth_net().double(), [CPU] * 2, lr=LR)
    trainer.step(*batch(4), 4)
    net, first = weakref.ref(trainer.replicas[1]), trainer.replicas[0]
    threads = set(threading.enumerate()) - before
    assert sorted(thread.name for thread in threads) == ["exchange_0", "replica-0", "replica-1"]
    if forget:
        del trainer
        gc.collect()
        assert net() is None
        copy.deepcopy(first)(torch.ones(1, 6).double()).sum().backward()
    else:
        trainer.close()
        trainer.close()
        with pytest.raises(RuntimeError, match="closed: make a new one"):
            trainer.step(*batch(4), 4)
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()


def test_the_exchange_has_one_intra_op_thread_and_leaves_the_callers_alone() -> None:
    """It may run on any of the caller's cores; a second intra-op thread would wait for a replica's."""
    before, cores, seen = torch.get_num_threads(), os.sched_getaffinity(0), []

    def note(*_: object) -> None:
        seen.append((torch.get_num_threads(), os.sched_getaffinity(0)))

    torch.set_num_threads(2)
    try:
        trainer = ScratchOverlap(smooth_net().double(), [CPU] * 2, lr=LR, all_reduce_=note)
        trainer.step(*batch(4), 4)
        later = threading.Thread(target=note)
        later.start()
        later.join()
    finally:
        torch.set_num_threads(before)
    assert seen == [(1, cores), (2, cores)]
    trainer.close()


def test_one_device_has_neither_an_exchange_nor_a_thread() -> None:
    before = set(threading.enumerate())
    trainer = ScratchOverlap(conv_net().double(), [CPU], lr=LR, all_reduce_=failing_once())
    assert set(threading.enumerate()) <= before
    check_step(trainer, torch.randn(3, 1, 6, 6, dtype=torch.float64), torch.randint(4, (3,)))
    trainer.close()


def test_bad_arguments_are_reported() -> None:
    with pytest.raises(ValueError, match=r"devices are of 2 kinds, \['cpu', 'cuda'\]: .* the trainer `weighted`"):
        ScratchOverlap(smooth_net(), [CPU, torch.device("cuda:0")], lr=LR)
