"""Gluon's semantics on several devices, and the trainer on top of them."""

from __future__ import annotations

import copy
import gc
import re
import weakref
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from reference.all_reduce import ALL_REDUCE
from reference.gluon import DeferredInitializationError, Net, Parameter, Trainer, copyto, split_and_load
from reference.models.init import xavier
from reference.scatter import CHUNK_RULES, balanced_sizes, gather, split_batch, weighted_sizes
from reference.trainers.gluon import GluonTrainer
from reference.trainers.single import Single
from tests.strategies import (
    CPU,
    Case,
    Gated,
    bit_equal,
    cases,
    conv_net,
    seeds,
    smooth_net,
    update_bound,
    values,
    world_sizes,
)

LR = 0.5
ELSEWHERE = torch.device("cuda:1")
# A tensor on any of these lies on "cpu", but the names can be told apart.
FIRST, SECOND = torch.device("cpu:0"), torch.device("cpu:1")


@pytest.fixture(autouse=True, scope="module")
def one_intra_op_thread() -> Iterator[None]:
    """Keep torch to one thread: on a busy machine a second one is waited for at every small operation."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def lazy_net() -> nn.Module:
    """Return a network that learns its shapes from its input, with buffers and dropout: (n, c, h, w) to (n, 4)."""
    return nn.Sequential(
        nn.LazyConv2d(3, 3), nn.LazyBatchNorm2d(), nn.Tanh(), nn.Dropout(0.5), nn.Flatten(), nn.LazyLinear(4)
    )


def net_on(k: int, module: nn.Module | None = None) -> Net:
    """Return a small network on k virtual CPU devices."""
    return Net(smooth_net() if module is None else module, [CPU] * k)


def minibatch(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return n samples for `smooth_net`, float32, and their labels."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 6, generator=generator), torch.randint(4, (n,), generator=generator)


def twins(k: int, module: nn.Module) -> tuple[Net, Net]:
    """Return two equal nets on k devices."""
    return net_on(k, module), net_on(k, module)


def backward(net: Net, X: Tensor, y: Tensor, sizes: Sequence[int] | None = None) -> None:
    """Accumulate the summed loss's gradient of each shard on its device, as the chapter's loop does."""
    shards = split_batch(X, y, net.devices, sizes or balanced_sizes(len(X), len(net.devices)))
    for replica, X_shard, y_shard in zip(net.replicas, *shards, strict=True):
        F.cross_entropy(replica(X_shard), y_shard, reduction="sum").backward()


def synced(net: Net) -> bool:
    """Say whether all replicas are bit-equal."""
    return all(bit_equal(replica, net.replicas[0]) for replica in net.replicas)


# Initialisation on a list of devices.


def test_replicas_start_equal_and_apart_from_the_module() -> None:
    """The same initial values everywhere, in tensors of their own; the module that was given stays as it is."""
    module = conv_net()
    net = Net(module, [CPU] * 3)
    for weight in (parameter.list_data() for parameter in net.collect_params().values()):
        assert len({tensor.data_ptr() for tensor in weight}) == 3
    assert all(bit_equal(replica, module) for replica in net.replicas)
    with torch.no_grad():
        net.replicas[0][0].weight.zero_()
    assert module[0].weight.any()
    assert net.replicas[1][0].weight.any()


def test_init_draws_once_for_all_devices() -> None:
    """Not once a device, which would draw other values each time."""
    module = smooth_net()
    net = Net(module, [CPU] * 3, init=xavier)
    assert synced(net)
    assert not net.replicas[0][0].bias.any()
    assert module[0].bias.any()


def test_parameters_are_reached_by_name_and_device() -> None:
    """Its data and gradient on one device, or on all."""
    net = Net(smooth_net(), [FIRST, SECOND])
    weight = net.collect_params()["0.weight"]
    assert weight.data(SECOND) is net.replicas[1][0].weight
    assert weight.data(1) is weight.data(SECOND)
    assert [data is replica[0].weight for data, replica in zip(weight.list_data(), net.replicas, strict=True)] == [
        True
    ] * 2
    assert weight.list_grad() == [None, None]
    net(torch.ones(1, 6), SECOND).sum().backward()
    assert weight.grad(FIRST) is None
    assert weight.grad(SECOND) is net.replicas[1][0].weight.grad is not None
    net.zero_grad()
    assert weight.list_grad() == [None, None]


def test_a_shared_parameter_is_listed_once() -> None:
    """Else it would be summed and updated twice."""
    net = Net(TiedNet(), [CPU] * 2)
    assert list(net.collect_params()) == ["first.weight", "first.bias", "second.bias", "last.weight", "last.bias"]
    assert net.replicas[1].second.weight is net.replicas[1].first.weight


def test_set_data_writes_into_every_copy() -> None:
    """In place: the replicas see it."""
    net = net_on(3)
    net.collect_params()["0.bias"].set_data(torch.arange(5.0))
    assert [replica[0].bias.tolist() for replica in net.replicas] == [[0.0, 1.0, 2.0, 3.0, 4.0]] * 3


@pytest.mark.parametrize("ask", [Parameter.data, Parameter.grad])
def test_a_device_without_the_parameter_is_reported(ask: Callable[[Parameter, torch.device], Tensor]) -> None:
    """The message names the parameter, that device, and those where it is."""
    weight = Net(smooth_net(), [FIRST, SECOND]).collect_params()["0.weight"]
    with pytest.raises(ValueError, match=r"parameter '0\.weight' is not on cuda:1: it is on cpu:0, cpu:1"):
        ask(weight, ELSEWHERE)


def test_a_device_that_stands_there_twice_is_named_by_its_number() -> None:
    """Data would be the same on both, gradients not."""
    weight = net_on(2).collect_params()["0.weight"]
    with pytest.raises(ValueError, match=r"'0.weight' is on cpu 2 times: name one by its number, \[0, 1\]"):
        weight.grad(CPU)


@pytest.mark.parametrize("number", [-1, 2])
def test_a_number_beyond_the_devices_is_reported(number: int) -> None:
    """Counting from the end is not meant."""
    weight = net_on(2).collect_params()["0.weight"]
    with pytest.raises(ValueError, match=f"'0.weight' has no device number {number}: it is on 2 devices, cpu, cpu"):
        weight.data(number)


def test_calling_a_net_where_it_is_not_is_reported() -> None:
    """The input's device decides where the net runs."""
    net = Net(smooth_net(), [CPU])
    assert net(torch.ones(2, 6)).shape == (2, 4)
    with pytest.raises(ValueError, match="the net is not on meta: it is on cpu"):
        net(torch.ones(2, 6, device="meta"))


def test_a_net_on_no_devices_is_reported() -> None:
    """There would be no replica at all."""
    with pytest.raises(ValueError, match="devices is empty: name at least one device to initialise the net on"):
        Net(smooth_net(), [])


def test_a_frozen_parameter_has_no_gradient() -> None:
    """Asking for one is an error, None would look like one that is still to come."""
    module = smooth_net()
    module[0].weight.requires_grad_(False)
    weight = net_on(2, module).collect_params()["0.weight"]
    with pytest.raises(RuntimeError, match=r"parameter '0\.weight' has no gradient because it is frozen"):
        weight.list_grad()


def test_a_dropped_net_is_freed_at_once() -> None:
    """What notes a backward must not keep the replicas alive."""
    net = net_on(2)
    Trainer(net, LR)
    backward(net, *minibatch(4))
    alive = weakref.ref(net.collect_params()["0.weight"].data(0))
    gc.disable()
    try:
        del net
        assert alive() is None
    finally:
        gc.enable()


# Deferred initialisation.


@pytest.mark.parametrize("ask", [Parameter.list_data, Parameter.list_grad, lambda weight: weight.data(0)])
def test_a_parameter_before_the_first_forward_is_reported(ask: Callable[[Parameter], object]) -> None:
    """Also one whose own shape is known; the names are there already."""
    weight = net_on(2, lazy_net()).collect_params()["0.weight"]
    message = r"parameter '0\.weight' has no values yet, because its net has lazy layers: call the net"
    with pytest.raises(DeferredInitializationError, match=message):
        ask(weight)


def test_replicas_and_steps_before_the_first_forward_are_reported() -> None:
    """Nothing can be trained yet, but a trainer can be made, as in the chapter."""
    net = net_on(2, lazy_net())
    trainer = Trainer(net, LR)
    with pytest.raises(DeferredInitializationError, match="the net has no replicas yet, because it has lazy layers"):
        _ = net.replicas
    for call in (trainer.allreduce_grads, lambda: trainer.step(4), lambda: trainer.update(4)):
        with pytest.raises(DeferredInitializationError, match="has no values yet"):
            call()
    X = torch.randn(4, 1, 6, 6)
    net(X, 0).sum().backward()
    net(X, 1).sum().backward()
    before = values(net.replicas[0])
    trainer.step(8)
    assert synced(net)
    assert not torch.equal(before[0], net.replicas[0][0].weight)


@given(k=world_sizes, first=st.integers(0, 7), seed=seeds)
def test_the_first_forward_gives_all_devices_the_same_values(k: int, first: int, seed: int) -> None:
    """Whichever device is first; buffers and training mode included."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        net = net_on(k, lazy_net())
        net(torch.randn(3, 1, 6, 6), first % k)
    assert synced(net)
    assert all(replica.training and replica[3].training for replica in net.replicas)
    means = [replica[1].running_mean for replica in net.replicas]
    assert [bool(mean.any()) for mean in means] == [rank == first % k for rank in range(k)]
    assert [replica[1].num_batches_tracked.item() for replica in net.replicas] == [
        float(rank == first % k) for rank in range(k)
    ]


def test_a_lazy_net_equals_one_that_was_never_lazy() -> None:
    """The inference leaves no trace: same draws, and the dropout of the first forward starts where the draws end."""
    X = torch.randn(5, 1, 6, 6)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        lazy = net_on(1, lazy_net())
        first = lazy(X, 0)
        torch.default_generator.manual_seed(1)
        direct = nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(48, 4)
        )
        assert torch.equal(first, direct(X))
    assert bit_equal(lazy.replicas[0], direct)


def test_lazy_layers_do_not_escape_the_init() -> None:
    """As they do where it is applied before the first forward: there it finds nothing to draw."""
    net = Net(lazy_net(), [CPU] * 2, init=xavier)
    net(torch.randn(2, 1, 6, 6), 0)
    assert synced(net)
    assert not net.replicas[0][5].bias.any()


def test_a_forward_that_leaves_lazy_layers_out_is_reported() -> None:
    """Their shapes would stay unknown."""

    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.LazyLinear(2), nn.LazyLinear(2)

        def forward(self, X: Tensor) -> Tensor:
            output: Tensor = self.used(X)
            return output

    with pytest.raises(RuntimeError, match="the forward has not used every lazy layer"):
        net_on(2, Half())(torch.ones(2, 3), 0)


# Splitting and copying.


@given(n=st.integers(0, 40), k=world_sizes)
def test_an_even_split_is_even_or_an_error(n: int, k: int) -> None:
    """Both numbers stand in the message, and what to do."""
    data, devices = torch.arange(n), [CPU] * k
    if n < k:
        with pytest.raises(ValueError, match=f"{n} samples are too few for {k} devices, each needs one: use fewer"):
            split_and_load(data, devices)
    elif n % k:
        with pytest.raises(
            ValueError, match=f"{n} samples cannot be split evenly over {k} devices: .* multiple of {k}"
        ):
            split_and_load(data, devices)
    else:
        shards = split_and_load(data, devices)
        assert [len(shard) for shard in shards] == [n // k] * k
        assert torch.equal(gather(shards, CPU), data)


@pytest.mark.parametrize("rule", CHUNK_RULES)
@given(n=st.integers(0, 40), k=world_sizes)
def test_an_uneven_split_follows_the_rule(rule: str, n: int, k: int) -> None:
    """The older rule refuses too few samples, the newer one leaves devices idle."""
    data, devices = torch.arange(n), [CPU] * k
    if rule == "mxnet_older" and n < k:
        with pytest.raises(ValueError, match=f"{n} samples are too few for {k} devices"):
            split_and_load(data, devices, even_split=False, rule=rule)
        return
    shards = split_and_load(data, devices, even_split=False, rule=rule)
    assert [len(shard) for shard in shards] == CHUNK_RULES[rule](n, k)
    assert torch.equal(gather(shards, CPU), data)


def test_the_newer_rule_is_the_default() -> None:
    """10 samples on 8 devices: nobody is idle, as with torch's rule, or has three, as with the older one."""
    assert [len(shard) for shard in split_and_load(torch.arange(10), [CPU] * 8, even_split=False)] == [2, 2] + [1] * 6


def test_an_unknown_rule_is_reported() -> None:
    """With the names that there are."""
    message = "unknown rule 'floor': choose one of torch, mxnet_older, mxnet_newer"
    with pytest.raises(ValueError, match=message):
        split_and_load(torch.arange(4), [CPU], even_split=False, rule="floor")


def test_copyto_a_tensor_writes_into_it() -> None:
    """Whoever refers to the target sees the values; rebinding a name, beside it, leaves the others as they were."""
    target, source = torch.zeros(2), torch.tensor([1.0, 2.0], requires_grad=True)
    elsewhere = [target]
    assert copyto(source, target) is target
    assert elsewhere[0].tolist() == [1.0, 2.0]
    assert not target.requires_grad
    rebound = torch.zeros(2)
    elsewhere = [rebound]
    rebound = source.detach().to(CPU)
    assert elsewhere[0].tolist() == [0.0, 0.0]


def test_copyto_a_device_shares_nothing() -> None:
    """Also on the device where the source lies; `to` alone, beside it, returns the source itself."""
    source = torch.ones(2, requires_grad=True)
    there = copyto(source, CPU)
    assert source.to(CPU) is source
    assert not there.requires_grad
    there.zero_()
    assert source.tolist() == [1.0, 1.0]


def test_the_books_all_reduce_with_copyto() -> None:
    """[1, 1] and [2, 2] become [3, 3] twice, also through a temporary list."""
    first, second = torch.ones(1, 2), 2 * torch.ones(1, 2)
    for tensors in [[first, second]]:
        tensors[0] += copyto(tensors[1], CPU)
        copyto(tensors[0], tensors[1])
    assert first.tolist() == second.tolist() == [[3.0, 3.0]]


def test_copyto_reports_unequal_shapes() -> None:
    """Torch's copy_ would repeat the row."""
    with pytest.raises(ValueError, match=r"cannot copy \(3,\) into \(2, 3\): copyto needs equal shapes"):
        copyto(torch.ones(3), torch.zeros(2, 3))


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
    assert within_bound(net.replicas[0], oracle.net, update_bound(module, X, y, LR))


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
    assert within_bound(net.replicas[0], oracle.net, update_bound(case.net, X, y, LR))


def test_the_mean_of_unequal_shards_means_is_not_the_batchs() -> None:
    """The mistake that the property above would find: 6 samples on one device and 1 on the other, averaged."""
    module, (X, y) = smooth_net().double(), minibatch(7)
    (net, oracle), X = (net_on(2, module), Single(module, [CPU], lr=LR)), X.double()
    for replica, part in zip(net.replicas, (slice(0, 6), slice(6, 7)), strict=True):
        F.cross_entropy(replica(X[part]), y[part]).backward()
    Trainer(net, LR).step(2)
    oracle.step(X, y, 7)
    assert not within_bound(net.replicas[0], oracle.net, [1e6 * bound for bound in update_bound(module, X, y, LR)])


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
    assert within_bound(net.replicas[0], oracle.net, update_bound(module, X, y, LR))
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
    assert within_bound(net.replicas[0], oracle.net, update_bound(module, X, y, LR))


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
    assert within_bound(net.replicas[1], oracle.net, update_bound(module, X, y, LR))


def test_an_all_reduce_that_loses_the_sum_is_seen() -> None:
    """The book's, which rebinds the slots of its list: the other devices keep their own gradient."""

    def rebinding(tensors: Sequence[Tensor]) -> None:
        slots = list(tensors)
        for tensor in slots[1:]:
            slots[0].add_(tensor)
        slots[1:] = [slots[0].clone() for _ in slots[1:]]

    net = net_on(2)
    backward(net, *minibatch(4))
    Trainer(net, LR, all_reduce_=rebinding).step(4)
    assert not synced(net)


# The trainer of the table.


class TiedNet(nn.Module):
    """Uses one weight in two layers, without kinks: (n, 6) to (n, 4)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4)
        self.second.weight = self.first.weight

    def forward(self, X: Tensor) -> Tensor:
        """Map X (n, 6) to scores (n, 4)."""
        output: Tensor = self.last(torch.tanh(self.second(torch.tanh(self.first(X)))))
        return output


def within_bound(ours: nn.Module, theirs: nn.Module, bounds: Sequence[Tensor]) -> bool:
    """Say whether two modules differ by no more than rounding may explain."""
    triples = zip(values(ours), values(theirs), bounds, strict=True)
    return all(bool(((p - q).abs() <= bound).all()) for p, q, bound in triples)


def check_against_single(case: Case, frozen: int | None = None) -> None:
    """Take each step from the oracle's weights; no replica may differ from it by more than rounding."""
    net = case.net
    for X, y in case.batches:
        bounds = update_bound(copy.deepcopy(net).requires_grad_(), X, y, LR)
        if frozen is not None:
            list(net.parameters())[frozen].requires_grad_(False)
        before = copy.deepcopy(net)
        oracle, trainer = Single(net, [CPU], lr=LR), GluonTrainer(net, case.devices, lr=LR)
        torch.testing.assert_close(trainer.step(X, y, len(X)), oracle.step(X, y, len(X)))
        for replica in trainer.replicas:
            assert within_bound(replica, oracle.net, bounds)
            assert bit_equal(replica, trainer.replicas[0])
        assert bit_equal(net, before), "the model that was handed over has changed"
        if frozen is not None:
            assert torch.equal(values(trainer.replicas[-1])[frozen], values(before)[frozen])
        trainer.close()
        net = oracle.net


@settings(max_examples=25)
@given(case=cases(conv_net, (1, 6, 6), torch.float64))
def test_a_float64_step_equals_one_devices_on_any_split(case: Case) -> None:
    """1 to 8 devices, uneven shards, fewer samples than devices, batch sizes that change."""
    check_against_single(case)


@settings(max_examples=25)
@given(case=cases(smooth_net, (6,), torch.float32))
def test_a_float32_step_equals_one_devices_on_a_smooth_net(case: Case) -> None:
    """Without kinks rounding stays rounding."""
    check_against_single(case)


@settings(max_examples=15)
@given(case=cases(TiedNet, (6,), torch.float64), frozen=st.none() | st.integers(0, 4))
def test_shared_and_frozen_parameters_are_as_on_one_device(case: Case, frozen: int | None) -> None:
    """A shared weight gets the gradient of both its places, once; a frozen one stays, also the shared one."""
    check_against_single(case, frozen)


@settings(max_examples=15)
@given(case=cases(Gated, (6,), torch.float64, max_steps=4))
def test_replicas_stay_bit_equal_over_a_trajectory(case: Case) -> None:
    """With devices idle in some steps and a layer that only some shards use, or none; every step is one device's."""
    oracle, trainer = Single(case.net, [CPU], lr=LR), GluonTrainer(case.net, case.devices, lr=LR)
    for X, y in case.batches:
        bounds = update_bound(oracle.net, X, y, LR)
        oracle.step(X, y, len(X))
        trainer.step(X, y, len(X))
        assert all(bit_equal(replica, trainer.replicas[0]) for replica in trainer.replicas)
        assert within_bound(trainer.replicas[0], oracle.net, bounds)
        # The bound is for one step: the oracle takes the next one from here too.
        oracle.net.load_state_dict(trainer.replicas[0].state_dict())
    assert torch.equal(trainer.replicas[-1].never.weight, case.net.never.weight)
    trainer.close()


def test_the_tolerance_would_catch_a_step_that_forgets_a_device() -> None:
    """Or one that divides by its own shard: both are far outside the bound."""
    module, (X, y) = smooth_net().double(), minibatch(7)
    X = X.double()
    oracle, bounds = Single(module, [CPU], lr=LR), update_bound(module, X, y, LR)
    oracle.step(X, y, 7)
    for batch_size in (7, 4):
        net = net_on(1, module)
        backward(net, X[:4], y[:4])
        Trainer(net, LR).step(batch_size)
        assert not within_bound(net.replicas[0], oracle.net, [1e6 * bound for bound in bounds])


def test_one_device_is_the_identity() -> None:
    """To the last bit: there is nothing to split or exchange."""
    net, (X, y) = smooth_net(), minibatch(5)
    oracle, trainer = Single(net, [CPU], lr=LR), GluonTrainer(net, [CPU], lr=LR)
    assert torch.equal(trainer.step(X, y, 5), oracle.step(X, y, 5))
    assert bit_equal(trainer.replicas[0], oracle.net)


def test_a_step_returns_the_mean_loss_detached() -> None:
    """A tensor without a graph: reading it is the caller's decision."""
    net, (X, y) = smooth_net(), minibatch(5)
    trainer = GluonTrainer(net, [CPU] * 3, lr=LR)
    loss = trainer.step(X, y, 5)
    trainer.close()
    assert loss.shape == ()
    assert not loss.requires_grad
    torch.testing.assert_close(loss, F.cross_entropy(net(X), y).detach())


def test_each_replica_normalises_over_its_own_shard() -> None:
    """Ten samples on three devices: 4, 3 and 3, where torch's rule gives 4, 4 and 2."""
    X = torch.arange(20.0).reshape(10, 2)
    trainer = GluonTrainer(nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 4)), [CPU] * 3, lr=LR)
    trainer.step(X, torch.zeros(10, dtype=torch.int64), 10)
    trainer.close()
    means = [replica[0].running_mean for replica in trainer.replicas]
    torch.testing.assert_close(means, [0.1 * shard.mean(0) for shard in (X[:4], X[4:7], X[7:])])


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


def test_an_empty_minibatch_changes_nothing() -> None:
    """Its loss is 0 and so is its gradient."""
    net, (X, y) = smooth_net(), minibatch(0)
    trainer = GluonTrainer(net, [CPU] * 3, lr=LR)
    assert trainer.step(X, y, 4) == 0
    assert all(bit_equal(replica, net) for replica in trainer.replicas)
    trainer.close()


def test_without_the_exchange_the_replicas_drift_apart() -> None:
    """Each by its own shard's gradient, an idle one not at all; with it they would not."""
    net, (X, y) = smooth_net().double(), minibatch(2)
    X = X.double()
    trainer = GluonTrainer(net, [CPU] * 3, lr=LR)
    trainer.step_unsynced(X, y, 2)
    for rank in range(2):
        alone = Single(net, [CPU], lr=LR)
        alone.step(X[rank : rank + 1], y[rank : rank + 1], 2)
        assert bit_equal(trainer.replicas[rank], alone.net)
    assert bit_equal(trainer.replicas[2], net)
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
