"""The sharded trainer on real gloo ranks: one device's update on every net that torch can shard, a refusal elsewhere.

`check` and `refuse` run on the ranks; the tests read what they answered. Convolutions, frozen parameters, float32 and
wrong means: `pytest -m correctness` and `tests/mutants`.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from reference.scatter import shard_bounds
from reference.trainers.fsdp import FSDPTrainer, require_backends, units
from reference.trainers.single import Single
from suite.checks.bench import Bench
from tests.support import on_ranks
from tests.support.strategies import CLASSES, CPU, conv_net, smooth_net, update_bound

WORLD_SIZES = [1, 2, 4]
BATCHES = [13, 5, 1, 8]  # with 4 ranks shards of 4, 4, 4, 1, of 2, 2, 1, 0 and of 1, 0, 0, 0
LR = 0.5
UNUSED_AS_ZEROS = hasattr(FSDPModule, "set_reduce_scatter_unused_params")


class Tied(nn.Module):
    """Two layers with one weight between them, one layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.back, self.tied, self.head = (nn.Linear(*size) for size in [(6, 5), (5, 6), (6, 5), (5, 4)])
        self.tied.weight = self.inner.weight

    def forward(self, X: Tensor) -> Tensor:
        h = torch.tanh(self.back(torch.tanh(self.inner(X))))
        return self.head(torch.tanh(self.tied(torch.tanh(self.back(torch.tanh(self.tied(h)))))))


class Deep(nn.Module):
    """A list of blocks inside a child; notes whether a block's weight is a slice again once the block has run."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Module()
        self.body.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.scale = nn.Parameter(torch.rand(6))
        self.head = nn.Linear(6, CLASSES)
        self.sliced: list[bool] = []

    def forward(self, X: Tensor) -> Tensor:
        for block in self.body.blocks:
            X = torch.tanh(block(X)) * self.scale
        self.sliced.append(isinstance(self.body.blocks[0].weight, DTensor))
        return self.head(X)


class Idle(nn.Module):
    """Has an unused layer, an unused parameter, and buffers of other dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.Linear(6, CLASSES), nn.Linear(6, CLASSES)
        self.spare = nn.Parameter(torch.rand(3))
        self.register_buffer("mask", torch.rand(6) > 0.5)
        self.register_buffer("count", torch.randint(1000, ()))

    def forward(self, X: Tensor) -> Tensor:
        return self.used(X * self.mask)


class OnSomeRanks(nn.Module):
    """Uses one of its own parameters only where a sample's first feature is positive."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.extra = nn.Parameter(torch.rand(6, CLASSES)), nn.Parameter(torch.rand(6, CLASSES))

    def forward(self, X: Tensor) -> Tensor:
        chosen = X[:, :1] > 0
        return X @ self.weight + (chosen * (X @ self.extra) if chosen.any() else 0)


class Routed(nn.Module):
    """Sends every rank through a layer of its own; with `skip`, rank 1 through none."""

    def __init__(self, skip: bool) -> None:
        super().__init__()
        self.skip = skip
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
        self.head = nn.Linear(6, CLASSES)

    def forward(self, X: Tensor) -> Tensor:
        rank = dist.get_rank()
        return self.head(X if self.skip and rank == 1 else self.experts[rank](X))


# Net and the shape of a sample. The weights of "narrow" have 2, 1 and 4 rows: some ranks get no slice of them.
NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "channels-last": (lambda: conv_net().to(memory_format=torch.channels_last), (1, 6, 6)),
    "narrow": (lambda: nn.Sequential(nn.Linear(6, 2), nn.Tanh(), nn.Linear(2, 1), nn.Linear(1, 4)), (6,)),
    "tied": (Tied, (6,)),
    "deep": (Deep, (6,)),
    "idle": (Idle, (6,)),
    "on-some-ranks": (OnSomeRanks, (6,)),
}


def whole(net: nn.Module) -> dict[str, Tensor]:
    """Gather the parameters and buffers of a sharded net; every rank must call it."""
    tensors = [*net.named_parameters(), *net.named_buffers()]
    return {name: (t.full_tensor() if isinstance(t, DTensor) else t).detach().clone() for name, t in tensors}


def digest(tensors: dict[str, Tensor]) -> str:
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in tensors.values())).hexdigest()


def check(nets: list[str]) -> dict[str, Any]:
    """Train each net in float64 for a few steps, and compare every step with one device's from the same parameters."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    answers = {}
    for name in nets:
        make_net, shape = NETS[name]
        torch.manual_seed(rank)  # rank 0's are the weights that count
        model = make_net().double()
        given = digest(whole(model))
        sharded = FSDPTrainer(model, [CPU], lr=LR)
        start, ratio = whole(sharded.net), 0.0
        before, first = start, digest(start)
        for size in BATCHES:
            generator = torch.Generator().manual_seed(size)
            X = torch.randn(size, *shape, generator=generator, dtype=torch.float64)
            y = torch.randint(CLASSES, (size,), generator=generator)
            mine = shard_bounds(size, world_size, rank)
            sharded.step(X[mine], y[mine], size)
            after = whole(sharded.replicas[0])
            expected = copy.deepcopy(model)
            expected.load_state_dict(before, strict=False)
            bounds = update_bound(expected, X, LR)
            one = Single(expected, [CPU], lr=LR)
            one.step(X, y, size)
            for (key, parameter), bound in zip(one.net.named_parameters(), bounds, strict=True):
                ratio = max(ratio, float(((after[key] - parameter.detach()).abs() / bound).max()))
            before = after
        with torch.no_grad():
            sharded.net(X[mine])  # as an evaluation would, after which torch leaves some parameters whole
        parameters = list(sharded.replicas[0].parameters())
        answers[name] = {
            "ratio": ratio,
            "start": first,
            "given": given,
            "model untouched": digest(whole(model)) == given,
            "moved": any(not torch.equal(start[key], after[key]) for key in start),
            "end": digest({key: after[key] for key, _ in model.named_parameters()}),
            "kept": sum(p.to_local().numel() if isinstance(p, DTensor) else p.numel() for p in parameters),
            "total": sum(p.numel() for p in model.parameters()),
            "sliced": getattr(sharded.net, "sliced", []),
        }
    return answers


def refuse() -> dict[str, Any]:
    """Train nets whose two ranks do not run the same layers."""
    answers: dict[str, Any] = {"on-some-ranks": check(["on-some-ranks"]) if UNUSED_AS_ZEROS else None}
    X, y = torch.randn(4, 6), torch.zeros(4, dtype=torch.int64)
    for skip in (False, True):
        sharded = FSDPTrainer(Routed(skip=skip), [CPU], lr=LR)
        before = digest(whole(sharded.net))
        with pytest.raises(RuntimeError) as refusal:
            sharded.step(X, y, 8)
        unchanged = digest(whole(sharded.replicas[0])) == before
        answers["skipped" if skip else "routed"] = str(refusal.value), unchanged
    return answers


@pytest.fixture(scope="module")
def answers(bench: Bench) -> dict[int, list[Any]]:
    nets = [name for name in NETS if name != "on-some-ranks"]
    return on_ranks.run(bench, "tests.processes.test_fsdp:check", WORLD_SIZES, nets=nets)


@pytest.fixture(scope="module")
def refused(bench: Bench) -> list[Any]:
    return on_ranks.run(bench, "tests.processes.test_fsdp:refuse", [2])[2]


@pytest.fixture(params=[name for name in NETS if name != "on-some-ranks"])
def by_world(request: pytest.FixtureRequest, answers: dict[int, list[Any]]) -> dict[int, list[dict[str, Any]]]:
    return {k: [rank[request.param] for rank in answers[k]] for k in WORLD_SIZES}


def test_every_step_is_one_devices(by_world: dict[int, list[dict[str, Any]]]) -> None:
    """Shards are uneven, and some are empty."""
    for ranks in by_world.values():
        assert all(answer["ratio"] <= 1 for answer in ranks)
        assert all(answer["moved"] for answer in ranks)


def test_rank_0s_parameters_and_buffers_count(by_world: dict[int, list[dict[str, Any]]]) -> None:
    """Every rank is given different weights, and its model is not changed."""
    for k, ranks in by_world.items():
        assert len({answer["given"] for answer in ranks}) == k
        assert {answer["start"] for answer in ranks} == {ranks[0]["given"]}
        assert all(answer["model untouched"] for answer in ranks)


def test_all_ranks_read_the_same_bits(by_world: dict[int, list[dict[str, Any]]]) -> None:
    assert all(len({answer["end"] for answer in ranks}) == 1 for ranks in by_world.values())


def test_every_value_is_kept_on_one_rank_only(by_world: dict[int, list[dict[str, Any]]]) -> None:
    """This holds after a forward without a backward too."""
    for ranks in by_world.values():
        assert sum(answer["kept"] for answer in ranks) == ranks[0]["total"]


def test_a_block_is_whole_only_while_it_runs(answers: dict[int, list[Any]]) -> None:
    # A forward each for the steps and the evaluation.
    assert all(rank["deep"]["sliced"] == [True] * (len(BATCHES) + 1) for k in (2, 4) for rank in answers[k])


@pytest.mark.skipif(not UNUSED_AS_ZEROS, reason="this torch ends the process when ranks use different parameters")
def test_a_parameter_used_on_some_ranks_only_gets_the_sum(refused: list[Any]) -> None:
    assert all(answer["on-some-ranks"]["on-some-ranks"]["ratio"] <= 1 for answer in refused)


def test_layers_of_equal_size_are_not_mixed_silently(refused: list[Any]) -> None:
    """Torch alone would exchange one rank's layer with another rank's other layer, and go on."""
    for rank, answer in enumerate(refused):
        message, unchanged = answer["routed"]
        assert message.startswith(f"rank {rank} comes to 'experts.{rank}', and another rank to another")
        assert message.endswith("the same order, if only to multiply a result by 0")
        assert unchanged


def test_a_layer_skipped_on_one_rank_is_refused_on_both(refused: list[Any]) -> None:
    """Torch alone would wait for ever, or gloo would end the process."""
    messages, unchanged = zip(*(answer["skipped"] for answer in refused), strict=True)
    assert all("and another rank to another layer" in message for message in messages)
    assert all(unchanged)


def test_a_missing_process_group_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"there is no process group: call torch\.distributed\.init_process_group"):
        FSDPTrainer(smooth_net(), [CPU], lr=LR)


@pytest.mark.parametrize("config", ["cuda:nccl", "cpu:gloo,cuda:gloo"])
def test_a_group_on_gpus_without_nccl_or_without_gloo_is_refused(config: str) -> None:
    """A gloo group for each trainer would leak sockets; gloo on GPU tensors ends the process."""
    with pytest.raises(RuntimeError, match=f"backends are {config!r}: FSDP on GPUs needs init_process_group"):
        require_backends(config)
    require_backends("cpu:gloo,cuda:nccl")


def names(net: nn.Module) -> list[str]:
    return [name for name, _ in units(net)]


def test_units_are_children_and_members_of_lists_inner_ones_first() -> None:
    assert names(Deep()) == ["head", "body.blocks.2", "body.blocks.1", "body.blocks.0"]
    assert names(nn.Sequential(nn.Sequential(nn.Linear(1, 1), nn.ReLU()), nn.Linear(1, 1))) == ["1", "0.0"]
    net = nn.Sequential(nn.ModuleDict({"a": nn.Linear(1, 1)}), nn.LSTM(1, 1))
    assert names(net) == ["1", "0.a"]


def test_a_part_that_shares_a_parameter_is_left_to_the_smallest_that_has_all_its_places() -> None:
    assert names(Tied()) == ["head", "back"]
    assert names(nn.Sequential(nn.Linear(1, 1), Tied())) == ["1", "0"]
    layer = nn.Linear(1, 1)
    assert names(nn.Sequential(nn.Sequential(layer, nn.ReLU(), layer), nn.Linear(1, 1))) == ["1", "0"]
    assert names(nn.Sequential(layer, nn.ReLU(), layer)) == []


def test_a_net_without_children_has_no_units() -> None:
    assert names(OnSomeRanks()) == []
