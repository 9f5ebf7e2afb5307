"""What one-process trainers do beyond the generated checks, the book's loop by itself, and steps on one device.

Gradients (also with shared, frozen and no parameters), trajectories, replicas, losses, one device, normalisation and
dropout of all trainers: `pytest -m correctness`.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from torch import Tensor, nn
from torch.autograd.profiler import profile

from reference.all_reduce.traffic import count_traffic
from reference.load import load_named
from reference.models.lenet import LeNet, lenet
from reference.models.resnet import resnet18
from reference.per_device import PerDevice, get_params
from reference.trainers import PLAIN_ON_ONE, TRAINERS, trains
from reference.trainers.ddp import DDPTrainer
from reference.trainers.scratch import Scratch, ScratchSharded, train_batch
from reference.trainers.single import Single
from suite.properties import case as generated
from suite.properties import nets
from tests.support.strategies import (
    CPU,
    LR,
    Case,
    Gated,
    batch,
    bit_equal,
    cases,
    check_step,
    smooth_net,
    update_bound,
    values,
)

pytestmark = pytest.mark.usefixtures("one_intra_op_thread")

Make = Callable[[str, nn.Module, int], Any]

TRAINER_CLASSES: dict[str, Any] = {name: load_named(name, TRAINERS, "trainer") for name in TRAINERS}
ONE_PROCESS = [name for name, trainer in TRAINER_CLASSES.items() if trainer.processes == "one"]
in_one_process = pytest.mark.parametrize("name", ONE_PROCESS)
in_parallel = pytest.mark.parametrize("name", [name for name in ONE_PROCESS if name != "single"])
can_leave_out_the_exchange = pytest.mark.parametrize(
    "name", [name for name in ONE_PROCESS if hasattr(TRAINER_CLASSES[name], "step_unsynced")]
)


@pytest.fixture
def make() -> Iterator[Make]:
    """Return a function that makes a trainer by name on k virtual CPU devices; all are closed after the test."""
    made: list[Any] = []

    def one(name: str, net: nn.Module, k: int) -> Any:
        made.append(TRAINER_CLASSES[name](net, [CPU] * k, lr=LR))
        return made[-1]

    yield one
    for trainer in made:
        getattr(trainer, "close", lambda: None)()


@in_one_process
def test_the_model_that_is_handed_over_stays_as_it_is(make: Make, name: str) -> None:
    model = nn.Sequential(nn.BatchNorm1d(6), smooth_net()).double()
    before, trainer = copy.deepcopy(model.state_dict()), make(name, model, 2)
    trainer.step(*batch(5), 5)
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())
    assert all(param.grad is None for param in model.parameters())
    trained = trainer.replicas[0].state_dict()
    assert not any(torch.equal(tensor, before[key]) for key, tensor in trained.items())


@in_one_process
def test_a_step_returns_a_detached_scalar(make: Make, name: str) -> None:
    loss = make(name, smooth_net().double(), 3).step(*batch(5), 5)
    assert loss.shape == ()
    assert not loss.requires_grad


@in_parallel
def test_an_empty_minibatch_changes_nothing(make: Make, name: str) -> None:
    net = smooth_net().double()
    trainer = make(name, net, 3)
    assert trainer.step(*batch(0), 4) == 0
    assert all(bit_equal(replica, net) for replica in trainer.replicas)


@in_parallel
def test_parameters_that_some_or_no_shards_use_are_trained_and_not_refused(make: Make, name: str) -> None:
    """A device without a gradient gets the others' sum, not its last one; what no device uses stays."""
    torch.manual_seed(0)
    trainer = make(name, Gated().double(), 3)
    X, y = batch(6)
    for first_features in ([1, 1, 1, 1, 1, 1], [-1, -1, -1, -1, 1, 1], [1, 1, -1, -1, -1, -1], [-1] * 6):
        X[:, 0] = torch.tensor(first_features)
        before = values(trainer.replicas[0])
        check_step(trainer, X, y)
        changed = [not torch.equal(a, b) for a, b in zip(before, values(trainer.replicas[0]), strict=True)]
        assert changed == [True] * 2 + [1 in first_features] * 2 + [False] * 2


@can_leave_out_the_exchange
@pytest.mark.parametrize("n", [6, 2], ids=["all busy", "one idle"])
def test_without_the_exchange_each_replica_follows_its_own_shard(make: Make, name: str, n: int) -> None:
    """Each replica is bit-equal to one device on its shard; an idle one does not change."""
    net, (X, y) = smooth_net().double(), batch(n)
    trainer = make(name, net, 3)
    trainer.step_unsynced(X, y, n)
    for rank, replica in enumerate(trainer.replicas):
        alone, shard = Single(net, [CPU], lr=LR), slice(rank * max(1, n // 3), (rank + 1) * max(1, n // 3))
        alone.step(X[shard], y[shard], n)
        assert bit_equal(replica, alone.net)
        assert bit_equal(replica, net) is (n == 2 and rank == 2)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("scratch", [4, 4, 2]),
        ("scratch_overlap", [4, 4, 2]),
        ("weighted", [4, 3, 3]),
        ("data_parallel", [4]),
        ("gluon", [4, 3, 3]),
    ],
)
def test_every_replica_keeps_the_statistics_of_its_own_shard_in_its_buffers(
    make: Make, name: str, sizes: list[int]
) -> None:
    """Each trainer splits by its own rule; data_parallel keeps its first replica's statistics only."""
    X = torch.arange(20.0).reshape(10, 2)
    trainer = make(name, nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 4)), 3)
    trainer.step(X, torch.zeros(10, dtype=torch.int64), 10)
    means: list[Tensor] = [replica[0].running_mean for replica in trainer.replicas]
    torch.testing.assert_close(means, [0.1 * shard.mean(0) for shard in X[: sum(sizes)].split(sizes)])
    assert not torch.allclose(torch.stack(means).mean(0), 0.1 * X.mean(0))


@pytest.mark.nightly
@settings(max_examples=4)
@given(case=cases(LeNet, (1, 28, 28), torch.float64, max_steps=1))
def test_the_notebooks_functional_lenet_on_any_split_is_one_device(case: Case) -> None:
    """Losses and updates are those of `Single`, and the copies stay equal."""
    oracle = Single(case.net, [CPU], lr=LR)
    device_params = [get_params(list(case.net.parameters()), CPU) for _ in case.devices]
    nets = [partial(lenet, params=params) for params in device_params]
    per_device = PerDevice(case.devices)
    for X, y in case.batches:
        bounds = update_bound(oracle.net, X, LR)
        loss = train_batch(X, y, nets, device_params, per_device, LR)
        torch.testing.assert_close(loss / len(X), oracle.step(X, y, len(X)))
        for params in device_params:
            assert all(torch.equal(a, b) for a, b in zip(params, device_params[0], strict=True))
        for ours, theirs, bound in zip(device_params[0], values(oracle.net), bounds, strict=True):
            assert bool(((ours - theirs).abs() <= bound).all())
    per_device.close()


def normalising_by_what_it_has_seen() -> nn.Module:
    """Return a ResNet-18 of 4 channels with BatchNorm in eval mode, so that one device is the oracle."""
    net = resnet18(width=4)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    return net


@settings(max_examples=2)
@given(case=cases(normalising_by_what_it_has_seen, (1, 12, 12), torch.float64, max_steps=1))
def test_resnet18_on_any_split_is_one_device(case: Case) -> None:
    """The book's second network, narrow, in float64, with the trainer of its chapter."""
    trainer = TRAINER_CLASSES["data_parallel"](case.net, case.devices, lr=LR)
    for X, y in case.batches:
        check_step(trainer, X, y)
    trainer.close()


def test_different_parameters_on_different_devices_is_the_same_step_with_less_through_the_first() -> None:
    """The book's exercise: each device sends 2 (k - 1) / k of the gradients' bytes, where k divides them."""
    net, (X, y), k = nn.Linear(6, 4, bias=False).double(), batch(8), 4
    counts = {}
    for trainer in (Scratch(net, [CPU] * k, lr=LR), ScratchSharded(net, [CPU] * k, lr=LR)):
        with count_traffic() as traffic:
            check_step(trainer, X, y)
        counts[type(trainer)] = [traffic.sent_bytes(rank) for rank in range(k)]
        trainer.close()
    n = net.weight.numel() * 8
    assert counts == {Scratch: [3 * n, n, n, n], ScratchSharded: [n * 2 * 3 // 4] * k}


def test_ddp_without_a_process_group_is_reported() -> None:
    with pytest.raises(RuntimeError, match=r"there is no process group: call torch.distributed.init_process_group"):
        DDPTrainer(smooth_net(), [CPU], lr=LR)


PRODUCTS = {f"aten::{name}" for name in ("convolution", "convolution_backward", "addmm", "mm", "bmm")}
BATCHES = (4, 3, 5)
STEPS = ("step", "step_unsynced")


@pytest.fixture
def _world_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def trained(name: str, case: generated.Case, step_name: str) -> tuple[list[torch.Tensor], Counter[str]]:
    """Return the weights after all steps of a case, and how many products of matrices the last step took."""
    trainer: Any = TRAINER_CLASSES[name](nets.build(case), [CPU], lr=LR)
    last = len(case.batches) - 1
    for step, n in enumerate(case.batches):
        X, y = nets.minibatch(case, step)
        with profile(enabled=step == last) as recorded:
            getattr(trainer, step_name)(X, y, n)
    getattr(trainer, "close", lambda: None)()
    work = Counter(event.name for event in recorded.function_events or () if event.name in PRODUCTS)
    return values(trainer.replicas[0]), work


@pytest.mark.usefixtures("_world_of_one")
@pytest.mark.parametrize(
    ("name", "step_name"),
    [(name, step) for name in PLAIN_ON_ONE for step in STEPS if hasattr(TRAINER_CLASSES[name], step)],
)
def test_their_steps_have_the_results_and_the_work_of_single(name: str, step_name: str) -> None:
    """In float64 they are apart by rounding: some divide the loss by the batch, and some its gradient."""
    if "samples" in trains(name):
        net = generated.Net(inputs=36, hidden=(4,), conv=True, tied=True)
        case = generated.Case(1, BATCHES, net=net)
    else:
        case = generated.Case(1, BATCHES, text=generated.Text(blocks=1, ignored=True, weighted=True))
    expected, work = trained("single", case, "step")
    found, own_work = trained(name, case, step_name)
    assert own_work == work
    assert sum(work.values()) > len(BATCHES)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
