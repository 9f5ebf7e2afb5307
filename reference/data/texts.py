"""Generated texts for language models, learnable and with a known best loss: no download, every token from a seed.

A text is a random process. Its first two tokens are drawn from the whole vocabulary. Every later one is, with
probability `CERTAIN`, the successor of the token before it, and otherwise any token. There are two tables of
successors, and the token before the last decides by its parity which of them is used. So one token does not tell which
of two comes next, and attention to the one before it does.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from reference.data.dataset import Dataset
from reference.loss import IGNORED
from reference.nest import Nest

CERTAIN = 0.8


def texts_tiny(data_root: Path) -> Dataset:
    """Return 2,048 training and 512 test texts of 64 tokens from a vocabulary of 32, made in memory."""
    return make("texts-tiny", vocabulary=32, positions=64, train=2048, test=512)


def texts(data_root: Path) -> Dataset:
    """Return 2,048 training and 64 test texts of 1,024 tokens from a vocabulary of 4,096; see `texts_tiny`."""
    return make("texts", vocabulary=4096, positions=1024, train=2048, test=64)


def make(name: str, *, vocabulary: int, positions: int, train: int, test: int, seed: int = 0) -> Dataset:
    """Return a data set of texts of so many positions, of which the seed determines every token.

    Its samples are tokens (n, positions), int64. Its labels are {"labels" (n, positions) int64, "weights" (n,)
    float32}: the next token of each, `IGNORED` at the first position, whose next token nothing predicts, and ones.
    """
    generator = torch.Generator().manual_seed(seed)
    successors = torch.stack([torch.randperm(vocabulary, generator=generator) for _ in range(2)])
    drawn = draw(train + test, positions + 1, successors, generator)
    labels = drawn[:, 1:].clone()
    labels[:, 0] = IGNORED
    tokens, weights = drawn[:, :-1].contiguous(), torch.ones(train + test)

    def part(which: slice) -> tuple[Tensor, Nest]:
        return tokens[which], {"labels": labels[which], "weights": weights[which]}

    return Dataset(name, *part(slice(train)), *part(slice(train, None)))


def draw(n: int, positions: int, successors: Tensor, generator: torch.Generator) -> Tensor:
    """Return n texts, (n, positions) int64 with at least 2 positions, by two tables (2, vocabulary) int64."""
    vocabulary = successors.shape[1]
    drawn = torch.randint(vocabulary, (n, positions), generator=generator)
    certain = torch.rand(n, positions, generator=generator) < CERTAIN
    for at in range(2, positions):
        successor = successors[drawn[:, at - 2] % 2, drawn[:, at - 1]]
        drawn[:, at] = torch.where(certain[:, at], successor, drawn[:, at])
    return drawn


def best(vocabulary: int) -> tuple[float, float]:
    """Return what no model can improve on but by chance: the loss of a token in nats, and the share predicted right."""
    other = (1 - CERTAIN) / vocabulary
    right = CERTAIN + other
    return -right * math.log(right) - (vocabulary - 1) * other * math.log(other), right
