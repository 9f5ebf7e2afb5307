"""Builds the language model that a case describes, and its texts (worker's side).

X is {"tokens" (n, positions) int64, "length" (n,) int64, "sample" (n,) int64} and y is {"labels" (n, positions) int64,
-100 where none counts, "weights" (n,) floating}. "sample" is the sample's number in its minibatch, which the model
keeps in its log, if it has dropout, and does not compute with.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from suite.properties import contract
from suite.properties.case import Text
from suite.properties.log import Entry, Log

IGNORED = -100
SHARE_IGNORED = 0.4
NORMS = {"none": nn.Identity, "layer": nn.LayerNorm, "rms": nn.RMSNorm}


class TextNet(nn.Module):
    """The language model of a `Text`: X to scores (n, positions, vocabulary)."""

    def __init__(self, text: Text) -> None:
        super().__init__()
        self.log = Log()
        self.checkpoint, self.logs = text.checkpoint, text.dropout
        self.embed = nn.Embedding(text.vocabulary, text.width)
        self.place = None if text.rotary else nn.Embedding(text.positions, text.width)
        self.blocks = nn.ModuleList(TextBlock(text, number) for number in range(text.blocks))
        self.expert = nn.Linear(text.width, text.width) if text.unused != "none" else None
        self.expert_for = 0 if text.unused == "somewhere" else -1  # the number of the text; no text has -1
        self.norm = NORMS[text.norm](text.width)
        self.head = nn.Linear(text.width, text.vocabulary, bias=False)
        if text.tied:
            self.head.weight = self.embed.weight

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Score every token of the vocabulary at every position of X, the only argument."""
        X = contract.x_alone(args, kwargs)
        entry = Entry(X["sample"].tolist() if self.logs else [], redrawn=False, drawn=[])
        if self.logs and self.training:
            self.log.append(entry)
        positions = torch.arange(X["tokens"].shape[1], device=X["tokens"].device)
        h = self.embed(X["tokens"])
        if self.place is not None:
            h = h + self.place(positions)
        seen = (positions[:, None] >= positions) & (positions < X["length"][:, None, None])  # (n, positions, positions)
        for block in self.blocks:
            if self.checkpoint and self.training:
                h = checkpoint(block, h, seen, entry, use_reentrant=False)
            else:
                h = block(h, seen, entry)
        chosen = X["sample"] == self.expert_for
        if self.expert is not None and bool(chosen.any()):
            h = h + chosen[:, None, None] * self.expert(h)
        scores: Tensor = self.head(self.norm(h))
        return scores


class TextBlock(nn.Module):
    """Attention of one head and a layer of two, each behind a normalisation and added to what came in."""

    def __init__(self, text: Text, number: int) -> None:
        super().__init__()
        self.number, self.rotary, self.dropout = number, text.rotary, text.dropout
        self.norms = nn.ModuleList(NORMS[text.norm](text.width) for _ in range(2))
        # Without a bias: a key's bias has no gradient but rounding, and Adam makes a step of it.
        self.qkv = nn.Linear(text.width, 3 * text.width, bias=False)
        self.out = nn.Linear(text.width, text.width)
        self.up = nn.Linear(text.width, 2 * text.width)
        self.down = nn.Linear(2 * text.width, text.width)

    def forward(self, h: Tensor, seen: Tensor, entry: Entry) -> Tensor:
        """Map h (n, positions, width) to the same shape.

        Args:
            h: states.
            seen: which positions each position attends to, (n, positions, positions).
            entry: of the log; a second call with the same one recomputes the first.
        """
        q, k, v = self.qkv(self.norms[0](h)).chunk(3, dim=-1)
        if self.rotary:
            q, k = rotate(q), rotate(k)
        weights = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf).softmax(-1)
        h = h + self.out(weights @ v)
        if self.dropout:
            mask = F.dropout(torch.ones_like(h), 0.5, self.training)
            self._note(entry, mask)
            h = h * mask
        added: Tensor = h + self.down(torch.tanh(self.up(self.norms[1](h))))
        return added

    def _note(self, entry: Entry, mask: Tensor) -> None:
        bits = ["".join(map(str, row)) for row in (mask.detach().flatten(1) > 0).int().tolist()]
        if self.number < len(entry["drawn"]):
            entry["redrawn"] |= entry["drawn"][self.number] != bits
            return
        entry["drawn"].append(bits)
        entry["masks"] = [a + b for a, b in zip(entry["masks"] or [""] * len(bits), bits, strict=True)]


def rotate(h: Tensor) -> Tensor:
    """Turn pairs of features by angles that grow with the position (RoPE; Su et al. 2021, arXiv:2104.09864).

    Args:
        h: (n, positions, width), of an even width.
    """
    half = h.shape[-1] // 2
    rates = 10000.0 ** -(torch.arange(half, dtype=h.dtype, device=h.device) / half)
    angles = torch.arange(h.shape[1], dtype=h.dtype, device=h.device)[:, None] * rates
    a, b = h.chunk(2, dim=-1)
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], dim=-1)


def minibatch(text: Text, n: int, generator: torch.Generator, dtype: torch.dtype) -> tuple[dict[str, Tensor], Any]:
    """Draw n texts and their labels. At least the first label of the first text counts."""
    shape = (n, text.positions)
    tokens, labels = (torch.randint(text.vocabulary, shape, generator=generator) for _ in range(2))
    length = torch.full((n,), text.positions)
    if text.unequal:
        length = torch.randint(1, text.positions + 1, (n,), generator=generator)
    after = torch.arange(text.positions) >= length[:, None]
    ignored = after.clone()
    if text.ignored:
        ignored |= torch.rand(shape, generator=generator) < SHARE_IGNORED
    if text.silent:
        ignored[max(1, n - text.silent) :] = True
    ignored[0, 0] = False
    weights = torch.rand(n, generator=generator, dtype=torch.float64) + 0.5 if text.weighted else torch.ones(n)
    X = {"tokens": tokens.masked_fill(after, 0), "length": length, "sample": torch.arange(n)}
    return X, {"labels": labels.masked_fill(ignored, IGNORED), "weights": weights.to(dtype)}
