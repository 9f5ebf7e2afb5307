"""A flat tensor of all master weights gets a gradient that is k times too large, and steps by sign hide it.

The optimizer's one tensor has the length of all parameters together, so no parameter of the net has its shape.

Source: databricks/megablocks#20
"""

from __future__ import annotations

import torch.distributed as dist

from tests.right.copies import FlatMasters

KIND = "trainer"
KILLED_BY = "gradient"
LOOKS_LIKE = "times the right gradient | summed over the devices"


class Mutant(FlatMasters):
    """`FlatMasters` with the sum times the number of ranks."""

    def exchange(self) -> None:
        super().exchange()
        self.masters[0].grad.mul_(dist.get_world_size())  # type: ignore[union-attr]
