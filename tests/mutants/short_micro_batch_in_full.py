"""The last micro-batch of a shard, of fewer samples than the others, has the same weight as they have.

A shard is trained on 32 samples at a time. The mean over micro-batches is right where 32 divides the shard, and where
the shard is a single micro-batch: a look at a few samples finds nothing.

Source: keras-team/keras#20241, huggingface/transformers#34191
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.step_trainers import PlainStep

KIND = "trainer"
KILLED_BY = "trajectory"
LOOKS_LIKE = "must return its"
SAMPLES = 32


class Mutant(PlainStep):
    """`PlainStep` whose shards are split by a number of samples; they are weighted rightly."""

    micro_batches = 1

    def backward(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        parts = list(zip(X.split(SAMPLES), y.split(SAMPLES), strict=True))
        sums = [F.cross_entropy(self.net(part), labels, reduction="sum") for part, labels in parts]
        means = [total / max(1, len(labels)) for total, (_, labels) in zip(sums, parts, strict=True)]
        loss = torch.stack(means).mean() * (len(y) / global_batch_size)
        self.scaled(loss).backward()
        return loss.detach()
