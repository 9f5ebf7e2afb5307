"""Batch normalisation over ranks against nn.BatchNorm on the whole batch; ranks are threads here.

Both computations divide by the spread of a few samples, so half of the digits are asked for
(`suite.properties.tolerance`); a wrong exchange errs in the first ones, as those of `tests/mutants` do. On real ranks
the trainer `ddp_sync_bn` passes `pytest -m correctness -k "batch_norm or refusals"`.
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

from reference.sync_batch_norm import SyncBatchNorm, convert
from suite.properties.tolerance import half_the_digits
from tests.support.strategies import seeds

pytestmark = pytest.mark.usefixtures("one_intra_op_thread")

LAYERS: dict[int, type[nn.Module]] = {0: nn.BatchNorm1d, 1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


class Ranks:
    """Ranks that are threads of this process; when one raises, the others stop waiting."""

    def __init__(self, world_size: int) -> None:
        self.rows: list[Tensor] = [torch.empty(0)] * world_size
        self.barrier = threading.Barrier(world_size, timeout=60)
        self.mine = threading.local()

    def gather(self, row: Tensor) -> Tensor:
        self.rows[self.mine.rank] = row
        self.barrier.wait()
        gathered = torch.stack(self.rows)
        self.barrier.wait()
        return gathered

    def run(self, function: Callable[[int], Any]) -> list[Any]:
        """Call a function with each rank at the same time; return the results in order, or raise what a rank raised."""

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
    """Draw layers of every kind and 1 to 3 minibatches on 1 to 4 ranks, with uneven and empty shards."""
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
    offset = draw(st.sampled_from([0.0, 10.0]))
    generator = torch.Generator().manual_seed(draw(seeds))
    for parameter in layer.parameters():
        parameter.data.normal_(generator=generator)
    batches = []
    for sizes in splits:
        X, dY = torch.randn(2, sum(sizes), *shape, generator=generator, dtype=torch.float64)
        batches.append((X + offset, dY))
    return Case(layer, batches, splits)


def wrong_quantities(case: Case) -> set[str]:
    """Return which quantities differ from nn.BatchNorm's on the whole batch, "agreement" where ranks' statistics do."""
    ranks, whole, wrong = Ranks(len(case.splits[0])), copy.deepcopy(case.layer), set()
    layers = [convert(copy.deepcopy(case.layer), ranks.gather) for _ in ranks.rows]
    for (X, dY), sizes in zip(case.batches, case.splits, strict=True):
        x = X.clone().requires_grad_()
        whole.zero_grad()
        output = whole(x)
        output.backward(dY)
        expected = {"output": output.detach(), "input": x.grad}
        shards, upstream = (t.split(sizes) for t in (X, dY))

        def step(rank: int, shards: Any = shards, upstream: Any = upstream) -> tuple[Tensor, Tensor]:
            shard = shards[rank].clone().requires_grad_()
            layers[rank].zero_grad()
            output = layers[rank](shard)
            output.backward(upstream[rank])
            return output.detach(), shard.grad

        outputs, gradients = zip(*ranks.run(step), strict=True)
        actual = {"output": torch.cat(outputs), "input": torch.cat(gradients)}
        for name, parameter in whole.named_parameters():
            expected[name] = parameter.grad
            actual[name] = sum(dict(layer.named_parameters())[name].grad for layer in layers)
        for name, buffer in whole.named_buffers():
            expected[name], actual[name] = buffer, getattr(layers[0], name)
            if not all(torch.equal(getattr(layer, name), actual[name]) for layer in layers):
                wrong.add("agreement")
        for name, right in expected.items():
            allowed = half_the_digits(torch.float64) * max(1.0, float(right.abs().max()))
            if not bool(((actual[name] - right).abs() <= allowed).all()):
                wrong.add(name)
    return wrong


@given(case=cases())
def test_any_split_is_the_whole_batch(case: Case) -> None:
    """Outputs, all gradients and running statistics; the ranks' statistics agree to the last bit."""
    assert wrong_quantities(case) == set()


def test_a_large_mean_does_not_cancel_the_digits_of_the_variance() -> None:
    """mean(x^2) - mean(x)^2 would lose them."""
    torch.manual_seed(0)
    X, dY = torch.randn(2, 7, 2, 3, dtype=torch.float64)
    X += 1e6
    assert wrong_quantities(Case(nn.BatchNorm1d(2).double(), [(X, dY)], [[4, 2, 1]])) == set()
    x = X.movedim(1, 0).flatten(1)
    by_squares = x.square().mean(1) - x.mean(1).square()
    assert ((by_squares - x.var(1, correction=0)).abs() > 100 * half_the_digits(torch.float64)).all()


@given(case=cases())
def test_evaluation_does_not_exchange(case: Case) -> None:
    """On a rank alone it is nn.BatchNorm's, to the last bit."""

    def refuse(row: Tensor) -> Tensor:
        raise AssertionError("evaluation asked the other ranks")

    X = case.batches[0][0]
    layer = convert(case.layer, refuse)
    assert torch.equal(layer.eval()(X), case.layer.eval()(X))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_summed_in_float32(dtype: torch.dtype) -> None:
    """A mean of 4096 ones and threes would stop growing in half precision."""
    X = torch.tensor([1.0, 3.0]).repeat(2048)[:, None].to(dtype).requires_grad_()
    layer = convert(nn.BatchNorm1d(1), lambda row: row[None])
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
            convert(nn.BatchNorm1d(3), ranks.gather)(torch.ones(sizes[rank], 3))
        return str(error.value)

    expected = f"X has {sum(sizes)} values per channel over {len(sizes)} ranks"
    assert all(said.startswith(expected) for said in ranks.run(message))


@pytest.mark.parametrize("shape", [(5,), (5, 2), (2, 5, 3)])
def test_an_input_without_the_layers_channels_is_an_error(shape: tuple[int, ...]) -> None:
    layer = convert(nn.BatchNorm1d(3, affine=False, track_running_stats=False))
    with pytest.raises(ValueError, match=r"X is \(.*5.*\): this layer normalises \(n, 3, \.\.\.\), channels second"):
        layer(torch.ones(shape))


class Derived(nn.BatchNorm2d):
    """Does more than its base class."""

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
