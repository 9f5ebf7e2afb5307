"""A seeded corpus of short texts as a nest of tensors, and a small language model for it: a user's own workload."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY, POSITIONS = 7, 6
TRAIN, TEST = 96, 32


def corpus() -> tuple[Any, Any]:
    """Texts that count upwards, of 2 to `POSITIONS` tokens; the last text of every five has no label that counts."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randint(VOCABULARY, (TRAIN + TEST, 1), generator=generator)
    length = torch.randint(2, POSITIONS + 1, (TRAIN + TEST,), generator=generator)
    tokens = (start + torch.arange(POSITIONS + 1)) % VOCABULARY
    labels = tokens[:, 1:].clone()
    labels[torch.arange(POSITIONS) >= length[:, None]] = -100
    labels[4::5] = -100
    X = {"tokens": tokens[:, :-1], "length": length}
    y = {"labels": labels, "weights": 0.5 + torch.rand(TRAIN + TEST, generator=generator)}
    train, test = slice(TRAIN), slice(TRAIN, None)
    return tuple(tuple({name: v[part] for name, v in nest.items()} for nest in (X, y)) for part in (train, test))


class Block(nn.Module):
    """One attention and one linear layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.up = nn.Linear(width, width)

    def forward(self, h: Tensor) -> Tensor:
        """Map (n, t, width) to the same."""
        q, k, v = self.qkv(self.norm(h)).chunk(3, dim=-1)
        h = h + F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return h + torch.tanh(self.up(h))


class Writer(nn.Module):
    """From {"tokens" (n, t), ...} to scores (n, t, vocabulary), with tied embeddings."""

    def __init__(self, width: int = 8, depth: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.place = nn.Parameter(torch.randn(POSITIONS, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, X: dict[str, Tensor]) -> Tensor:
        """Score the next token at every position."""
        h = self.embed(X["tokens"]) + self.place
        for block in self.blocks:
            h = block(h)
        scores: Tensor = self.head(h)
        return scores


def tiny() -> Writer:
    """A smaller model from the same factory's file."""
    return Writer(width=4, depth=1)
