"""Gluon's trainer: a step in its parts, stale gradients, and orders of calls that would let replicas drift."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from reference.all_reduce import ALL_REDUCE
from reference.gluon import Net, Trainer
from reference.scatter import weighted_sizes
from reference.trainers.gluon import GluonTrainer
from reference.trainers.single import Single
from tests.support.gluon_nets import FIRST, SECOND, backward, minibatch, net_on, synced
from tests.support.strategies import (
    CPU,
    LR,
    Case,
    Gated,
    bit_equal,
    cases,
    smooth_net,
    update_bound,
    values,
    within_bound,
)

pytestmark = pytest.mark.usefixtures("one_intra_op_thread")


@pytest.mark.parametrize("name", ALL_REDUCE)
@pytest.mark.parametrize("apart", [False, True], ids=["step", "allreduce_grads and update"])
def test_a_step_is_the_sum_over_the_devices_divided_by_the_batch(name: str, apart: bool) -> None:
    """In one call and in two, with every all-reduce; compared with one device by the derived bound."""
    module, (X, y) = smooth_net(), minibatch(7)
    net, oracle = net_on(3, module), Single(module, [CPU], lr=LR)
    trainer = Trainer(net, LR, all_reduce_=ALL_REDUCE[name])
    backward(net, X, y)
    if apart:
        trainer.allreduce_grads()
        trainer.update(7)
    else:
        trainer.step(7)
    oracle.step(X, y, 7)
    assert synced(net)
    assert within_bound(net.replicas[0], oracle.net, update_bound(module, X, LR))


@settings(max_examples=25)
@given(case=cases(smooth_net, (6,), torch.float64, max_steps=1), data=st.data())
def test_a_weighted_split_leaves_the_gradient_as_it_is(case: Case, data: st.DataObject) -> None:
    """Devices of unequal speed get unequal shards."""
    (X, y), net = case.batches[0], net_on(case.world_size, case.net)
    weights = data.draw(st.lists(st.integers(0, 9), min_size=case.world_size, max_size=case.world_size).filter(any))
    oracle = Single(case.net, [CPU], lr=LR)
    backward(net, X, y, weighted_sizes(len(X), weights))
    Trainer(net, LR).step(len(X))
    oracle.step(X, y, len(X))
    assert synced(net)
    assert within_bound(net.replicas[0], oracle.net, update_bound(case.net, X, LR))


# Orders of calls.

CALLS: dict[str, Callable[[Net, Trainer], object]] = {
    "backward": lambda net, _: backward(net, *minibatch(4)),
    "backward of others": lambda net, _: backward(net, *minibatch(4, seed=1)),
    "backward on 0": lambda net, _: F.cross_entropy(net(minibatch(4)[0], 0), minibatch(4)[1]).backward(),
    "backward on 1": lambda net, _: F.cross_entropy(net(minibatch(4)[0], 1), minibatch(4)[1]).backward(),
    "zeros on 1": lambda net, _: (0 * net(minibatch(4)[0], 1).sum()).backward(),
    "sum": lambda _, trainer: trainer.allreduce_grads(),
    "update": lambda _, trainer: trainer.update(4),
    "update ignoring": lambda _, trainer: trainer.update(4, ignore_stale_grad=True),
    "step": lambda _, trainer: trainer.step(4),
    "step ignoring": lambda _, trainer: trainer.step(4, ignore_stale_grad=True),
    "clear": lambda net, _: net.zero_grad(),
    "clear 1": lambda net, _: net.replicas[1].zero_grad(),
    "torch clears": lambda net, _: [replica.zero_grad() for replica in net.replicas],
}


def follow(calls: str, net: Net, trainer: Trainer) -> None:
    """Make these calls; an error of one in brackets is expected."""
    for call in calls.split(", "):
        with pytest.raises(RuntimeError) if call.startswith("[") else nullcontext():
            CALLS[call.strip("[]")](net, trainer)


@pytest.mark.parametrize(
    ("k", "calls", "as_if"),
    [
        (3, "backward, sum, step", "backward, step"),  # so gradients can be clipped between the sum and the update
        (3, "backward, sum, sum, step", "backward, step"),
        (1, "backward, update", "backward, step"),  # one device has nothing to sum
        (2, "backward of others, sum, clear, backward, step", "backward, step"),  # as when a gradient has overflowed
        (2, "backward of others, sum, torch clears, backward, step", "backward, step"),
        # MXNet sums what a stale device still holds from the step before; here a stale gradient counts as zeros.
        (2, "backward, step, backward on 0, step ignoring", "backward, step, backward on 0, zeros on 1, step"),
        (2, "backward, sum, torch clears, backward on 0, step ignoring", "backward on 0, zeros on 1, step"),
        (2, "backward, sum, [backward on 1], clear, backward, step", "backward, step"),
    ],
)
def test_calls_in_any_order_take_the_right_step(k: int, calls: str, as_if: str) -> None:
    module = smooth_net()
    net, plain = net_on(k, module), net_on(k, module)
    follow(calls, net, Trainer(net, LR))
    follow(as_if, plain, Trainer(plain, LR))
    assert synced(net)
    assert bit_equal(net.replicas[0], plain.replicas[0])
    assert not bit_equal(net.replicas[0], module)


STALE = r"the gradient of parameter '0\.weight' on {} is stale, no backward has written it since the last update"
BOTH = r"cpu \(number 0\), cpu \(number 1\)"


@pytest.mark.parametrize(
    ("calls", "last", "message"),
    [
        ("clear", "step", STALE.format(BOTH)),
        ("backward, step", "update", STALE.format(BOTH)),
        ("backward, step, backward on 0", "step", STALE.format(r"cpu \(number 1\)")),
        ("backward, sum, clear", "update", STALE.format(BOTH)),
        ("backward, sum, torch clears, backward on 0", "step", STALE.format(r"cpu \(number 1\)")),
        ("backward", "update", "is not summed over its 2 devices: call allreduce_grads before update, or step"),
        ("backward, sum, clear 1", "update ignoring", "is not summed over its 2 devices"),
        ("backward, sum, [backward on 1]", "update", "is not summed over its 2 devices"),
        ("backward, sum, [backward on 1]", "step", "a sum on some of its 2 devices and a gradient of their own on oth"),
        ("backward, sum", "backward on 1", r"added to the summed gradient of parameter '.*' on cpu \(number 1\)"),
    ],
)
def test_calls_that_would_let_replicas_drift_are_reported_and_change_nothing(
    calls: str, last: str, message: str
) -> None:
    net = net_on(2)
    trainer = Trainer(net, LR)
    follow(calls, net, trainer)
    before = values(net.replicas[0])
    with pytest.raises(RuntimeError, match=message):
        follow(last, net, trainer)
    assert synced(net)
    assert all(torch.equal(p, q) for p, q in zip(before, values(net.replicas[0]), strict=True))


def test_a_parameter_that_one_device_did_not_use_is_reported_alone() -> None:
    net, (X, y) = Net(Gated(), [FIRST, SECOND]), minibatch(4)
    X[:2, 0], X[2:, 0] = -1, 1
    backward(net, X, y)
    with pytest.raises(RuntimeError, match=re.escape("'extra.weight' on cpu:0 is stale")):
        Trainer(net, LR).step(4)


def test_ignoring_stale_gradients_keeps_replicas_equal() -> None:
    """A device without a gradient gets the others' sum; a parameter that is stale everywhere stays as it is.

    Leaving out the stale copy alone, as MXNet does, lets the replicas drift apart.
    """
    module, (X, y) = Gated().double(), minibatch(4)
    X = X.double()
    X[:2, 0], X[2:, 0] = -1, 1
    net, drifting, oracle = net_on(2, module), net_on(2, module), Single(module, [CPU], lr=LR)
    oracle.step(X, y, 4)
    backward(net, X, y)
    Trainer(net, LR).step(4, ignore_stale_grad=True)
    assert synced(net)
    assert within_bound(net.replicas[0], oracle.net, update_bound(module, X, LR))
    assert torch.equal(net.replicas[0].never.weight, module.never.weight)
    backward(drifting, X, y)
    Trainer(drifting, LR, all_reduce_=None).update(4, ignore_stale_grad=True)
    assert torch.equal(drifting.replicas[0].extra.weight, module.extra.weight)
    assert not torch.equal(drifting.replicas[1].extra.weight, module.extra.weight)


def test_a_step_can_be_repeated_with_ignore_stale_grad() -> None:
    """The error leaves the sums in place, and they are not summed again."""
    module, (X, y) = Gated().double(), minibatch(4)
    X = X.double().abs()
    net, oracle = net_on(2, module), Single(module, [CPU], lr=LR)
    trainer = Trainer(net, LR)
    oracle.step(X, y, 4)
    backward(net, X, y)
    with pytest.raises(RuntimeError, match=r"'never\.weight' on .* is stale"):
        trainer.step(4)
    trainer.step(4, ignore_stale_grad=True)
    assert synced(net)
    assert within_bound(net.replicas[0], oracle.net, update_bound(module, X, LR))


def test_gradients_may_be_set_by_hand() -> None:
    """One device had no gradient in the step before."""
    net, (X, y) = net_on(2), minibatch(4)
    trainer = Trainer(net, LR)
    F.cross_entropy(net(X, 0), y).backward()
    trainer.step(4, ignore_stale_grad=True)
    before = net.replicas[0][0].bias.detach().clone()
    for replica in net.replicas:
        for param in replica.parameters():
            param.grad = torch.ones_like(param)
    trainer.step(4)
    assert torch.equal(net.replicas[1][0].bias, before - LR / 4 * 2)


def test_no_gradient_outlives_its_update() -> None:
    """A second set of gradients would be kept in memory until the next backward."""
    net = net_on(2)
    backward(net, *minibatch(4))
    alive = [weakref.ref(grad) for grad in net.collect_params()["0.weight"].list_grad() if grad is not None]
    Trainer(net, LR).step(4)
    assert [grad() for grad in alive] == [None, None]


def test_two_backwards_add_up_before_the_step() -> None:
    """As in torch, and in Gluon with grad_req='add'."""
    module, (X, y) = smooth_net().double(), minibatch(6)
    X = X.double()
    net, oracle = net_on(2, module), Single(module, [CPU], lr=LR)
    backward(net, X[:3], y[:3])
    backward(net, X[3:], y[3:])
    Trainer(net, LR).step(6)
    oracle.step(X, y, 6)
    assert within_bound(net.replicas[1], oracle.net, update_bound(module, X, LR))


def test_an_idle_device_runs_nothing() -> None:
    """Not every module takes an empty shard; this one raises."""

    class Picky(nn.Linear):
        def forward(self, X: Tensor) -> Tensor:
            if not len(X):
                raise AssertionError("called without samples")
            return super().forward(X)

    trainer, (X, y) = GluonTrainer(Picky(6, 4), [CPU] * 4, lr=LR), minibatch(2)
    before = values(trainer.replicas[3])
    trainer.step(X, y, 2)
    assert not torch.equal(before[0], trainer.replicas[3].weight)
    assert all(bit_equal(replica, trainer.replicas[0]) for replica in trainer.replicas)
    trainer.close()
