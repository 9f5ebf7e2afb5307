"""The loss of a language model: what counts, by token and by weight, and the sums that parts of a minibatch add up to.

A minibatch's loss is one quotient for each of its terms, so sums and counts are kept apart: those of all ranks add up,
and means of ranks with unequal shares do not.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from reference.nest import Nest

IGNORED = -100  # torch's default in cross_entropy
Z_LOSS = 0.01


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
