"""Builds the network that a case describes, and its minibatches (worker's side).

One with dropout or batch normalisation keeps a log of what every forward in training saw. Others read no value of their
input while they compute, unless a layer is unused, so that a trainer may call them under torch.vmap.

The first two columns of X are not features: they are the sample's number in its minibatch and the step's number. The
log keeps the sample numbers, so it tells which samples went through the net together, however a trainer splits, and
which dropout mask was applied to each.

Of a language model X is {"tokens" (n, positions) int64, "length" (n,) int64, "sample" (n,) int64} and y is {"labels"
(n, positions) int64, -100 where none counts, "weights" (n,) floating}. "sample" is the sample's number in its
minibatch, which the model keeps in its log, if it has dropout, and does not compute with.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from reference import nest
from reference.nest import Nest
from reference.scatter import shard_bounds
from suite.properties import contract, tolerance
from suite.properties.case import IMAGE, Case, Net, Text
from suite.properties.contract import torchs_own_defaults

IGNORED = -100
SHARE_IGNORED = 0.4
NORMS = {"none": nn.Identity, "layer": nn.LayerNorm, "rms": nn.RMSNorm, "batch": nn.BatchNorm1d}
# A gradient with this factor is finite in float64, and infinite times a loss scale of 2 ** 10.
OVERFLOWING = 1e306


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

        Each position attends to those that it has in `seen`, (n, positions, positions). A second call with the
        same entry of the log recomputes the first.
        """
        q, k, v = self.qkv(self.norms[0](h)).chunk(3, dim=-1)
        if self.rotary:
            q, k = rotate(q), rotate(k)
        weights = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf).softmax(-1)
        h = h + self.out(weights @ v)
        if self.dropout:
            mask = F.dropout(torch.ones_like(h), 0.5, self.training)
            self._note(entry, bits_of(mask))
            h = h * mask
        added: Tensor = h + self.down(torch.tanh(self.up(self.norms[1](h))))
        return added

    def _note(self, entry: Entry, bits: list[str]) -> None:
        if self.number < len(entry["drawn"]):
            entry["redrawn"] |= entry["drawn"][self.number] != bits
            return
        entry["drawn"].append(bits)
        entry.add(bits)


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


def text_minibatch(text: Text, n: int, generator: torch.Generator, dtype: torch.dtype) -> tuple[dict[str, Tensor], Any]:
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


class Entry(dict[str, Any]):
    """What one forward saw. FSDP gives a block a copy of every dict that it is called with, but not of its subclasses.

    It has "samples", their numbers in the minibatch; "masks", one text of bits for each sample, or none; and
    "recomputed": whether the forward ran in the backward. A language model's entry also has "redrawn": whether a block
    that was recomputed in the backward met another mask.
    """

    def __init__(self, samples: list[float], **more: Any) -> None:
        # torch.utils.checkpoint asks the same: a graph has a number while its backward runs.
        recomputed = torch._C._current_graph_task_id() != -1
        super().__init__(samples=samples, masks=[], recomputed=recomputed, **more)

    def add(self, bits: list[str]) -> None:
        """Add what `bits_of` a mask returned to the masks of the samples."""
        self["masks"] = [a + b for a, b in zip(self["masks"] or [""] * len(bits), bits, strict=True)]


def bits_of(mask: Tensor) -> list[str]:
    """Return for each sample which values of a dropout mask (n, ...) are kept, as a text of 0 and 1."""
    return ["".join(map(str, row)) for row in (mask.detach().flatten(1) > 0).int().tolist()]


class Log(list[Entry]):
    """One entry a forward; copies of a net share one log."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Log:
        return self


class CaseNet(nn.Module):
    """The network of a `Net`: (n, 2 + inputs) to (n, classes)."""

    offset: Tensor | None

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.log = Log()
        self.activation = nn.Tanh() if net.activation == "tanh" else nn.ReLU()
        self.dropout = net.dropout
        self.logs = net.dropout or net.norm == "batch"
        self.conv = nn.Conv2d(IMAGE[0], 2, 3) if net.conv else None
        width = 2 * (IMAGE[1] - 2) * (IMAGE[2] - 2) if net.conv else net.inputs
        self.hidden = nn.ModuleList()
        self.norms = nn.ModuleList()
        for wide in net.hidden:
            self.hidden.append(nn.Linear(width, wide))
            self.norms.append(NORMS[net.norm](wide))
            width = wide
        self.tied = nn.ModuleList([nn.Linear(width, width), nn.Linear(width, width)] if net.tied else [])
        for layer in self.tied:
            layer.weight = self.tied[0].weight
        self.unused = net.unused
        self.gated = nn.Linear(width, width) if net.unused != "none" else None
        self.head = nn.Linear(width, net.classes)
        self.register_buffer("offset", torch.randn(net.classes) if net.buffer else None)
        if net.frozen:
            next(self.parameters()).requires_grad_(False)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Map X (n, 2 + inputs), the only argument, to scores (n, classes)."""
        X = contract.x_alone(args, kwargs)
        entry = Entry(X[:, 0].detach().tolist()) if self.logs and self.training else None
        h = X[:, 2:]
        if self.conv is not None:
            h = self.activation(self.conv(h.reshape(len(h), *IMAGE))).flatten(1)
        for layer, norm in zip(self.hidden, self.norms, strict=True):
            h = self.activation(norm(layer(h)))
            if self.dropout:
                mask = F.dropout(torch.ones_like(h), 0.5, self.training)
                if entry is not None:
                    entry.add(bits_of(mask))
                h = h * mask
        for layer in self.tied:
            h = self.activation(layer(h))
        if self.gated is not None:
            # Sample 0 is in the first shard in every step, samples 2 and 3 in the second if there are two of two;
            # "nowhere" chooses none.
            chosen_by = {"somewhere": X[:, 0] == 0, "elsewhere": X[:, 0] > 1, "later": X[:, 1] > 0}
            chosen = chosen_by.get(self.unused, X[:, 0] < 0)
            if bool(chosen.any()):
                h = h + chosen[:, None] * self.gated(h)
        if entry is not None:
            self.log.append(entry)
        scores: Tensor = self.head(h)
        return scores if self.offset is None else scores + self.offset


@torchs_own_defaults()
def build(case: Case, rank: int = 0) -> CaseNet | TextNet:
    """Return the case's network on the CPU with this rank's initial weights and buffers; rank 0's count."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(case.seed + rank)
        net = CaseNet(case.net) if case.text is None else TextNet(case.text)
        if case.variant:
            move_(net.double(), case)
        return net.to(getattr(torch, case.dtype))


@torch.no_grad()
def move_(net: nn.Module, case: Case, step: int = -1) -> None:
    """Move the weights of a net as a variant of a case does: before a step, or the initial ones by default."""
    variation = _variation(case, -2 - step)
    for parameter in net.parameters():
        parameter.copy_(parameter.double() * _factors(case, parameter.shape, variation))


@torchs_own_defaults()
def minibatch(case: Case, step: int) -> tuple[Nest, Nest]:
    """Return one step's whole minibatch: X (n, 2 + inputs) in the case's dtype, y (n,) int64; or texts.

    It is the same on every rank, and all samples of a classifier differ. In the case's `spoiled` step the features of
    one sample, or the weight of one text, are NaN (the features may be `OVERFLOWING` instead), and so on one rank. In
    the step of the case's `part` there are only the samples of one rank.
    """
    generator = torch.Generator().manual_seed(case.seed * 1009 + step)
    n, dtype = case.batches[step], getattr(torch, case.dtype)
    variation = _variation(case, step)
    order: Tensor | slice = (
        torch.randperm(n, generator=variation) if case.variant and not case.moved_by else slice(None)
    )
    if case.part is not None and case.part[0] == step:
        order = shard_bounds(n, case.part[2], case.part[1])
    if case.text is not None:
        tokens, y = text_minibatch(case.text, n, generator, dtype)
        if step == case.spoiled:
            y["weights"][torch.randint(n, (), generator=generator)] = torch.nan
        return nest.take(tokens, order), nest.take(y, order)
    inputs = math.prod(IMAGE) if case.net.conv else case.net.inputs
    features = torch.randn(n, inputs, generator=generator, dtype=torch.float64)
    numbers = torch.arange(n, dtype=torch.float64)
    labels = torch.randint(case.net.classes, (n,), generator=generator)
    if step == case.spoiled:
        features[torch.randint(n, (), generator=generator)] = OVERFLOWING if case.overflows else torch.nan
    if case.variant:
        features *= _factors(case, features.shape, variation)
    X = torch.cat([numbers[:, None], torch.full((n, 1), float(step)), features], dim=1).to(dtype)
    return X[order], labels[order]


def _variation(case: Case, step: int) -> torch.Generator:
    """Return the generator of what a variant of a case changes in a step; before it, in the weights: -2 - step."""
    return torch.Generator().manual_seed((case.seed * 1009 + step + 1) * 101 + case.variant)


def _factors(case: Case, shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Draw factors that differ from 1 by what a variant moves by at most: half an ulp of bfloat16 by default."""
    return 1 + (case.moved_by or tolerance.roundoff(torch.bfloat16)) * (
        2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1
    )
