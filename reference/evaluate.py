"""Accuracy, and the loss of texts, on one or all devices, every label counted once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reference import calling, nest
from reference.cpu_data_parallel import is_compiled
from reference.nest import Nest
from reference.scatter import check_labels, shard_bounds
from reference.trainers.data_parallel import data_parallel


def count_correct(
    replicas: Sequence[nn.Module], devices: Sequence[torch.device], X: Nest, y: Nest, batch_size: int = 1024
) -> int:
    """Return how many labels get the highest score of their position: a sample of a classifier, a token of a text.

    Labels are y or its first int64 tensor, and scores the first tensor that a net returns and that fits them. Scores of
    (n, classes) belong to labels (n,); scores of (n, positions, classes), or of (n, classes, positions) as for
    `F.cross_entropy`, belong to labels (n, positions). A negative label is ignored: no class has its number.

    The samples are split over the devices by torch's chunk rule; on CUDA the devices work at the same time. The modules
    are evaluated in eval mode as one net, with the buffers of the first (such as its BatchNorm statistics). Afterwards
    they have their own mode and buffers again.

    Args:
        replicas: equal modules, the i-th on ``devices[i]``. A single module that is entirely on the first of several
            devices and not compiled is evaluated through `reference.trainers.data_parallel.data_parallel`, as in the
            concise chapter; any other single module is called as it is.
        devices: at least one per replica.
        X, y: on any device; the nets are called as `reference.calling` says.
        batch_size: maximum number of samples in one forward.

    Raises:
        ValueError: no replicas, more replicas than devices, X and y of different lengths, or a batch size below 1.
        reference.calling.NoScores: nothing that a net returns fits the labels.
    """
    return int(_totals((_right,), replicas, devices, X, y, batch_size)[0])


def score_texts(
    replicas: Sequence[nn.Module], devices: Sequence[torch.device], X: Nest, y: Nest, batch_size: int = 1024
) -> tuple[int, float]:
    """Return `count_correct`, and the cross-entropy of all labels that count, in nats: their sum, without weights."""
    correct, nats = _totals((_right, _entropy), replicas, devices, X, y, batch_size)
    return int(correct), nats


@torch.no_grad()
def _totals(
    measures: Sequence[Callable[[Tensor, Tensor], Tensor]],
    replicas: Sequence[nn.Module],
    devices: Sequence[torch.device],
    X: Nest,
    y: Nest,
    batch_size: int,
) -> list[float]:
    """Return the sum of each measure, a function of scores and labels, as `count_correct` describes its own."""
    if not 0 < len(replicas) <= len(devices):
        raise ValueError(
            f"{len(replicas)} replicas on {len(devices)} devices: give at least one replica, and one device each"
        )
    check_labels(X, y)
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}: it must be at least 1")
    with ExitStack() as stack:
        for replica in replicas:
            stack.enter_context(_as_one_net(replica, replicas[0]))
        nets: Sequence[nn.Module] = replicas
        own_signature = len(calling.calls(replicas[0], X, y)) > 1 or bool(calling.calls(replicas[0], X, y)[0][1])
        if len(replicas) == 1 < len(devices) and not own_signature and _can_be_replicated(replicas[0], devices[0]):
            nets = [data_parallel(replicas[0], devices)]
            stack.callback(getattr(nets[0], "close", lambda: None))  # only the wrapper for CPU devices has threads
        sums: list[list[Tensor]] = []
        for rank, (net, device) in enumerate(zip(nets, devices, strict=False)):
            shard = shard_bounds(nest.samples(X), len(nets), rank)
            for start in range(shard.start, shard.stop, batch_size):
                part = slice(start, min(start + batch_size, shard.stop))
                given, expected = (nest.move(nest.take(each, part), device) for each in (X, y))
                labels = nest.labels(expected)
                scores = _scores(net, given, expected, labels)
                sums.append([measure(scores, labels).sum() for measure in measures])
        # The sums are read after the loop, because reading one makes the host wait for its GPU.
        return [math.fsum(each[number].item() for each in sums) for number in range(len(measures))]


def count_labels(y: Nest) -> int:
    """Return how many labels count: those that are not negative, in y or its first int64 tensor."""
    return int((nest.labels(y) >= 0).sum())


def accuracy(replicas: Sequence[nn.Module], devices: Sequence[torch.device], X: Nest, y: Nest) -> float:
    """Return `count_correct` as a share of the labels that count, 0 to 1; ValueError where no label does."""
    if nest.samples(X) == 0:
        raise ValueError("X has 0 samples: an accuracy needs at least one")
    if not (labels := count_labels(y)):
        raise ValueError("all labels of y are negative, which means ignored: an accuracy needs at least one")
    return count_correct(replicas, devices, X, y) / labels


def _scores(net: nn.Module, X: Nest, y: Nest, labels: Tensor) -> Tensor:
    """Return a net's scores of a minibatch, by the first of `calling.calls` that returns any."""
    *others, last = calling.calls(net, X, y)
    for args, kwargs in others:
        with suppress(calling.NoScores):
            return calling.scores(net(*args, **kwargs), labels)
    args, kwargs = last
    return calling.scores(net(*args, **kwargs), labels)


def _classes(scores: Tensor, labels: Tensor) -> int:
    """Return the axis of the classes: the last one of scores if that fits, else 1."""
    return -1 if scores.shape[:-1] == labels.shape else 1


def _right(scores: Tensor, labels: Tensor) -> Tensor:
    """Return where the highest score is the label's."""
    return scores.argmax(_classes(scores, labels)) == labels


def _entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each label, 0 where it is ignored."""
    scores = scores.movedim(_classes(scores, labels), 1).float()
    return F.cross_entropy(scores, labels.masked_fill(labels < 0, -1), ignore_index=-1, reduction="none")


@contextmanager
def _as_one_net(replica: nn.Module, first: nn.Module) -> Iterator[None]:
    """Switch a replica to eval mode and the first one's buffers, and at the end back to its own modes and buffers."""
    modes = [(part, part.training) for part in replica.modules()]
    buffers = [] if replica is first else [(own, own.clone()) for own in replica.buffers()]
    replica.eval()
    for (own, _), buffer in zip(buffers, first.buffers(), strict=False):
        own.copy_(buffer)
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
        for own, before in buffers:
            own.copy_(before)


def _can_be_replicated(net: nn.Module, device: torch.device) -> bool:
    """Return whether a net is entirely on the device and not compiled (a replica would call the compiled original)."""
    return not is_compiled(net) and all(tensor.device == device for tensor in (*net.parameters(), *net.buffers()))
