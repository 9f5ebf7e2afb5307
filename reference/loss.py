"""Cross-entropy summed over the samples, as in the book; the loss of a language model; the mean loss of an epoch.

A language model's loss counts by token and by weight: one quotient for each of its terms. So sums and counts are kept
apart: those of all ranks add up, and means of ranks with unequal shares do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from reference import nest
from reference.nest import Nest

IGNORED = -100  # torch's default in cross_entropy
Z_LOSS = 0.01


def summed_loss(net: Callable[[Any], Tensor], X: Nest, y: Tensor) -> Tensor:
    """Return the cross-entropy of a net's scores, a scalar: summed over samples X (n, ...) with labels y (n,) int64.

    It is a sum and not a mean, because sums over shards add up to the minibatch's for any shard sizes. Probabilities of
    classes, (n, classes), can take the place of labels.
    """
    return F.cross_entropy(net(X), y, reduction="none").sum()


def why_unfit(y: Nest) -> str:
    """Return why the built-in trainers' losses cannot take y; "" where they can.

    They take class labels, (n, ...) int64; probabilities of classes, (n, classes, ...) floating, of which those of a
    sample sum to 1; and the dict of texts that `term_sums` describes.
    """
    if isinstance(y, Tensor):
        fits = y.dtype == torch.int64 or (y.is_floating_point() and y.ndim > 1 and _are_probabilities(y))
    else:
        fits = isinstance(y, dict) and {"labels", "weights"} <= y.keys()
    return "" if fits else f"its loss is the mean cross-entropy, and y is {nest.described(y)}"


def _are_probabilities(y: Tensor) -> bool:
    sums = y.double().sum(1)
    rounded = y.shape[1] * max(torch.finfo(y.dtype).eps, torch.finfo(torch.float32).eps)  # they may have been float32
    return bool((y >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), rtol=0, atol=rounded)


def mean_loss(steps: Sequence[tuple[Tensor | None, int]], samples: int) -> float | None:
    """Return the mean training loss over the samples of an epoch; None where a step has returned no loss.

    The losses are read here, in one transfer, so that no step has to wait for its device. In a run of several processes
    each one gets its own samples' part of the mean, and the parts add up to it. For each step there is the value that
    `Trainer.step` returned and the batch size that it was given; the samples are those of all processes.
    """
    losses = [torch.as_tensor(loss).detach().reshape(()) for loss, _ in steps if loss is not None]
    if not losses or len(losses) < len(steps):
        return None
    divisors = torch.tensor([divisor for _, divisor in steps], dtype=torch.float64)
    return float(torch.stack(losses).cpu().double() @ divisors) / samples


def term_sums(scores: Tensor, y: Nest) -> Tensor:
    """Return the sums of the loss's two terms over the labels that count, (2,), differentiable.

    The first is the cross-entropy of each label, times its sample's weight. The second is the squared log of the
    softmax's normaliser, which keeps it near 1 (z-loss; Chowdhery et al. 2022, arXiv:2204.02311, section 5).

    Args:
        scores: (n, positions, vocabulary).
        y: "labels" (n, positions), int64, `IGNORED` where none counts, and "weights" (n,).
    """
    labels = y["labels"]
    entropy = F.cross_entropy(scores.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none")
    weighted = entropy.view_as(labels) * y["weights"][:, None]
    normaliser = scores.logsumexp(-1).square() * (labels != IGNORED)
    return torch.stack([weighted.sum(), Z_LOSS * normaliser.sum()])


def term_counts(y: Nest) -> Tensor:
    """Return what each term is divided by, (2,): the weights of the labels that count, and their number."""
    counting = (y["labels"] != IGNORED).to(y["weights"].dtype)
    return torch.stack([(counting * y["weights"][:, None]).sum(), counting.sum()])


def token_loss(scores: Tensor, y: Nest) -> Tensor:
    """Return the loss of a whole minibatch, (): the sum of `term_sums`, each divided by its count."""
    return (term_sums(scores, y) / term_counts(y)).sum()
