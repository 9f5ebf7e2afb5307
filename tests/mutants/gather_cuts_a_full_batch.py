"""A batch that all devices share evenly is taken for one of nothing but padding, and is cut off.

What fills up the last batch is removed by its remainder, n modulo the padded length, which is 0 where nothing was
filled up.

Source: huggingface/accelerate#982
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

KIND = "gather"
KILLED_BY = "gather_joins_samples"


def mutant(shards: Sequence[Tensor], device: torch.device) -> Tensor:
    joined = torch.cat([shard.to(device) for shard in shards])
    padded = len(shards) * max(map(len, shards))
    return joined[: len(joined) % padded] if padded else joined
