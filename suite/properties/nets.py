"""Builds the network that a case describes (worker's side).

One with dropout or batch normalisation keeps a log of what every forward in training saw. Others read no value of their
input while they compute, unless a layer is unused, so that a trainer may call them under torch.vmap.

The first two columns of X are not features: they are the sample's number in its minibatch and the step's number. The
log keeps the sample numbers, so it tells which samples went through the net together, however a trainer splits, and
which dropout mask was applied to each.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reference import nest
from reference.nest import Nest
from reference.scatter import shard_bounds
from suite.properties import contract, texts, tolerance
from suite.properties.case import IMAGE, Case, Net
from suite.properties.defaults import torchs_own
from suite.properties.log import Entry, Log
from suite.properties.texts import TextNet

# A gradient with this factor is finite in float64, and infinite times a loss scale of 2 ** 10.
OVERFLOWING = 1e306


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
            norms = {"layer": nn.LayerNorm, "batch": nn.BatchNorm1d, "none": nn.Identity}
            self.norms.append(norms[net.norm](wide))
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
                    entry["masks"] += [""] * (len(h) - len(entry["masks"]))
                    bits = (mask > 0).int().tolist()
                    entry["masks"] = [a + "".join(map(str, b)) for a, b in zip(entry["masks"], bits, strict=True)]
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


@torchs_own()
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


@torchs_own()
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
        tokens, y = texts.minibatch(case.text, n, generator, dtype)
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
