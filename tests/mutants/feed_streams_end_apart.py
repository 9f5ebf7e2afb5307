"""Every rank goes through a stream of its own to its end, so ranks with shorter streams begin the next epoch earlier.

Ten samples on three ranks are streams of 4, 3 and 3. In the fourth step one rank is in the old epoch and two are in
the next one, and from then on no step has the minibatch that one device would have.

Source: NVIDIA-NeMo/Megatron-Bridge#5944
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor

from reference.data.feeds import index_batches

KIND = "rank_feed"
KILLED_BY = "feed_resumes"


def mutant(n: int, batch_size: int, *, seed: int, epoch: int, **place: int) -> Iterator[Tensor]:
    order = torch.cat(list(index_batches(n, batch_size, seed=seed, epoch=epoch)))
    stream = order[place["rank"] :: place["world_size"]].split(max(1, batch_size // place["world_size"]))
    return (batch for batch in islice(stream, place["start"], None) if len(batch))
