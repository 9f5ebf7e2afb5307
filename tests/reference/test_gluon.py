"""Gluon on several devices: nets and parameters, splitting, and the trainer, whatever the order of calls."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext

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
from tests.support.strategies import (
    CPU,
    LR,
    Case,
    Gated,
    TiedNet,
    bit_equal,
    cases,
    conv_net,
    seeds,
    smooth_net,
    update_bound,
    values,
    within_bound,
    world_sizes,
)

# A tensor on any of these lies on "cpu", but the names can be told apart.
FIRST, SECOND = torch.device("cpu:0"), torch.device("cpu:1")


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


def backward(net: Net, X: Tensor, y: Tensor, sizes: Sequence[int] | None = None) -> None:
    """Accumulate the summed loss's gradient of each shard on its device, as the chapter's loop does."""
    shards = split_batch(X, y, net.devices, sizes or balanced_sizes(len(X), len(net.devices)))
    for replica, X_shard, y_shard in zip(net.replicas, *shards, strict=True):
        F.cross_entropy(replica(X_shard), y_shard, reduction="sum").backward()


def synced(net: Net) -> bool:
    """Say whether all replicas are bit-equal."""
    return all(bit_equal(replica, net.replicas[0]) for replica in net.replicas)


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


def test_ignoring_stale_gradients_keeps_replicas_equal() -> None:
    """A device without a gradient gets the others' sum; a parameter that is stale everywhere stays as it is.

    The error before it leaves the sums in place, and they are not summed again. Leaving out the stale copy alone, as
    MXNet does, lets the replicas drift apart.
    """
    module, (X, y) = Gated().double(), minibatch(4)
    X = X.double()
    X[:2, 0], X[2:, 0] = -1, 1
    net, drifting, oracle = Net(module, [FIRST, SECOND]), net_on(2, module), Single(module, [CPU], lr=LR)
    oracle.step(X, y, 4)
    backward(net, X, y)
    with pytest.raises(RuntimeError, match=r"'extra\.weight' on cpu:0 is stale"):
        Trainer(net, LR).step(4)
    Trainer(net, LR).step(4, ignore_stale_grad=True)
    assert synced(net)
    assert within_bound(net.replicas[0], oracle.net, update_bound(module, X, LR))
    assert torch.equal(net.replicas[0].never.weight, module.never.weight)
    backward(drifting, X, y)
    Trainer(drifting, LR, all_reduce_=None).update(4, ignore_stale_grad=True)
    assert torch.equal(drifting.replicas[0].extra.weight, module.extra.weight)
    assert not torch.equal(drifting.replicas[1].extra.weight, module.extra.weight)


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


ELSEWHERE = torch.device("cuda:1")


# Initialisation on a list of devices.


def test_replicas_start_equal_and_apart_from_the_module() -> None:
    """Equal values in separate tensors; the module that was given stays as it is."""
    module = conv_net()
    net = Net(module, [CPU] * 3)
    for weight in (parameter.list_data() for parameter in net.collect_params().values()):
        assert len({tensor.data_ptr() for tensor in weight}) == 3
    assert all(bit_equal(replica, module) for replica in net.replicas)
    with torch.no_grad():
        net.replicas[0][0].weight.zero_()
    assert module[0].weight.any()
    assert net.replicas[1][0].weight.any()


def test_parameters_are_reached_by_name_and_device() -> None:
    net = Net(smooth_net(), [FIRST, SECOND])
    net.collect_params()["0.bias"].set_data(torch.arange(5.0))
    assert [replica[0].bias.tolist() for replica in net.replicas] == [[0.0, 1.0, 2.0, 3.0, 4.0]] * 2
    weight = net.collect_params()["0.weight"]
    assert weight.data(SECOND) is net.replicas[1][0].weight
    assert weight.data(1) is weight.data(SECOND)
    assert all(data is replica[0].weight for data, replica in zip(weight.list_data(), net.replicas, strict=True))
    assert weight.list_grad() == [None, None]
    net(torch.ones(1, 6), SECOND).sum().backward()
    assert weight.grad(FIRST) is None
    assert weight.grad(SECOND) is net.replicas[1][0].weight.grad is not None
    net.zero_grad()
    assert weight.list_grad() == [None, None]


def test_a_shared_parameter_is_listed_once() -> None:
    """Listed twice, it would be summed and updated twice."""
    net = Net(TiedNet(), [CPU] * 2)
    assert list(net.collect_params()) == ["first.weight", "first.bias", "second.bias", "last.weight", "last.bias"]
    assert net.replicas[1].second.weight is net.replicas[1].first.weight


def test_a_dropped_net_is_freed_at_once() -> None:
    """The hooks that record a backward must not keep the replicas alive."""
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


def test_calls_that_fit_no_device_are_reported() -> None:
    """The messages name the parameter and the devices where it is."""
    named = Net(smooth_net(), [FIRST, SECOND]).collect_params()["0.weight"]
    equal = net_on(2).collect_params()["0.weight"]
    for call, message in (
        (lambda: named.data(ELSEWHERE), r"parameter '0\.weight' is not on cuda:1: it is on cpu:0, cpu:1"),
        (lambda: named.grad(ELSEWHERE), r"parameter '0\.weight' is not on cuda:1: it is on cpu:0, cpu:1"),
        (lambda: equal.grad(CPU), r"'0.weight' is on cpu 2 times: name one by its number, \[0, 1\]"),
        (lambda: equal.data(-1), "'0.weight' has no device number -1: it is on 2 devices, cpu, cpu"),
        (lambda: equal.data(2), "'0.weight' has no device number 2: it is on 2 devices, cpu, cpu"),
        (lambda: net_on(1)(torch.ones(2, 6, device="meta")), "the net is not on meta: it is on cpu"),
        (lambda: net_on(0), "devices is empty: name at least one device to initialise the net on"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_a_frozen_parameter_has_no_gradient() -> None:
    """None would look like a gradient that is still to come, so asking for one is an error."""
    module = smooth_net()
    module[0].weight.requires_grad_(False)
    weight = net_on(2, module).collect_params()["0.weight"]
    with pytest.raises(RuntimeError, match=r"parameter '0\.weight' has no gradient because it is frozen"):
        weight.list_grad()


@pytest.mark.parametrize("lazy", [False, True])
def test_init_draws_once_for_all_devices_and_reaches_lazy_layers(lazy: bool) -> None:
    """Applied before the first forward, as in the chapter, it would find no lazy layer's weights."""
    module = lazy_net() if lazy else smooth_net()
    net = Net(module, [CPU] * 3, init=xavier)
    net(torch.randn(2, 1, 6, 6) if lazy else torch.randn(2, 6), 0)
    assert synced(net)
    assert not net.replicas[0][5 if lazy else 0].bias.any()


# Deferred initialisation.


@pytest.mark.parametrize("ask", [Parameter.list_data, Parameter.list_grad, lambda weight: weight.data(0)])
def test_a_parameter_before_the_first_forward_is_reported(ask: Callable[[Parameter], object]) -> None:
    """Names are known already; even a parameter whose shape is known has no values."""
    weight = net_on(2, lazy_net()).collect_params()["0.weight"]
    message = r"parameter '0\.weight' has no values yet, because its net has lazy layers: call the net"
    with pytest.raises(DeferredInitializationError, match=message):
        ask(weight)


def test_replicas_and_steps_before_the_first_forward_are_reported() -> None:
    """A trainer can be made before the first forward, as in the chapter."""
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
    """Whichever device is first; buffers and training mode are copied too."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        net = net_on(k, lazy_net())
        net(torch.randn(3, 1, 6, 6), first % k)
    assert synced(net)
    assert all(replica.training and replica[3].training for replica in net.replicas)
    means = [replica[1].running_mean for replica in net.replicas]
    assert [bool(mean.any()) for mean in means] == [rank == first % k for rank in range(k)]
    assert [replica[1].num_batches_tracked.item() for replica in net.replicas] == [mean.any() for mean in means]


def test_a_lazy_net_equals_one_that_was_never_lazy() -> None:
    """Weights are the same draws, and the first forward's dropout uses the draws that follow."""
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


def test_a_forward_that_leaves_lazy_layers_out_is_reported() -> None:

    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.LazyLinear(2), nn.LazyLinear(2)

        def forward(self, X: Tensor) -> Tensor:
            return self.used(X)

    with pytest.raises(RuntimeError, match="the forward has not used every lazy layer"):
        net_on(2, Half())(torch.ones(2, 3), 0)


@given(n=st.integers(0, 40), k=world_sizes)
def test_an_even_split_is_even_or_an_error(n: int, k: int) -> None:
    """The message has both numbers and the remedy."""
    data, devices = torch.arange(n), [CPU] * k
    too_few = f"{n} samples are too few for {k} devices, each needs one: use fewer"
    uneven = f"{n} samples cannot be split evenly over {k} devices: .* multiple of {k}"
    if n < k or n % k:
        with pytest.raises(ValueError, match=too_few if n < k else uneven):
            split_and_load(data, devices)
        return
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


def test_the_newer_rule_is_the_default_and_an_unknown_one_is_reported() -> None:
    """Torch's rule would leave devices idle, the older one give a device three of 10 samples."""
    assert [len(shard) for shard in split_and_load(torch.arange(10), [CPU] * 8, even_split=False)] == [2, 2] + [1] * 6
    message = "unknown rule 'floor': choose one of torch, mxnet_older, mxnet_newer"
    with pytest.raises(ValueError, match=message):
        split_and_load(torch.arange(4), [CPU], even_split=False, rule="floor")


def test_copyto_a_tensor_writes_into_it_as_the_books_all_reduce_needs() -> None:
    """[1, 1] and [2, 2] become [3, 3] twice, also through a temporary list."""
    first, second = torch.ones(1, 2), 2 * torch.ones(1, 2, requires_grad=True)
    for tensors in [[first, second]]:
        tensors[0] += copyto(tensors[1], CPU)
        assert copyto(tensors[0], tensors[1]) is second
    assert first.tolist() == second.tolist() == [[3.0, 3.0]]
    assert not first.requires_grad


def test_copyto_a_device_shares_nothing_and_unequal_shapes_are_reported() -> None:
    """Even on the device of the source, where `to` returns the source itself; torch's copy_ would repeat the row."""
    source = torch.ones(2, requires_grad=True)
    there = copyto(source, CPU)
    assert source.to(CPU) is source
    assert not there.requires_grad
    there.zero_()
    assert source.tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match=r"cannot copy \(3,\) into \(2, 3\): copyto needs equal shapes"):
        copyto(torch.ones(3), torch.zeros(2, 3))
