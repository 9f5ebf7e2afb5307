"""How a trainer normalises batches: by shard, the default of data parallelism, or over the whole minibatch.

Only these two are right, in all steps alike, and the second one alone where the layers are called SyncBatchNorm. The
net's log tells which samples went through the net together, so any way of splitting is allowed. The gradient behind a
normalisation must agree in half of its digits (`tolerance`).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from suite.properties import nets
from suite.properties.answers import OTHER_BUGS, RIGHT, Judgement
from suite.properties.seen import Seen, derivative, flat

WHOLE = "over the whole minibatch"
UNEQUAL = "statistics of unequal shards averaged (pytorch/pytorch#22192, pytorch/pytorch#36382)"
LEFT_OUT = "samples that were left out, or given to a replica in evaluation mode"


def judge(seen: Seen) -> Judgement:
    """Compare every step's gradient, and after a single step rank 0's running statistics, with both kinds."""
    synchronised = any(observed["synchronised"] for observed in seen.ranks)
    kinds = {WHOLE} if synchronised else {WHOLE, "by shard"}
    for step in seen.steps:
        n = seen.case.batches[step]
        shards = forwards(seen, step)
        if sorted(sample for shard in shards for sample in shard) != list(range(n)):
            return Judgement(
                f"step {step}: the minibatch has samples 0 to {n - 1}, but the net saw {shards}",
                (_not_once([sample for shard in shards for sample in shard], n),),
            )
        groups = {"by shard": shards, WHOLE: [list(range(n))]}
        # One sample has no variance, so a trainer that takes a step has not normalised groups of one sample.
        expected = {kind: _gradient(seen, step, g) for kind, g in groups.items() if min(map(len, g)) > 1}
        actual = flat(seen.gradient(step))
        errors = {kind: float((actual - gradient).abs().max()) for kind, gradient in expected.items()}
        fits = {kind for kind in errors if errors[kind] <= seen.half_the_digits * float(expected[kind].abs().max())}
        if not fits:
            averaged = synchronised and len(set(map(len, shards))) > 1
            looks_like = UNEQUAL if averaged else OTHER_BUGS
            return Judgement(
                f"step {step}: the gradient behind a batch normalisation fits neither kind of statistics: "
                + ", ".join(f"{kind} it is off by {error:.3g}" for kind, error in errors.items()),
                () if synchronised and not averaged else (looks_like,),
            )
        if not kinds & fits:
            before = "its layers are called SyncBatchNorm" if synchronised else f"earlier steps were {kinds.pop()}"
            return Judgement(
                f"step {step}: batch normalisation {fits.pop()}, and {before}",
                ("statistics that are synchronised within groups of one rank, or not at all",) if synchronised else (),
            )
        kinds &= fits
    if len(seen.steps) == 1 and not _statistics_kept(seen):
        return Judgement(
            "the running statistics after one step are neither those of a shard nor of the whole minibatch",
            () if _has_statistics(seen) else ("the statistics are lost with the replicas (pytorch/pytorch#1051)",),
        )
    return Judgement(note=f"batch normalisation {kinds.pop()}") if len(kinds) == 1 else RIGHT


def _not_once(samples: list[int], n: int) -> str:
    """Return what became of samples that were not all seen once."""
    if not set(samples) <= set(range(n)):
        return "samples changed before the net"
    return LEFT_OUT if set(samples) != set(range(n)) else "samples repeated"


def entries(seen: Seen, step: int) -> list[dict[str, Any]]:
    """Return the log entries of a step's forwards that saw samples, over all ranks."""
    return [entry for observed in seen.ranks for entry in observed["log"][step] if entry["samples"]]


def forwards(seen: Seen, step: int) -> list[list[int]]:
    """Return the numbers of the samples in each forward of a step; one that is computed again comes once."""
    return [list(samples) for samples in dict.fromkeys(map(_samples, entries(seen, step)))]


def _samples(entry: dict[str, Any]) -> tuple[int, ...]:
    """Return the numbers of the samples in a forward, without those that are infinite or NaN."""
    return tuple(round(sample) for sample in entry["samples"] if math.isfinite(sample))


def _gradient(seen: Seen, step: int, shards: list[list[int]]) -> Tensor:
    """Return the flat gradient of the loss where each group of samples is normalised by itself."""
    X, y = nets.minibatch(seen.case, step)
    net = seen.net(step)
    outputs = torch.cat([net(X[shard]) for shard in shards])
    return flat(derivative(net, seen.loss_of(outputs, y[[sample for shard in shards for sample in shard]])))


def _has_statistics(seen: Seen) -> bool:
    """Say whether each of rank 0's running statistics has changed."""
    before = {name: buffer.double() for name, buffer in seen.net(0).named_buffers() if "running_" in name}
    buffers = seen.ranks[0]["buffers"]
    return not any(torch.equal(buffers[name], kept.flatten()) for name, kept in before.items())


def _statistics_kept(seen: Seen) -> bool:
    """Say whether rank 0's running statistics after step 0 are those of a shard or of the whole minibatch.

    Those of all forwards of rank 0 in turn are right too: it may have accumulated, or recomputed in the backward.
    """
    X, _ = nets.minibatch(seen.case, 0)
    buffers = seen.ranks[0]["buffers"]
    kept = [buffer for name, buffer in buffers.items() if "running_" in name]
    in_turn = [list(_samples(entry)) for entry in seen.ranks[0]["log"][0] if entry["samples"]]
    updates = [in_turn, *([shard] for shard in forwards(seen, 0)), [list(range(len(X)))]]
    for shards in updates:
        if min(map(len, shards), default=0) < 2:
            continue
        net = seen.net(0)
        for shard in shards:
            net(X[shard])
        expected = [buffer.double() for name, buffer in net.named_buffers() if "running_" in name]
        if len(kept) == len(expected) and all(
            float((mine - theirs).abs().max()) <= seen.half_the_digits * (1 + float(theirs.abs().max()))
            for mine, theirs in zip(kept, expected, strict=True)
        ):
            return True
    return False
