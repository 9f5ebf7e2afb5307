"""Batch normalisation over ranks against nn.BatchNorm on the whole batch: ranks as threads, then real gloo ranks.

**Tolerance.** For one channel let m be its values, A the largest |x|, v the variance, s = 1 / sqrt(v + eps), H the
largest |normalised value|, D the largest |upstream gradient|, u the unit round-off and g(t) = t u / (1 - t u), which
bounds the relative error of a sum of t terms in any order (Higham, "Accuracy and Stability of Numerical Algorithms",
section 4.2). To first order, constants rounded up:

- a deviation from the mean errs by d = g(m + 4) A, the sum for the mean and the subtraction;
- the variance by 2 d sqrt(v) + d^2 + g(m + 16) (v + eps), because mean |deviation| <= sqrt(v); s relatively by at most
  that over (v + eps), called r;
- a normalised value by n = d s + H (r + 6 u), an output by |w| n + 3 u (|w| H + |b|);
- mean(dy) by g(m + 2) D and mean(dy * normal) by p = g(m + 4) D H + D n; the gradient of the input, centred values
  times s w, by |w| s (g(m + 2) D + H p + n D H + (r + 12 u) (2 D + D H^2)), that of weight and bias by m times those.

Both computations err, hence twice that. Nothing is tuned, and what is looked for errs in the first digits.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch import distributed as dist

from reference.scatter import shard_bounds
from reference.sync_batch_norm import Gather, SyncBatchNorm, convert, convert_with
from reference.trainers.ddp import DDPTrainer
from reference.trainers.ddp_sync_bn import DDPSyncBNTrainer
from reference.trainers.single import Single
from suite.checks.bench import Bench
from tests.support import on_ranks
from tests.support.strategies import CLASSES, CPU, seeds

LAYERS: dict[int, type[nn.Module]] = {0: nn.BatchNorm1d, 1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


class Ranks:
    """Ranks that are threads of this process; a rank that raises sets the others free."""

    def __init__(self, world_size: int) -> None:
        self.rows: list[Tensor] = [torch.empty(0)] * world_size
        self.barrier = threading.Barrier(world_size, timeout=60)
        self.mine = threading.local()

    def gather(self, row: Tensor) -> Tensor:
        """Exchange as `reference.sync_batch_norm.Gather` says."""
        self.rows[self.mine.rank] = row
        self.barrier.wait()
        gathered = torch.stack(self.rows)
        self.barrier.wait()
        return gathered

    def run(self, function: Callable[[int], Any]) -> list[Any]:
        """Call a function with each rank at the same time; return the results, or raise what a rank raised."""

        def call(rank: int) -> Any:
            self.mine.rank = rank
            try:
                return function(rank)
            except threading.BrokenBarrierError:
                return None
            except Exception:
                self.barrier.abort()
                raise

        with ThreadPoolExecutor(len(self.rows)) as pool:
            return list(pool.map(call, range(len(self.rows))))


@dataclass(frozen=True)
class Case:
    """A layer with its state, and minibatches: (X, dY) of (n, c, ...), float64, with the sizes of their shards."""

    layer: nn.Module
    batches: list[tuple[Tensor, Tensor]]
    splits: list[list[int]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw layers of every kind and 1 to 3 minibatches on 1 to 4 ranks, shards uneven and empty, far from 0 too."""
    spatial = draw(st.integers(0, 3))
    channels, world_size = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    shape = [channels, *draw(st.lists(st.integers(1, 3), min_size=spatial, max_size=spatial))]
    layer = LAYERS[spatial](
        channels,
        eps=draw(st.sampled_from([1e-5, 1e-3])),
        momentum=draw(st.sampled_from([0.1, 1.0, None])),
        affine=draw(st.booleans()),
        track_running_stats=draw(st.booleans()),
    ).double()
    values = [shape[0] // channels, *shape[1:]]
    per_sample = int(torch.tensor(values).prod())
    shards = st.lists(st.integers(0, 5), min_size=world_size, max_size=world_size)
    splits = draw(st.lists(shards.filter(lambda sizes: sum(sizes) * per_sample > 1), min_size=1, max_size=3))
    offset = draw(st.sampled_from([0.0, 1.0, 1e3]))
    generator = torch.Generator().manual_seed(draw(seeds))
    for parameter in layer.parameters():
        parameter.data.normal_(generator=generator)
    batches = []
    for sizes in splits:
        X, dY = torch.randn(2, sum(sizes), *shape, generator=generator, dtype=torch.float64)
        batches.append((X + offset, dY))
    return Case(layer, batches, splits)


def ratios(case: Case, exchange: Callable[[Gather], Gather] = lambda gather: gather) -> dict[str, float]:
    """Return by quantity the largest error over its bound; 0 / 0 is right, NaN is not."""
    ranks = Ranks(len(case.splits[0]))
    whole, layers = copy.deepcopy(case.layer), []
    for _ in ranks.rows:
        layers.append(convert_with(copy.deepcopy(case.layer), exchange(ranks.gather)))
    worst: dict[str, float] = {"agreement": 0.0}
    running_bound: dict[str, Tensor | float] = {"running_mean": 0.0, "running_var": 0.0}
    for (X, dY), sizes in zip(case.batches, case.splits, strict=True):
        x = X.clone().requires_grad_()
        expected = whole(x)
        whole.zero_grad()
        expected.backward(dY)
        shards, upstream = (t.split(sizes) for t in (X, dY))

        def step(rank: int, shards: Any = shards, upstream: Any = upstream) -> tuple[Tensor, Tensor]:
            shard = shards[rank].clone().requires_grad_()
            layers[rank].zero_grad()
            output = layers[rank](shard)
            output.backward(upstream[rank])
            return output.detach(), shard.grad

        results = ranks.run(step)
        bound = bounds(X, dY, whole)
        found = {"output": torch.cat([y for y, _ in results]), "input": torch.cat([dx for _, dx in results])}
        wanted = {"output": expected.detach(), "input": x.grad}
        for name, parameter in whole.named_parameters():
            wanted[name] = parameter.grad
            found[name] = sum(dict(layer.named_parameters())[name].grad for layer in layers)
        for name in running_bound:
            running_bound[name] = running_bound[name] + bound[name]
            if getattr(whole, name) is not None:
                wanted[name], bound[name] = getattr(whole, name), running_bound[name]
                found[name] = getattr(layers[0], name)
                if not all(torch.equal(getattr(layer, name), found[name]) for layer in layers):
                    worst["agreement"] = float("inf")
        for name, value in wanted.items():
            error = (found[name] - value).abs().movedim(1, -1) if value.ndim > 1 else (found[name] - value).abs()
            ratio = torch.where(error == 0, 0.0, error / bound[name]).nan_to_num(nan=float("inf"))
            worst[name] = max(worst.get(name, 0.0), float(ratio.max()))
    for layer in layers:
        assert layer.num_batches_tracked == whole.num_batches_tracked
    return worst


def bounds(X: Tensor, dY: Tensor, layer: Any) -> dict[str, Any]:
    """The bounds of the module's docstring, (c,) each, for the layer on this batch (n, c, ...)."""
    x, dy = (t.movedim(1, 0).flatten(1) for t in (X, dY))  # (c, m)
    u = torch.finfo(x.dtype).eps / 2

    def g(terms: float) -> float:
        return terms * u / (1 - terms * u)

    m, A, D = x.shape[1], x.abs().amax(1), dy.abs().amax(1)
    v = x.var(1, correction=0)
    s = (v + layer.eps).rsqrt()
    H = ((x - x.mean(1, keepdim=True)) * s[:, None]).abs().amax(1)
    w = torch.ones_like(v) if layer.weight is None else layer.weight.detach().abs()
    b = torch.zeros_like(v) if layer.bias is None else layer.bias.detach().abs()
    d = g(m + 4) * A
    variance = 2 * d * v.sqrt() + d**2 + g(m + 16) * (v + layer.eps)
    r = variance / (v + layer.eps)
    n = d * s + H * (r + 6 * u)
    p = g(m + 4) * D * H + D * n
    unbiased = m / (m - 1)
    return {
        "output": 2 * (w * n + 3 * u * (w * H + b)),
        "input": 2 * w * s * (g(m + 2) * D + H * p + n * D * H + (r + 12 * u) * (2 * D + D * H**2)),
        "weight": 2 * m * p,
        "bias": 2 * m * g(m + 2) * D,
        # Moving a running value rounds it and the new one a few times.
        "running_mean": 2 * (d + 4 * u * A),
        "running_var": 2 * (variance * unbiased + 4 * u * (v * unbiased + 1)),
    }


@given(case=cases())
def test_any_split_is_the_whole_batch(case: Case) -> None:
    """Outputs, all gradients and running statistics; the ranks' statistics agree to the last bit."""
    assert {name: ratio for name, ratio in ratios(case).items() if ratio > 1} == {}


def uneven_case(offset: float = 0.0) -> Case:
    torch.manual_seed(0)
    batches = [(torch.randn(7, 2, 3, dtype=torch.float64) + offset, torch.randn(7, 2, 3, dtype=torch.float64))]
    return Case(nn.BatchNorm1d(2).double(), batches, [[4, 2, 1]])


def shard_only(gather: Gather) -> Gather:
    """Exchange, and use one's own: batch normalisation by shard."""
    return lambda row: row[None] if gather(row).numel() else row


def unweighted(gather: Gather) -> Gather:
    """Average the shards' means and variances, whatever their sizes; a forward's rows have an odd length."""

    def equal_counts(row: Tensor) -> Tensor:
        rows = gather(row)
        if rows.shape[1] % 2:
            mean_count = rows[:, :1].mean()
            sums = rows[:, 3:] / rows[:, :1] * mean_count
            rows = torch.cat([mean_count.expand(len(rows), 1), rows[:, 1:3], sums], dim=1)
        return rows

    return equal_counts


def forward_only(gather: Gather) -> Gather:
    """Leave the exchange out of the backward, whose rows have an even length."""
    return lambda row: gather(row) if len(row) % 2 else row[None] if gather(row).numel() else row


@pytest.mark.parametrize(
    ("exchange", "wrong"),
    [
        (shard_only, {"agreement", "output", "input", "weight", "running_mean", "running_var"}),
        (unweighted, {"output", "input", "weight", "running_mean", "running_var"}),
        (forward_only, {"input"}),
    ],
)
def test_a_wrong_exchange_is_found(exchange: Callable[[Gather], Gather], wrong: set[str]) -> None:
    assert max(ratios(uneven_case()).values()) <= 1
    assert {name for name, ratio in ratios(uneven_case(), exchange).items() if ratio > 1e6} == wrong


def test_a_sum_of_squares_would_cancel() -> None:
    """Far from 0 the textbook's formula loses digits that ours keeps."""
    case = uneven_case(offset=1e6)
    assert max(ratios(case).values()) <= 1
    x = case.batches[0][0].movedim(1, 0).flatten(1)
    by_squares = x.square().mean(1) - x.mean(1).square()
    error = (by_squares - x.var(1, correction=0)).abs() * 0.1 * x.shape[1] / (x.shape[1] - 1)
    assert (error > 100 * bounds(*case.batches[0], case.layer)["running_var"]).all()


@given(case=cases())
def test_evaluation_does_not_exchange(case: Case) -> None:
    """It is nn.BatchNorm's, to the last bit, on a rank alone."""

    def nobody_answers(row: Tensor) -> Tensor:
        raise AssertionError("evaluation asked the other ranks")

    X = case.batches[0][0]
    layer = convert_with(case.layer, nobody_answers)
    assert torch.equal(layer.eval()(X), case.layer.eval()(X))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_summed_in_float32(dtype: torch.dtype) -> None:
    """A mean of 4096 ones and threes would stop growing in half precision."""
    X = torch.tensor([1.0, 3.0]).repeat(2048)[:, None].to(dtype).requires_grad_()
    layer = convert_with(nn.BatchNorm1d(1), lambda row: row[None])
    output = layer(X)
    output.sum().backward()
    assert output.dtype == X.grad.dtype == dtype
    # Both normalised values are 1 / sqrt(1 + eps) in magnitude, which rounds to 1 in either dtype.
    assert torch.equal(output, torch.tensor([-1.0, 1.0]).repeat(2048)[:, None].to(dtype))
    assert layer.running_mean == pytest.approx(0.1 * 2)


@pytest.mark.parametrize("sizes", [[1, 0], [0, 1], [0, 0], [1]])
def test_one_value_per_channel_is_an_error_on_every_rank(sizes: list[int]) -> None:
    ranks = Ranks(len(sizes))

    def message(rank: int) -> str:
        with pytest.raises(ValueError, match=r"over \d ranks: a variance needs at least 2, so give") as error:
            convert_with(nn.BatchNorm1d(3), ranks.gather)(torch.ones(sizes[rank], 3))
        return str(error.value)

    expected = f"X has {sum(sizes)} values per channel over {len(sizes)} ranks"
    assert all(found.startswith(expected) for found in ranks.run(message))


@pytest.mark.parametrize("shape", [(5,), (5, 2), (2, 5, 3)])
def test_an_input_without_the_layers_channels_is_an_error(shape: tuple[int, ...]) -> None:
    layer = convert(nn.BatchNorm1d(3, affine=False, track_running_stats=False))
    with pytest.raises(ValueError, match=r"X is \(.*5.*\): this layer normalises \(n, 3, \.\.\.\), channels second"):
        layer(torch.ones(shape))


class Derived(nn.BatchNorm2d):
    """Does something more than its base."""

    def forward(self, X: Tensor) -> Tensor:
        """Normalise and cut."""
        return super().forward(X).relu()


@pytest.mark.parametrize("layer", [Derived(3), nn.LazyBatchNorm2d()])
def test_a_layer_whose_forward_would_be_lost_is_refused(layer: nn.Module) -> None:
    name = type(layer).__name__
    with pytest.raises(ValueError, match=rf"layer '0\.0' is a {name}: only BatchNorm1d, 2d and 3d themselves"):
        convert(nn.Sequential(nn.Sequential(layer)))


def test_convert_keeps_the_tensors_the_places_and_the_original() -> None:
    layer = nn.BatchNorm1d(3)
    net = nn.Sequential(
        nn.Linear(3, 3), layer, nn.ModuleDict({"again": layer}), nn.SyncBatchNorm(3), nn.GroupNorm(1, 3)
    )
    converted = convert(net)
    assert [type(m) for m in net.modules()].count(SyncBatchNorm) == 0
    assert isinstance(converted[1], SyncBatchNorm)
    assert converted[1] is converted[2]["again"]
    assert type(converted[3]) is nn.SyncBatchNorm
    assert list(converted.state_dict()) == list(net.state_dict())
    ours, theirs = ([*module.parameters(), *module.buffers()] for module in (converted, net))
    assert [id(tensor) for tensor in ours] == [id(tensor) for tensor in theirs]
    assert isinstance(convert(layer.eval()), SyncBatchNorm)
    assert not convert(layer).training
    assert isinstance(convert(converted)[1], SyncBatchNorm)


def test_training_without_a_process_group_is_torchs_error() -> None:
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        convert(nn.BatchNorm1d(3))(torch.ones(4, 3))


def normalised_net() -> nn.Module:
    """Normalise the data, an image and a vector: (n, 1, 6, 6) to (n, 4)."""
    return nn.Sequential(
        nn.BatchNorm2d(1),
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4, momentum=None),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 5),
        nn.BatchNorm1d(5),
        nn.Tanh(),
        nn.Linear(5, CLASSES),
    ).double()


def train() -> dict[str, Any]:
    """Train on real ranks and on one device, 3 ranks with an empty shard of the smallest minibatch."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    answer: dict[str, Any] = {}
    # Alone, a rank with one sample is refused by nn.BatchNorm1d: DDP gets minibatches that leave none.
    for trainer_class, sizes in ((DDPSyncBNTrainer, (13, 5, 2, 7)), (DDPTrainer, (13, 6))):
        torch.manual_seed(0)
        alone = Single(normalised_net(), [CPU], lr=0.1)
        start = {name: t.clone() for name, t in alone.net.state_dict().items()}
        torch.manual_seed(rank)  # rank 0's are the weights that count
        trainer = trainer_class(normalised_net(), [CPU], lr=0.1)
        for size in sizes:
            X = torch.randn(size, 1, 6, 6, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
            y = torch.arange(size) % CLASSES
            alone.step(X, y, size)
            mine = shard_bounds(size, world_size, rank)
            trainer.step(X[mine], y[mine], size)
        end, found = alone.net.state_dict(), trainer.replicas[0].state_dict()
        change = max(float((end[name] - start[name]).abs().max()) for name in end)
        error = max(float((found[name] - end[name]).abs().max()) for name in end)
        answer[trainer_class.__name__] = error / change
        answer["state"] = {name: value.tolist() for name, value in found.items()}
        if trainer_class is DDPSyncBNTrainer:
            answer["synced state"] = answer["state"]
            try:
                trainer.step(X[: 1 - min(rank, 1)], y[: 1 - min(rank, 1)], 1)
            except ValueError as refusal:
                answer["refusal"] = str(refusal)
    return answer


@pytest.fixture(scope="module")
def trained(bench: Bench) -> dict[int, list[Any]]:
    """What `train` answers, by world size and rank."""
    return on_ranks.run(bench, "tests.reference.test_sync_batch_norm:train", [2, 3])


@pytest.mark.parametrize("world_size", [2, 3])
def test_ddp_with_sync_batch_norm_is_one_device(trained: dict[int, list[Any]], world_size: int) -> None:
    """Parameters and running statistics, with half of the digits: the gradients' conditioning is not worked out here.

    Batch normalisation by shard errs in the first ones.
    """
    half_the_digits = torch.finfo(torch.float64).eps ** 0.5
    for answer in trained[world_size]:
        assert answer["DDPSyncBNTrainer"] <= half_the_digits
        assert answer["DDPTrainer"] > 1e-3
        assert answer["synced state"] == trained[world_size][0]["synced state"]


@pytest.mark.parametrize("world_size", [2, 3])
def test_one_sample_is_refused_on_every_real_rank(trained: dict[int, list[Any]], world_size: int) -> None:
    """By the layer over vectors; images have a value for each pixel."""
    expected = f"X has 1 values per channel over {world_size} ranks"
    assert all(answer["refusal"].startswith(expected) for answer in trained[world_size])
