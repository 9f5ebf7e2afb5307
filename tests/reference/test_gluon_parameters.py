"""Gluon's net and parameters on several devices: initialised at once, or deferred to the first forward."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from reference.gluon import DeferredInitializationError, Net, Parameter, Trainer
from reference.models.init import xavier
from tests.support.gluon_nets import FIRST, SECOND, backward, lazy_net, minibatch, net_on, synced
from tests.support.strategies import CPU, LR, TiedNet, bit_equal, conv_net, seeds, smooth_net, values, world_sizes

ELSEWHERE = torch.device("cuda:1")

pytestmark = pytest.mark.usefixtures("one_intra_op_thread")


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


def test_set_data_writes_into_every_copy() -> None:
    net = net_on(3)
    net.collect_params()["0.bias"].set_data(torch.arange(5.0))
    assert [replica[0].bias.tolist() for replica in net.replicas] == [[0.0, 1.0, 2.0, 3.0, 4.0]] * 3


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
