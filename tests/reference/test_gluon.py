"""Gluon's trainer: a step in its parts, stale gradients, and orders of calls that would let replicas drift."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable

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


def twins(k: int, module: nn.Module) -> tuple[Net, Net]:
    """Return two equal nets on k devices."""
    return net_on(k, module), net_on(k, module)


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


@pytest.mark.parametrize("how_often", [1, 2])
def test_a_step_after_allreduce_grads_does_not_sum_twice(how_often: int) -> None:
    """So gradients can be clipped between the sum and the update."""
    net, twice = twins(3, smooth_net())
    for each in (net, twice):
        backward(each, *minibatch(6))
    for _ in range(how_often):
        Trainer(twice, LR).allreduce_grads()
    Trainer(net, LR).step(6)
    Trainer(twice, LR).step(6)
    assert bit_equal(net.replicas[0], twice.replicas[0])
    assert synced(twice)


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


# Stale gradients.


def test_a_stale_gradient_is_reported_with_parameter_and_device() -> None:
    """Before the first backward, after an update, and where one device did not take part."""
    net = Net(smooth_net(), [FIRST, SECOND])
    trainer = Trainer(net, LR)
    stale = r"the gradient of parameter '0.weight' on {} is stale, no backward has written it since the last update"
    with pytest.raises(RuntimeError, match=stale.format("cpu:0, cpu:1")):
        trainer.step(4)
    X, y = minibatch(4)
    backward(net, X, y)
    trainer.step(4)
    with pytest.raises(RuntimeError, match=stale.format("cpu:0, cpu:1")):
        trainer.update(4)
    before = values(net.replicas[0])
    F.cross_entropy(net(X, FIRST), y).backward()
    with pytest.raises(RuntimeError, match=stale.format("cpu:1")):
        trainer.step(4)
    assert all(torch.equal(p, q) for p, q in zip(before, values(net.replicas[0]), strict=True))


def test_a_parameter_that_one_device_did_not_use_is_reported_alone() -> None:
    """Equal devices are told apart by their numbers."""
    net, (X, y) = net_on(2, Gated()), minibatch(4)
    X[:2, 0], X[2:, 0] = -1, 1
    backward(net, X, y)
    with pytest.raises(RuntimeError, match=re.escape("'extra.weight' on cpu (number 0) is stale")):
        Trainer(net, LR).step(4)


def test_ignoring_stale_gradients_keeps_replicas_equal() -> None:
    """A device without a gradient gets the others' sum; a parameter that is stale everywhere stays as it is.

    Leaving out the stale copy alone, as MXNet does, lets the replicas drift apart.
    """
    module, (X, y) = Gated().double(), minibatch(4)
    X = X.double()
    X[:2, 0], X[2:, 0] = -1, 1
    (net, drifting), oracle = twins(2, module), Single(module, [CPU], lr=LR)
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


def test_an_old_gradient_is_never_used_again() -> None:
    """MXNet sums what a stale device still holds from the step before; here a stale gradient counts as zeros."""
    net, with_zeros = twins(2, smooth_net())
    X, y = minibatch(4)
    for each in (net, with_zeros):
        backward(each, X, y)
        Trainer(each, LR).step(4)
        F.cross_entropy(each(X, 0), y, reduction="sum").backward()
    (0 * with_zeros(X, 1).sum()).backward()
    Trainer(net, LR).step(4, ignore_stale_grad=True)
    Trainer(with_zeros, LR).step(4)
    assert synced(net)
    assert bit_equal(net.replicas[0], with_zeros.replicas[0])


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


# Orders of calls that would let replicas drift.


def test_an_update_without_the_sum_is_reported() -> None:
    """One device has nothing to sum and is updated."""
    net = net_on(2)
    backward(net, *minibatch(4))
    message = r"parameter '0\.weight' is not summed over its 2 devices: call allreduce_grads before update, or step"
    with pytest.raises(RuntimeError, match=message):
        Trainer(net, LR).update(4)
    alone = net_on(1)
    backward(alone, *minibatch(4))
    before = values(alone.replicas[0])
    Trainer(alone, LR).update(4)
    assert not torch.equal(before[0], alone.replicas[0][0].weight)


def test_a_backward_between_sum_and_update_is_reported() -> None:
    """It would add to the sum on one device only; zero_grad clears the state."""
    net, (X, y) = net_on(2), minibatch(4)
    trainer = Trainer(net, LR)
    backward(net, X, y)
    trainer.allreduce_grads()
    with pytest.raises(RuntimeError, match=r"added to the summed gradient of parameter '.*' on cpu \(number 1\)"):
        F.cross_entropy(net(X, 1), y).backward()
    with pytest.raises(RuntimeError, match="is not summed over its 2 devices"):
        trainer.update(4)
    with pytest.raises(RuntimeError, match="holds a sum on some of its 2 devices and a gradient of their own on oth"):
        trainer.step(4)
    net.zero_grad()
    backward(net, X, y)
    trainer.step(4)
    assert synced(net)


@pytest.mark.parametrize("clear", [Net.zero_grad, lambda net: [replica.zero_grad() for replica in net.replicas]])
def test_a_sum_can_be_discarded(clear: Callable[[Net], object]) -> None:
    """Cleared by the net or by torch, as when a gradient has overflowed."""
    net, other = twins(2, smooth_net())
    trainer = Trainer(net, LR)
    backward(net, *minibatch(4, seed=1))
    trainer.allreduce_grads()
    clear(net)
    with pytest.raises(RuntimeError, match="is stale"):
        trainer.update(4)
    backward(net, *minibatch(4))
    trainer.step(4)
    backward(other, *minibatch(4))
    Trainer(other, LR).step(4)
    assert synced(net)
    assert bit_equal(net.replicas[0], other.replicas[0])


def test_a_sum_cleared_on_one_device_is_not_used_on_the_others() -> None:
    """Not even where stale gradients are ignored."""
    net = net_on(2)
    trainer = Trainer(net, LR)
    backward(net, *minibatch(4))
    trainer.allreduce_grads()
    net.replicas[1].zero_grad()
    with pytest.raises(RuntimeError, match="is not summed over its 2 devices"):
        trainer.update(4, ignore_stale_grad=True)


def test_a_device_without_a_backward_after_a_discarded_sum_is_stale() -> None:
    net, (X, y) = net_on(2), minibatch(4)
    trainer = Trainer(net, LR)
    backward(net, X, y)
    trainer.allreduce_grads()
    for replica in net.replicas:
        replica.zero_grad()
    F.cross_entropy(net(X, 0), y).backward()
    with pytest.raises(RuntimeError, match=re.escape("'0.weight' on cpu (number 1) is stale")):
        trainer.step(4)
    trainer.step(4, ignore_stale_grad=True)
    assert synced(net)


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
