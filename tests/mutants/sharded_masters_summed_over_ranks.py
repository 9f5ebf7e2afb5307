"""Each rank's part of the master weights gets a gradient that is k times too large, and steps by sign hide it.

Only the parts of all ranks together are what one device has, and those are padded to a common length.

Source: databricks/megablocks#20
"""

from __future__ import annotations

import torch.distributed as dist

from tests.right.copies import ShardedMasters

KIND = "trainer"
KILLED_BY = "gradient"
LOOKS_LIKE = "times the right gradient | summed over the devices"


class Mutant(ShardedMasters):
    """`ShardedMasters` with the sum times the number of ranks."""

    def exchange(self) -> None:
        super().exchange()
        self.masters[0].grad.mul_(dist.get_world_size())  # type: ignore[union-attr]
