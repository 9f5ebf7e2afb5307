"""Every rank clips its shard of the gradient by the norm of that shard.

A shard's norm is smaller than the whole gradient's, so less is clipped, and the shards are scaled by different factors.
Replicas agree, because every value is updated by one rank. On one device the shard is the whole.

Source: sgl-project/SpecForge#663, areal-project/AReaL#312
"""

from __future__ import annotations

from torch import Tensor

from tests.support.step_trainers import Hybrid

KIND = "trainer"
KILLED_BY = "gradient"
LOOKS_LIKE = "clipp"


class Mutant(Hybrid):
    """`Hybrid` that does not ask the other shards."""

    def norm(self, part: Tensor) -> Tensor:
        return part.norm()
