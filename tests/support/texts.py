"""A seeded corpus of short texts as a nest of tensors, a small language model for it, and right and wrong trainers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from reference.loss import term_counts, term_sums
from reference.trainers.ddp import DDPTokensTrainer

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


class MeanOfRanks(DDPTokensTrainer):
    """Wrong where ranks have unequal numbers of tokens: each rank's own mean, averaged."""

    def step(self, X: Any, y: Any, global_batch_size: int) -> Tensor:
        loss = (term_sums(self.net(X), y) / term_counts(y).clamp(min=1e-9)).sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class Doubled(DDPTokensTrainer):
    """Wrong: on several ranks the gradient is twice as large."""

    def step(self, X: Any, y: Any, global_batch_size: int) -> Tensor:
        self.optimizer.param_groups[0]["lr"] = 0.05 * (2 if dist.get_world_size() > 1 else 1)
        return super().step(X, y, global_batch_size)


class UnusedNotReceived(DDPTokensTrainer):
    """Wrong where a rank does not use a layer: it sends zeros for the gradient, and the sum is not its own."""

    def step(self, X: Any, y: Any, global_batch_size: int) -> Tensor:
        counts = term_counts(y)
        dist.all_reduce(counts)
        loss = (term_sums(self.net.module(X), y) / counts).sum()
        self.optimizer.zero_grad()
        loss.backward()
        for parameter in self.net.module.parameters():
            dist.all_reduce(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
        self.optimizer.step()
        return loss.detach()


class DividesByZero(DDPTokensTrainer):
    """Its loss is not a number on one device."""

    def step(self, X: Any, y: Any, global_batch_size: int) -> Tensor:
        return super().step(X, {**y, "weights": 0 * y["weights"]}, global_batch_size)


class OneLayerAlone(DDPTokensTrainer):
    """Wrong: one layer's gradient stays that of rank 0."""

    def step(self, X: Any, y: Any, global_batch_size: int) -> Tensor:
        layer, held = self.net.module.blocks[1].up, {}
        handles = [p.register_hook(lambda g, p=p: held.__setitem__(p, g.clone())) for p in layer.parameters()]
        before = {p: p.detach().clone() for p in layer.parameters()}
        loss = super().step(X, y, global_batch_size)
        for handle in handles:
            handle.remove()
        with torch.no_grad():
            for p, was in before.items():
                dist.broadcast(held[p], src=0)
                p.copy_(was - 0.05 * held[p])
        return loss


class OneWeightApart(DDPTokensTrainer):
    """Wrong: rank 1 has another weight in one layer, although the exchange is right."""

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        if dist.get_rank() == 1:
            with torch.no_grad():
                self.net.module.blocks[0].qkv.weight[0, 0] += 0.5


class MixesTexts(DDPTokensTrainer):
    """Right, but each text gets the weight of another one of its rank."""

    def step(self, X: Any, y: Any, global_batch_size: int) -> Tensor:
        weights = y["weights"] + torch.rand(len(y["weights"]))
        return super().step(X, {**y, "weights": weights[torch.randperm(len(weights))]}, global_batch_size)


class DrawsDropout(DDPTokensTrainer):
    """Right; it leaves out some texts at random."""

    def step(self, X: Any, y: Any, global_batch_size: int) -> Tensor:
        kept = F.dropout(y["weights"], 0.5)
        return super().step(X, {**y, "weights": kept + 0.01}, global_batch_size)


class Accumulates(DDPTokensTrainer):
    """Right under oracle "self": Adam, and two passes a step."""

    oracle = "self"

    sums = True

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr)  # type: ignore[assignment]

    def step(self, X: Any, y: Any, global_batch_size: int) -> Tensor:
        counts = term_counts(y)
        dist.all_reduce(counts)
        half = -(-len(y["labels"]) // 2)
        self.optimizer.zero_grad()
        total = torch.zeros((), dtype=counts.dtype)
        for part in (slice(half), slice(half, None)):
            piece, labels = ({name: t[part] for name, t in nest.items()} for nest in (X, y))
            loss = (term_sums(self.net(piece), labels) / counts).sum()
            (loss * dist.get_world_size() if self.sums else loss).backward()
            total += loss.detach()
        self.optimizer.step()
        return total


class HiddenByAdam(Accumulates):
    """Wrong under oracle "self": the gradient is divided by the number of ranks once more, which Adam undoes."""

    sums = False


class SkipsAlone(DDPTokensTrainer):
    """Wrong where one rank's loss is not a number: it skips the step, and the others do not."""

    oracle = "self"

    def step(self, X: Any, y: Any, global_batch_size: int) -> Tensor:
        loss = term_sums(self.net(X), y)[0] / global_batch_size
        self.optimizer.zero_grad()
        (loss * dist.get_world_size()).backward()
        if loss.isfinite():
            self.optimizer.step()
        return loss.detach()
