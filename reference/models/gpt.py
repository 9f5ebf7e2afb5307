"""A decoder-only transformer (Radford et al. 2019, the GPT-2 report) in a size for CPUs and one for GPUs.

Learned positions, RMSNorm before each part, GELU, no biases, and a head that shares its weight with the embedding. Not
covered: dropout, rotary positions, and texts of unequal length other than by labels that are ignored.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GPT(nn.Module):
    """Score the next token at every position, of at most `positions`.

    A block is a pair of attention and MLP; the features of a token, `width`, are a multiple of `heads`.
    """

    def __init__(self, vocabulary: int, positions: int, width: int, blocks: int, heads: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.place = nn.Embedding(positions, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.weight
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                # As GPT-2: what all blocks add to a token has the same variance, however many there are.
                added = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * blocks) ** 0.5 if added else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (n, positions) int64 to scores (n, positions, vocabulary)."""
        h = self.embed(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            h = block(h)
        scores: Tensor = self.head(self.norm(h))
        return scores


class Block(nn.Module):
    """Causal self-attention and an MLP, each behind a normalisation and added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        """Map h (n, positions, width) to the same shape."""
        qkv = self.qkv(self.norm1(h)).unflatten(-1, (3, self.heads, -1)).movedim(-3, 0)
        q, k, v = qkv.transpose(2, 3)  # each (n, heads, positions, width / heads)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.out(attended.transpose(1, 2).flatten(2))
        mixed: Tensor = h + self.down(F.gelu(self.up(self.norm2(h))))
        return mixed


def gpt_tiny() -> GPT:
    """Return a model for the data set "texts-tiny" and one CPU core: 104,768 parameters."""
    return GPT(vocabulary=32, positions=64, width=64, blocks=2, heads=4)


def gpt() -> GPT:
    """Return a model of GPT-2's small size for the data set "texts" and a GPU: 88.9 million parameters."""
    return GPT(vocabulary=4096, positions=1024, width=768, blocks=12, heads=12)
