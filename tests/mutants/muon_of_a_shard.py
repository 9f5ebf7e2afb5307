"""Muon orthogonalises each rank's rows of a matrix by themselves, and not the matrix.

The optimizer sees the shard that the rank holds. Every shard is orthogonal, none of it knows of the others, and the
update has another direction and length; on one device the shard is the matrix.

Source: NVIDIA/Megatron-LM#5961
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from tests.support.step_trainers import Muon

KIND = "trainer"
KILLED_BY = "gradient"
LOOKS_LIKE = ""


class Mutant(Muon):
    """`Muon` on as many blocks of rows as there are ranks."""

    def orthogonal(self, matrix: Tensor) -> Tensor:
        return torch.cat([super(Mutant, self).orthogonal(rows) for rows in matrix.chunk(dist.get_world_size())])
