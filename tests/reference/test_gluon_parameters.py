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
