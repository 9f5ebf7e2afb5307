"""Gluon's trainer: a step in its parts, stale gradients, and calls in an order that would let replicas drift."""

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
from reference.gluon import DeferredInitializationError, Net, Trainer
from reference.scatter import weighted_sizes
from reference.trainers.gluon import GluonTrainer
from reference.trainers.single import Single
from tests.support.gluon_nets import FIRST, SECOND, backward, lazy_net, minibatch, net_on, synced
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


# The trainer's step in its parts.


@pytest.mark.parametrize("name", ALL_REDUCE)
@pytest.mark.parametrize("apart", [False, True], ids=["step", "allreduce_grads and update"])
def test_a_step_is_the_sum_over_the_devices_divided_by_the_batch(name: str, apart: bool) -> None:
    """The same in one call and in two, with every all-reduce; compared with one device by the derived bound."""
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
    """Nor does a second allreduce_grads. A second sum, beside it, triples the gradient on three devices."""
    nets = twins(3, smooth_net())
    for net in nets:
        backward(net, *minibatch(6))
    Trainer(nets[0], LR).step(6)
    for _ in range(how_often):
        Trainer(nets[1], LR).allreduce_grads()
    once = nets[1].collect_params()["0.weight"].list_grad()[0]
    assert once is not None
    again = [once.clone() for _ in range(3)]
    ALL_REDUCE["naive"](again)
    assert again[0].norm() > 2.9 * once.norm()
    Trainer(nets[1], LR).step(6)
    assert bit_equal(nets[0].replicas[0], nets[1].replicas[0])
    assert synced(nets[1])


def test_gradients_can_be_clipped_between_the_sum_and_the_update() -> None:
    """The reason for calling the two apart: what is done alike to all sums reaches every replica."""
    net, (X, y) = net_on(2, smooth_net().double()), minibatch(6)
    trainer, before = Trainer(net, LR), values(net.replicas[0])
    backward(net, X.double(), y)
    trainer.allreduce_grads()
    for replica in net.replicas:
        nn.utils.clip_grad_norm_(replica.parameters(), 1e-3)
    trainer.step(1)
    moved = torch.cat([(p - q).flatten() for p, q in zip(before, values(net.replicas[0]), strict=True)]).norm()
    assert synced(net)
    # torch divides by norm + 1e-6, and the norm is far above 1e-3.
    assert 0.999 * LR * 1e-3 < moved < LR * 1e-3


def test_the_batch_size_is_the_callers() -> None:
    """A last minibatch of 96 stepped with 256 goes 0.375 of the way that it goes when stepped with 96.

    Read back as before - after, a step s of a parameter p is off by the rounding of after, of the difference, and twice
    in lr / batch_size * grad: by u |p| + 4 u |s| at most, with the unit round-off u and to first order.
    """
    module, (X, y) = smooth_net().double(), minibatch(96)
    steps, nets = [], twins(2, module)
    for net, batch_size in zip(nets, (96, 256), strict=True):
        backward(net, X.double(), y)
        Trainer(net, LR).step(batch_size)
        steps.append([p - q for p, q in zip(values(module), values(net.replicas[0]), strict=True)])
    for p, whole, part in zip(values(module), *steps, strict=True):
        u = torch.finfo(p.dtype).eps / 2
        assert ((part - 0.375 * whole).abs() <= 2 * (u * p.abs() + 4 * u * whole.abs())).all()
        assert (whole.abs() > 1e-6).any()


def test_the_learning_rate_can_change_between_steps() -> None:
    """As a schedule does."""
    net = net_on(2)
    trainer = Trainer(net.collect_params(), LR)
    trainer.lr = 0.0
    before = values(net.replicas[0])
    backward(net, *minibatch(4))
    trainer.step(4)
    assert all(torch.equal(p, q) for p, q in zip(before, values(net.replicas[1]), strict=True))


def test_a_batch_size_below_one_is_reported() -> None:
    """And nothing has changed."""
    net = net_on(2)
    before = values(net.replicas[1])
    backward(net, *minibatch(4))
    with pytest.raises(ValueError, match="batch_size is 0: a step needs at least one sample"):
        Trainer(net, LR).step(0)
    assert all(torch.equal(p, q) for p, q in zip(before, values(net.replicas[1]), strict=True))


@settings(max_examples=25)
@given(case=cases(smooth_net, (6,), torch.float64, max_steps=1), data=st.data())
def test_a_weighted_split_leaves_the_gradient_as_it_is(case: Case, data: st.DataObject) -> None:
    """Devices of unequal speed get unequal shards; the mean of the shards' means, beside it, would be another."""
    (X, y), net = case.batches[0], net_on(case.world_size, case.net)
    weights = data.draw(st.lists(st.integers(0, 9), min_size=case.world_size, max_size=case.world_size).filter(any))
    oracle = Single(case.net, [CPU], lr=LR)
    backward(net, X, y, weighted_sizes(len(X), weights))
    Trainer(net, LR).step(len(X))
    oracle.step(X, y, len(X))
    assert synced(net)
    assert within_bound(net.replicas[0], oracle.net, update_bound(case.net, X, LR))


def test_the_mean_of_unequal_shards_means_is_not_the_batchs() -> None:
    """The mistake that the property above would find: 6 samples on one device and 1 on the other, averaged."""
    module, (X, y) = smooth_net().double(), minibatch(7)
    (net, oracle), X = (net_on(2, module), Single(module, [CPU], lr=LR)), X.double()
    for replica, part in zip(net.replicas, (slice(0, 6), slice(6, 7)), strict=True):
        F.cross_entropy(replica(X[part]), y[part]).backward()
    Trainer(net, LR).step(2)
    oracle.step(X, y, 7)
    assert not within_bound(net.replicas[0], oracle.net, [1e6 * bound for bound in update_bound(module, X, LR)])


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


def test_equal_devices_are_told_apart_by_their_number() -> None:
    """Three times cpu says nothing. And the error leaves nothing behind once all have a gradient of their own."""
    net, (X, y) = net_on(3), minibatch(3)
    trainer = Trainer(net, LR)
    F.cross_entropy(net(X, 1), y).backward()
    with pytest.raises(RuntimeError, match=re.escape("'0.weight' on cpu (number 0), cpu (number 2) is stale")):
        trainer.step(3)
    for replica in net.replicas:
        replica.zero_grad()
    backward(net, X, y)
    trainer.step(3)
    assert synced(net)


def test_a_parameter_that_one_device_did_not_use_is_reported_alone() -> None:
    """The others are fresh."""
    net, (X, y) = net_on(2, Gated()), minibatch(4)
    X[:2, 0], X[2:, 0] = -1, 1
    backward(net, X, y)
    with pytest.raises(RuntimeError, match=re.escape("'extra.weight' on cpu (number 0) is stale")):
        Trainer(net, LR).step(4)


def test_ignoring_stale_gradients_keeps_replicas_equal() -> None:
    """A device without one is updated with the others' sum; what is stale everywhere stays as it is.

    Leaving out the stale copy alone, as MXNet does, is shown beside it: the replicas drift apart.
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
    """MXNet sums the buffer that a stale device still holds from the step before. Here it counts as zeros."""
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
    """The error has left the sums in place; they are not summed again."""
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


# Calls in an order that would let replicas drift.


def test_an_update_without_the_sum_is_reported() -> None:
    """On one device there is nothing to sum."""
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
    """It would add to the sum on one device only; after zero_grad all is well again."""
    net, (X, y) = net_on(2), minibatch(4)
    trainer = Trainer(net, LR)
    backward(net, X, y)
    trainer.allreduce_grads()
    with pytest.raises(RuntimeError, match=r"added to the summed gradient of parameter '.*' on cpu \(number 1\)"):
        F.cross_entropy(net(X, 1), y).backward()
    with pytest.raises(RuntimeError, match="is not summed over its 2 devices"):
        trainer.update(4)
    with pytest.raises(
        RuntimeError, match="holds a sum on some of its 2 devices and a gradient of their own on others"
    ):
        trainer.step(4)
    net.zero_grad()
    backward(net, X, y)
    trainer.step(4)
    assert synced(net)


@pytest.mark.parametrize("clear", [Net.zero_grad, lambda net: [replica.zero_grad() for replica in net.replicas]])
def test_a_sum_can_be_thrown_away(clear: Callable[[Net], object]) -> None:
    """As when a gradient has overflowed: cleared by the net or by torch, the next backward starts anew."""
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
    """Whether stale gradients are ignored or not."""
    net = net_on(2)
    trainer = Trainer(net, LR)
    backward(net, *minibatch(4))
    trainer.allreduce_grads()
    net.replicas[1].zero_grad()
    with pytest.raises(RuntimeError, match="is not summed over its 2 devices"):
        trainer.update(4, ignore_stale_grad=True)


def test_a_device_that_sits_out_after_a_thrown_away_sum_is_stale() -> None:
    """Whatever it took part in before."""
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


def test_gradients_set_by_hand_are_as_good_as_a_backwards() -> None:
    """Also on a device that had none in the step before."""
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
    """Memory for a second set of gradients would be held until the next backward."""
    net = net_on(2)
    backward(net, *minibatch(4))
    alive = [weakref.ref(grad) for grad in net.collect_params()["0.weight"].list_grad() if grad is not None]
    Trainer(net, LR).step(4)
    assert [grad() for grad in alive] == [None, None]


def test_two_backwards_add_up_before_the_step() -> None:
    """Torch's way, and Gluon's with grad_req='add': half a minibatch twice is the whole one."""
    module, (X, y) = smooth_net().double(), minibatch(6)
    X = X.double()
    net, oracle = net_on(2, module), Single(module, [CPU], lr=LR)
    backward(net, X[:3], y[:3])
    backward(net, X[3:], y[3:])
    Trainer(net, LR).step(6)
    oracle.step(X, y, 6)
    assert within_bound(net.replicas[1], oracle.net, update_bound(module, X, LR))


# The trainer of the table, beyond what every trainer is held to.


def test_an_idle_device_runs_nothing() -> None:
    """Not every module takes an empty shard; here it would raise."""

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


def test_unequal_lengths_are_reported() -> None:
    """The shards would not belong together."""
    trainer = GluonTrainer(smooth_net(), [CPU] * 2, lr=LR)
    with pytest.raises(ValueError, match="X has 3 samples and y has 2: every sample needs one label"):
        trainer.step(torch.zeros(3, 6), torch.zeros(2, dtype=torch.int64), 3)
    trainer.close()


def test_a_lazy_model_is_reported() -> None:
    """The suite hands over initialised models, and reads the replicas before the first step."""
    with pytest.raises(DeferredInitializationError, match="the net has no replicas yet, because it has lazy layers"):
        GluonTrainer(lazy_net(), [CPU] * 2, lr=LR)
