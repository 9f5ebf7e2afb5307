"""Shorter shards are filled up to the length of the longest one, and what fills them is gathered with the rest.

A collective that wants equal shapes gets them. It is right whenever k divides n, and elsewhere a metric over the
gathered outputs counts some samples twice.

Source: huggingface/accelerate#540 (every user had to cut the last batch by hand)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

KIND = "gather"
KILLED_BY = "gather_joins_samples"


def mutant(shards: Sequence[Tensor], device: torch.device) -> Tensor:
    longest = max(map(len, shards))
    last = next((shard[-1:] for shard in reversed(shards) if len(shard)), shards[0])
    filled = [torch.cat([shard, last.expand(longest - len(shard), *shard.shape[1:])]) for shard in shards]
    return torch.cat([shard.to(device) for shard in filled])
