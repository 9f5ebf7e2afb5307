"""The checks on what trainers are built from: collectives, splits, evaluations and feeds, each given as a function.

Call them from a test of your own function, or let `suite.checks.functions.search` draw the inputs. They must differ
between devices: equal ones hide what is not exchanged (pytorch/pytorch#60118).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from reference.all_reduce import AllReduce
from suite.properties import tolerance
from suite.properties.answers import RIGHT, Judgement

Scatter = Callable[[Tensor, Sequence[torch.device]], list[Tensor]]
Gather = Callable[[Sequence[Tensor], torch.device], Tensor]
CountCorrect = Callable[..., int]
IndexBatches = Callable[..., Iterator[Tensor]]
RankBatches = Callable[..., Iterator[Tensor]]


def all_reduce_sums(all_reduce_: AllReduce, tensors: Sequence[Tensor]) -> Judgement:
    """Every device ends with the sum, in the caller's own tensor, the same to the last bit on all of them.

    Args:
        all_reduce_: reached through a list made for the call, so that a result put into the list is lost.
        tensors: what the devices start with; they are copied first. Sums of integers, and of floats that are whole
            and small enough, must be exact; others within `tolerance.sum_bound`. Infinite and NaN sums must come out.
    """
    if not tensors:
        all_reduce_([])
        return RIGHT
    mine = [_copy(tensor) for tensor in tensors]
    addresses = [tensor.data_ptr() for tensor in mine]
    all_reduce_(list(mine))
    where = f"{len(tensors)} devices, {tuple(tensors[0].shape)} {_name(tensors[0])}"
    if [tensor.data_ptr() for tensor in mine] != addresses:
        return Judgement(f"{where}: a tensor has moved in memory: the sum must be written into the caller's own")
    exact, allowed = _sum(torch.stack([_real(tensor) for tensor in tensors]))
    for rank, tensor in enumerate(mine):
        ours = _real(tensor).to(exact.dtype)
        within = (ours - exact).abs() <= allowed
        if tensor.dtype != tensors[0].dtype or not bool(
            torch.where(exact.isfinite(), within, _same(ours, exact)).all()
        ):
            return Judgement(
                f"{where}: device {rank} ends with {ours.flatten().tolist()[:8]}, the sum is "
                f"{exact.flatten().tolist()[:8]}",
                ("not written back (d2l-ai/d2l-zh#955)", "a tail left out", "added up in a lower precision"),
            )
        if not bool(_same(tensor.cpu(), mine[0].cpu()).all()):
            return Judgement(
                f"{where}: devices 0 and {rank} end with different bits", ("each device sums in its own order",)
            )
    return RIGHT


def all_reduce_keeps_tensors_apart(all_reduce_: AllReduce, tensors: Sequence[Tensor]) -> Judgement:
    """No two tensors share memory afterwards, so that what a device does next does not reach another."""
    mine = [_copy(tensor) for tensor in tensors]
    all_reduce_(list(mine))
    for rank, value in itertools.product(range(len(mine)), (0, 1)):  # a sum may be 0 before
        before = [other.clone() for other in mine]
        mine[rank].fill_(value)
        for other, (now, then) in enumerate(zip(mine, before, strict=True)):
            if other != rank and not bool(_same(now, then).all()):
                return Judgement(
                    f"{len(mine)} devices: setting device {rank}'s tensor to {value} changes device {other}'s",
                    ("results that share their storage",),
                )
    return RIGHT


def scatter_keeps_samples(scatter: Scatter, X: Tensor, devices: Sequence[torch.device]) -> Judgement:
    """The shards put together are the samples in their order and dtype: none is lost, repeated or moved."""
    shards = scatter(X, devices)
    if any(shard.dtype != X.dtype for shard in shards):
        return Judgement(
            f"{len(X)} samples on {len(devices)} devices: shards of {list(map(_name, shards))}, the samples are "
            f"{_name(X)}",
            ("samples that are converted on their way to a device",),
        )
    together = torch.cat([shard.to(X.device) for shard in shards]) if shards else X[:0]
    if together.shape == X.shape and bool(_same(together, X).all()):
        return RIGHT
    return Judgement(
        f"{len(X)} samples on {len(devices)} devices: shards of {[len(shard) for shard in shards]} hold "
        f"{together.flatten().tolist()[:12]} of {X.flatten().tolist()[:12]}",
        ("a remainder dropped or filled up (pytorch/pytorch#15161, pytorch/pytorch#52260)", "samples dealt in turn"),
    )


def scatter_follows_rule(
    scatter: Scatter, X: Tensor, devices: Sequence[torch.device], sizes: Sequence[int]
) -> Judgement:
    """The shards have the sizes of a rule, and the i-th is on the i-th device."""
    shards = scatter(X, devices)
    actual = [len(shard) for shard in shards]
    if actual == list(sizes) and all(s.device == d for s, d in zip(shards, devices, strict=False)):
        return RIGHT
    return Judgement(
        f"{len(X)} samples on {len(devices)} devices: shards of {actual} on {[str(s.device) for s in shards]}, "
        f"the rule says {list(sizes)}",
        ("another framework's rule (torch.chunk, and MXNet's two, differ)",),
    )


def gather_joins_samples(gather: Gather, shards: Sequence[Tensor], device: torch.device) -> Judgement:
    """The result has all rows of all shards, in the order of the shards, on the device and in their dtype.

    Args:
        gather: as `reference.scatter.gather`.
        shards: (n_i, ...), at least one; they may differ in n_i, and some be empty. They are copied first.
        device: of the result.
    """
    expected, place = torch.cat([shard.cpu() for shard in shards]), torch.empty(0, device=device).device
    joined = gather([_copy(shard) for shard in shards], device)
    where = f"shards of {[len(shard) for shard in shards]}"
    if (joined.dtype, joined.device) != (expected.dtype, place):
        ours, right = (f"{_name(tensor)} on {at}" for tensor, at in ((joined, joined.device), (expected, place)))
        return Judgement(f"{where}: the result is {ours}, and must be {right}")
    if joined.shape == expected.shape and bool(_same(joined.cpu(), expected).all()):
        return RIGHT
    return Judgement(
        f"{where}: gathered are {joined.flatten().tolist()[:12]}, the samples are {expected.flatten().tolist()[:12]}",
        ("padding of shorter shards that is kept", "samples cut off as if they were padding", "another order"),
    )


def gather_returns_gradients(gather: Gather, shards: Sequence[Tensor], device: torch.device) -> Judgement:
    """The rows of floating shards are joined as they must be, and every shard gets the gradient of its own.

    It is meant for a differentiable `gather` alone; the arguments are those of `gather_joins_samples`.
    """
    judgement = gather_joins_samples(gather, shards, device)
    if judgement.finding:
        return judgement
    leaves = [_copy(shard).requires_grad_() for shard in shards]
    joined = gather(leaves, device)
    weights = torch.arange(1, joined.numel() + 1, dtype=joined.dtype, device=device).reshape(joined.shape)
    if joined.requires_grad:
        torch.autograd.backward((joined * weights).sum())
    for rank, (leaf, own) in enumerate(zip(leaves, torch.split(weights, list(map(len, shards))), strict=True)):
        given = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        if not bool(_same(given.cpu(), own.cpu()).all()):
            return Judgement(
                f"shards of {[len(shard) for shard in shards]}: the gradient of shard {rank} is "
                f"{given.flatten().tolist()[:8]}, that of its rows {own.flatten().tolist()[:8]}",
                ("detached on its way (dist.all_gather has no gradient)", "multiplied by the number of devices"),
            )
    return RIGHT


def evaluation_counts_once(
    count_correct: CountCorrect,
    replicas: Sequence[nn.Module],
    devices: Sequence[torch.device],
    X: Tensor,
    y: Tensor,
    batch_size: int,
) -> Judgement:
    """Every sample is counted once, whatever the replicas, the shards and the last batch.

    The arguments are those of `reference.evaluate.count_correct`, with equal replicas, X (n, ...) and labels y (n,).
    """
    with torch.no_grad():
        expected = int((replicas[0](X).argmax(dim=1) == y).sum())
    counted = count_correct(replicas, devices, X, y, batch_size)
    if counted == expected:
        return RIGHT
    return Judgement(
        f"{len(X)} samples, {len(replicas)} replicas, batches of {batch_size}: {counted} counted right, not {expected}",
        ("padding counted (pytorch/pytorch#25162)", "a last batch left out", "accuracies averaged"),
    )


def feed_covers(index_batches: IndexBatches, n: int, batch_size: int, seed: int, epoch: int) -> Judgement:
    """An epoch has every sample once, in full batches and a last one of the rest, which `drop_last` leaves out."""
    batches = [batch.tolist() for batch in index_batches(n, batch_size, seed=seed, epoch=epoch)]
    sizes = [min(batch_size, n - start) for start in range(0, n, batch_size)]
    if sorted(i for batch in batches for i in batch) != list(range(n)) or [len(b) for b in batches] != sizes:
        return Judgement(
            f"{n} samples in batches of {batch_size}: the epoch is {batches}",
            ("samples left out", "repeated to fill the last batch", "drawn with replacement"),
        )
    full = [b.tolist() for b in index_batches(n, batch_size, seed=seed, epoch=epoch, drop_last=True)]
    if full != [batch for batch in batches if len(batch) == batch_size]:
        return Judgement(f"{n} samples in batches of {batch_size}: drop_last leaves {full} of {batches}")
    return RIGHT


def feed_reshuffles(index_batches: IndexBatches, n: int, batch_size: int, seed: int) -> Judgement:
    """The order differs between epochs and between seeds, and is the same in every process.

    The arguments are those of `reference.data.feeds.index_batches`; n is 20 or more, so that two orders are never equal
    by chance.
    """

    def order(seed: int, epoch: int, process: int = 0) -> list[int]:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(process)  # ranks are seeded apart, for dropout
            return [i for batch in index_batches(n, batch_size, seed=seed, epoch=epoch) for i in batch.tolist()]

    if order(seed, 0, 1) != order(seed, 0, 2):
        return Judgement(
            f"seed {seed}: two ranks draw different orders of the same epoch",
            ("a permutation from the process's own random state: ranks see samples twice and others never",),
        )
    if order(seed, 0) == order(seed, 1):
        return Judgement(f"seed {seed}: epochs 0 and 1 have the same order", ("no set_epoch (pytorch/pytorch#31771)",))
    if order(seed, 1) == order(seed + 1, 0):
        return Judgement(f"epoch 1 of seed {seed} is epoch 0 of seed {seed + 1}", ("seed and epoch are added",))
    return RIGHT


class Interruption(NamedTuple):
    """A feed that several ranks take part of an epoch from, before it is interrupted.

    Attributes:
        n: number of samples.
        batch_size: samples in a minibatch over all ranks.
        seed: any.
        epoch: from 0.
        world_size: number of ranks.
        start: the minibatches of the epoch that were trained on before the interruption.
    """

    n: int
    batch_size: int
    seed: int
    epoch: int
    world_size: int
    start: int


def feed_resumes(rank_batches: RankBatches, interruption: Interruption) -> Judgement:
    """A feed that goes on in the middle of an epoch yields the rest of it, on every rank, and no sample twice.

    Args:
        rank_batches: as `reference.data.feeds.rank_batches`: the numbers of one rank's samples, minibatch by minibatch.
            One that keeps its own place takes `start` minibatches, saves its state, and loads it into another.
        interruption: the feed, and when it is interrupted.
    """
    n, batch_size, seed, epoch, world_size, start = interruption

    def batches(rank: int, start: int) -> list[list[int]]:
        place = {"world_size": world_size, "rank": rank, "start": start}
        return [batch.tolist() for batch in rank_batches(n, batch_size, seed=seed, epoch=epoch, **place)]

    where = f"{n} samples in batches of {batch_size} on {world_size} ranks, epoch {epoch}"
    whole = [batches(rank, 0) for rank in range(world_size)]
    lengths = [len(part) for part in whole]
    if len(set(lengths)) > 1:
        return Judgement(
            f"{where}: the ranks have {lengths} batches, so they come to the next epoch at different steps",
            ("a stream for each rank, which ends by itself (NVIDIA-NeMo/Megatron-Bridge#5944)",),
        )
    resumed = [batches(rank, start) for rank in range(world_size)]
    samples = [i for part in resumed for batch in part for i in batch]
    if len(set(samples)) < len(samples):
        return Judgement(
            f"{where}: resumed after {start} batches, the ranks have {resumed}: samples come more than once",
            (
                "the split by rank is lost where batches are skipped (huggingface/datasets#8568)",
                "samples repeated so that the ranks have equally many (pytorch/pytorch#22584)",
            ),
        )
    for rank, (part, right) in enumerate(zip(resumed, whole, strict=True)):
        if part != right[start:]:
            return Judgement(
                f"{where}: resumed after {start} batches, rank {rank} has {part}, and {right[start:]} were left",
                (
                    "the order of epoch 0 (huggingface/accelerate#4071, Lightning-AI/pytorch-lightning#21938)",
                    "the epoch begins again",
                ),
            )
    return RIGHT


def _copy(tensor: Tensor) -> Tensor:
    """Return a copy with the same strides."""
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return copy.copy_(tensor)


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _real(tensor: Tensor) -> Tensor:
    """Return a tensor on the CPU, of complex numbers the real and imaginary parts."""
    return torch.view_as_real(tensor.cpu().resolve_conj()) if tensor.is_complex() else tensor.cpu()


def _same(a: Tensor, b: Tensor) -> Tensor:
    """Return where two tensors are equal; NaN equals NaN."""
    return (a == b) | (a.isnan() & b.isnan())


def _added(column: list[float]) -> float:
    """Return the correctly rounded sum, or what floating-point addition makes of one that is infinite or NaN."""
    try:
        return math.fsum(column)
    except (OverflowError, ValueError):
        return sum(column)


def _sum(stacked: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum over the first axis, and how far a device's result may be from it."""
    if not stacked.is_floating_point():
        exact = stacked.sum(0, dtype=torch.int64)
        return exact, torch.zeros_like(exact)
    columns = stacked.to(torch.float64).reshape(len(stacked), stacked[0].numel()).T.tolist()
    exact = torch.tensor([_added(column) for column in columns], dtype=torch.float64).reshape(stacked.shape[1:])
    absolute = stacked.to(torch.float64).abs().sum(0)
    whole = (
        bool((stacked == stacked.round()).all())
        and float(absolute.max() if absolute.numel() else 0) * (torch.finfo(stacked.dtype).eps) <= 1
    )
    return exact, torch.zeros_like(exact) if whole else tolerance.sum_bound(list(stacked))
