"""The trainers against one device, the CPU stand-in for nn.DataParallel, and the threads that both run on."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from hypothesis import given, settings
from torch import Tensor, nn

from reference.cpu_data_parallel import CPUDataParallel
from reference.load import load_named
from reference.models.lenet import lenet, lenet_params
from reference.replicas import PerDevice, get_params
from reference.trainers import TRAINERS
from reference.trainers.data_parallel import data_parallel
from reference.trainers.ddp import DDPTrainer
from reference.trainers.protocol import Trainer
from reference.trainers.scratch import Scratch, train_batch
from reference.trainers.single import Single
from tests.strategies import CPU, Case, Gated, Nested, bit_equal, cases, conv_net, smooth_net, update_bound, values

LR = 0.5
in_parallel = pytest.mark.parametrize("name", ["scratch", "data_parallel"])


@pytest.fixture(autouse=True, scope="module")
def one_intra_op_thread() -> Iterator[None]:
    """Keep torch to one thread: on a busy machine a second one is waited for at every small operation."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make(name: str, net: nn.Module, devices: Sequence[torch.device]) -> Any:
    """Return a trainer from the table, by its name."""
    return cast(type[Trainer], load_named(name, TRAINERS, "trainer"))(net, devices, lr=LR)


def check_against_single(name: str, case: Case) -> None:
    """Take each step from the oracle's weights; no replica may differ from it by more than rounding."""
    net = case.net
    for X, y in case.batches:
        before = copy.deepcopy(net)
        oracle, trainer = Single(net, [CPU], lr=LR), make(name, net, case.devices)
        torch.testing.assert_close(trainer.step(X, y, len(X)), oracle.step(X, y, len(X)))
        for replica in trainer.replicas:
            triples = zip(values(replica), values(oracle.net), update_bound(net, X, y, LR), strict=True)
            assert all(((ours - theirs).abs() <= bound).all() for ours, theirs, bound in triples)
            assert bit_equal(replica, trainer.replicas[0])
        assert bit_equal(net, before), "the model that was handed over has changed"
        trainer.close()
        net = oracle.net


@in_parallel
@settings(max_examples=25, deadline=None)
@given(case=cases(conv_net, (1, 6, 6), torch.float64))
def test_a_float64_step_equals_one_devices_on_any_split(name: str, case: Case) -> None:
    """1 to 8 devices, uneven shards, fewer samples than devices, batch sizes that change."""
    check_against_single(name, case)


@in_parallel
@settings(max_examples=25, deadline=None)
@given(case=cases(smooth_net, (6,), torch.float32))
def test_a_float32_step_equals_one_devices_on_a_smooth_net(name: str, case: Case) -> None:
    """Without kinks rounding stays rounding."""
    check_against_single(name, case)


@in_parallel
@settings(max_examples=15, deadline=None)
@given(case=cases(smooth_net, (6,), torch.float64, max_steps=4))
def test_replicas_stay_bit_equal_over_a_trajectory(name: str, case: Case) -> None:
    """Also those that were idle in a step; and the end is one device's end."""
    oracle, trainer = Single(case.net, [CPU], lr=LR), make(name, case.net, case.devices)
    for X, y in case.batches:
        oracle.step(X, y, len(X))
        trainer.step(X, y, len(X))
        assert all(bit_equal(replica, trainer.replicas[0]) for replica in trainer.replicas)
    for ours, theirs in zip(values(trainer.replicas[0]), values(oracle.net), strict=True):
        torch.testing.assert_close(ours, theirs)
    trainer.close()


def test_the_tolerance_would_catch_a_lost_write_back() -> None:
    """The book's all-reduce leaves device 1 with its own gradient, far outside the bound."""
    torch.manual_seed(0)
    net, X, y = smooth_net().double(), torch.randn(7, 6, dtype=torch.float64), torch.randint(4, (7,))
    oracle, nets = Single(net, [CPU], lr=LR), [copy.deepcopy(net) for _ in range(2)]

    def rebinding(tensors: Sequence[Tensor]) -> None:
        for tensor in tensors[1:]:
            tensors[0].add_(tensor)

    params, devices = [list(net.parameters()) for net in nets], PerDevice([CPU] * 2)
    train_batch(X, y, nets, params, devices, LR, all_reduce_=rebinding)
    oracle.step(X, y, 7)
    pairs = zip(values(nets[1]), values(oracle.net), update_bound(net, X, y, LR), strict=True)
    assert all(((ours - theirs).abs() > 1e6 * bound).any() for ours, theirs, bound in pairs)
    devices.close()


@in_parallel
def test_one_device_is_the_identity(name: str) -> None:
    """World size 1 has nothing to split or exchange."""
    net, X, y = conv_net(), torch.randn(5, 1, 6, 6), torch.randint(4, (5,))
    oracle, trainer = Single(net, [CPU], lr=LR), make(name, net, [CPU])
    oracle.step(X, y, 5)
    trainer.step(X, y, 5)
    for ours, theirs in zip(values(trainer.replicas[0]), values(oracle.net), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["single", "scratch", "data_parallel"])
def test_a_step_returns_the_mean_loss_detached(name: str) -> None:
    """A tensor without a graph: reading it is the caller's decision."""
    net, X, y = smooth_net(), torch.randn(5, 6), torch.randint(4, (5,))
    loss = make(name, net, [CPU] * 3).step(X, y, 5)
    assert loss.shape == ()
    assert not loss.requires_grad
    torch.testing.assert_close(loss, F.cross_entropy(net(X), y).detach())


@in_parallel
def test_a_parameter_that_some_shards_do_not_use_gets_the_others_gradient_everywhere(name: str) -> None:
    """And one that no shard uses stays as it was."""
    torch.manual_seed(0)
    X, y = torch.randn(6, 6, dtype=torch.float64), torch.randint(4, (6,))
    X[:4, 0], X[4:, 0] = -1, 1
    net = Gated().double()
    oracle, trainer = Single(net, [CPU], lr=LR), make(name, net, [CPU] * 3)
    oracle.step(X, y, 6)
    trainer.step(X, y, 6)
    assert not torch.equal(oracle.net.extra.weight, net.extra.weight)  # type: ignore[union-attr, arg-type]
    for replica in trainer.replicas:
        torch.testing.assert_close(values(replica), values(oracle.net))
        assert torch.equal(replica.never.weight, net.never.weight)


def test_train_batch_takes_the_functional_lenet_with_its_parameters_bound() -> None:
    """The notebook's own use: functions and parameter lists, no modules."""
    torch.manual_seed(0)
    X, y = torch.randn(5, 1, 28, 28), torch.randint(10, (5,))
    master = lenet_params()
    device_params = [get_params(master, CPU) for _ in range(3)]
    nets = [partial(lenet, params=params) for params in device_params]
    loss = train_batch(X, y, nets, device_params, PerDevice([CPU] * 3), LR)
    torch.testing.assert_close(loss, F.cross_entropy(lenet(X, master), y, reduction="sum"))
    (alone,) = params_of_one = [get_params(master, CPU)]
    train_batch(X, y, [partial(lenet, params=alone)], params_of_one, PerDevice([CPU]), LR)
    for params in device_params:
        torch.testing.assert_close(params, alone)
        assert all(torch.equal(a, b) for a, b in zip(params, device_params[0], strict=True))


def test_without_the_exchange_the_replicas_drift_apart() -> None:
    """Which shows that the exchange is what keeps them together."""
    trainer = Scratch(smooth_net(), [CPU] * 2, lr=LR)
    trainer.step_unsynced(torch.randn(4, 6), torch.tensor([0, 1, 2, 3]), 4)
    assert not bit_equal(*trainer.replicas)


def test_every_trainer_of_the_table_says_how_many_processes_it_needs() -> None:
    """The suite launches by this attribute."""
    needs = {name: cast(type[Trainer], load_named(name, TRAINERS, "trainer")).processes for name in TRAINERS}
    assert needs == {"single": "one", "scratch": "one", "data_parallel": "one", "ddp": "per-device"}


# Batch normalisation and dropout.


def means_after_a_step(name: str, X: Tensor) -> list[Tensor]:
    """Return the running means of all replicas, on three devices, after one step from mean 0 with momentum 0.1."""
    trainer = make(name, nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 4)), [CPU] * 3)
    trainer.step(X, torch.zeros(len(X), dtype=torch.int64), len(X))
    return [replica[0].running_mean for replica in trainer.replicas]


def test_data_parallel_keeps_the_running_statistics_of_the_first_shard_only() -> None:
    """Shards of 4, 4, 2: the module's buffers are those of replica 0."""
    X = torch.arange(20.0).reshape(10, 2)
    torch.testing.assert_close(means_after_a_step("data_parallel", X), [0.1 * X[:4].mean(0)])


def test_scratch_keeps_the_running_statistics_of_each_shard() -> None:
    """Parameters are bit-equal, buffers are not: mean of shard means is not the batch's mean either."""
    X = torch.arange(20.0).reshape(10, 2)
    means = means_after_a_step("scratch", X)
    torch.testing.assert_close(means, [0.1 * shard.mean(0) for shard in (X[:4], X[4:8], X[8:])])
    assert not torch.allclose(torch.stack(means).mean(0), 0.1 * X.mean(0))


def test_dropout_masks_differ_between_replicas() -> None:
    """The threads draw from one generator, so no two shards lose the same features."""
    net = CPUDataParallel(nn.Dropout(0.5), [CPU] * 2)
    first, second = net(torch.ones(2, 64))
    assert not torch.equal(first, second)


# The stand-in for nn.DataParallel on CPU devices.


@pytest.mark.parametrize(("n", "k", "shards"), [(10, 3, 3), (10, 8, 5), (1, 4, 1), (5, 1, 1)])
def test_nested_inputs_are_split_and_nested_outputs_gathered(n: int, k: int, shards: int) -> None:
    """Tensors in tuples, dicts and keywords; a number goes to every replica; scalars become a vector, one a shard."""
    net = Nested()
    X = torch.arange(float(n))
    out = CPUDataParallel(net, [CPU] * k)((X, 2.0), rows={"a": torch.arange(n)})
    assert torch.equal(out["scaled"], 6 * X)
    assert torch.equal(out["rows"][0], torch.arange(n) + 1)
    assert out["total"].shape == ((shards,) if k > 1 else ())
    assert out["total"].sum() == X.sum()
    assert net.calls == 1, "only the first replica's buffer updates survive"


def test_gradients_reach_inputs_and_are_summed_into_the_original() -> None:
    """Integer outputs carry none and do not disturb."""
    net, X = Nested(), torch.arange(5.0, requires_grad=True)
    out = CPUDataParallel(net, [CPU] * 3)((X, 2.0), rows={"a": torch.arange(5)})
    assert not out["rows"][0].requires_grad
    (out["scaled"].sum() + out["total"] @ torch.tensor([1.0, 10.0, 100.0])).backward()
    assert X.grad is not None
    assert X.grad.tolist() == [7.0, 7.0, 16.0, 16.0, 106.0]
    assert net.weight.grad is not None
    assert net.weight.grad.item() == 20.0


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_evaluation_builds_no_graph(mode: Any) -> None:
    """In eval mode, under no_grad or inference_mode."""
    net = conv_net().eval()
    with mode():
        X = torch.randn(5, 1, 6, 6)
        output = CPUDataParallel(net, [CPU] * 3)(X)
        assert not output.requires_grad
        torch.testing.assert_close(output, net(X))


def test_an_empty_batch_keeps_its_shape() -> None:
    """Nothing in, nothing out, of the right width."""
    assert CPUDataParallel(smooth_net(), [CPU] * 3)(torch.zeros(0, 6)).shape == (0, 4)


def test_tied_parameters_and_recurrent_weights_are_replicated_once() -> None:
    """The gradient of a parameter with two places, and of an LSTM's, which keeps a second list of its weights."""
    torch.manual_seed(0)
    lstm, tied = nn.LSTM(6, 6, batch_first=True).double(), nn.Linear(6, 6).double()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.first, self.second = copy.deepcopy(lstm), copy.deepcopy(tied), nn.Linear(6, 6).double()
            self.second.weight = self.first.weight

        def forward(self, X: Tensor) -> Tensor:
            output: Tensor = self.second(self.first(self.lstm(X)[0]))
            return output

    net, X = Net(), torch.randn(5, 3, 6, dtype=torch.float64)
    params = list(net.parameters())
    alone = torch.autograd.grad(net(X).square().sum(), params)
    together = torch.autograd.grad(CPUDataParallel(net, [CPU] * 3)(X).square().sum(), params)
    torch.testing.assert_close(together, alone)


def test_a_frozen_parameter_gets_no_gradient() -> None:
    """As without the wrapper."""
    net = smooth_net()
    next(net.parameters()).requires_grad_(False)
    CPUDataParallel(net, [CPU] * 2)(torch.randn(4, 6)).sum().backward()
    assert [param.grad is None for param in net.parameters()] == [True, False, False, False]


def test_inputs_that_cannot_be_split_alike_are_reported() -> None:
    """Torch's wrapper cuts the longer one short without a word."""
    net = CPUDataParallel(nn.Bilinear(1, 1, 1), [CPU] * 2)
    with pytest.raises(ValueError, match=r"inputs of shapes \(3, 1\), \(2, 1\) cannot be split alike"):
        net(torch.zeros(3, 1), torch.zeros(2, 1))


def test_outputs_that_cannot_be_gathered_are_reported() -> None:
    """Only tensors can."""

    class Talker(nn.Module):
        def forward(self, X: Tensor) -> str:
            return "done"

    with pytest.raises(TypeError, match="the module returned a str: only tensors can be gathered"):
        CPUDataParallel(Talker(), [CPU] * 2)(torch.zeros(2))


def test_only_several_devices_are_wrapped() -> None:
    """The tutorial's rule; the module then lies on the first device."""
    net = smooth_net()
    assert data_parallel(net, [CPU]) is net
    assert isinstance(data_parallel(net, [CPU] * 2), CPUDataParallel)


def test_devices_of_two_kinds_are_reported() -> None:
    """Neither wrapper can drive both."""
    with pytest.raises(ValueError, match=r"devices are of 2 kinds, .*needs exactly one kind"):
        data_parallel(smooth_net(), [CPU, torch.device("cuda:0")])


# DistributedDataParallel, in a world of one; more ranks need more processes.


@pytest.fixture
def gloo_world_of_one() -> Iterator[None]:
    """Initialise the default process group in this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("gloo_world_of_one")
def test_ddp_alone_equals_single_with_and_without_the_exchange() -> None:
    """The scaling by world_size / global_batch_size cancels DDP's mean."""
    net, X, y = conv_net().double(), torch.randn(5, 1, 6, 6, dtype=torch.float64), torch.randint(4, (5,))
    oracle, trainer = Single(net, [CPU], lr=LR), DDPTrainer(net, [CPU], lr=LR)
    for step in (trainer.step, trainer.step_unsynced):
        torch.testing.assert_close(step(X, y, 5), oracle.step(X, y, 5))
        torch.testing.assert_close(values(trainer.replicas[0]), values(oracle.net))


@pytest.mark.usefixtures("gloo_world_of_one")
def test_ddp_takes_part_with_an_empty_shard() -> None:
    """The loss of no samples is 0 and so is its gradient."""
    net = conv_net()
    trainer = DDPTrainer(net, [CPU], lr=LR)
    assert trainer.step(torch.zeros(0, 1, 6, 6), torch.zeros(0, dtype=torch.int64), 4) == 0
    assert bit_equal(trainer.replicas[0], net)


def test_ddp_without_a_process_group_is_reported() -> None:
    """With the call that is missing."""
    with pytest.raises(RuntimeError, match=r"there is no process group: call torch.distributed.init_process_group"):
        DDPTrainer(smooth_net(), [CPU], lr=LR)
