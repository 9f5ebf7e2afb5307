"""Master weights get a gradient that is k times too large, and steps by sign hide it.

The gradients of the net are exchanged twice on their way to the masters, once as a mean and once as a sum. Lion's
momentum is as wrong as its gradient, and no sign changes. On one device nothing is wrong.

Source: databricks/megablocks#20
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.right.copies import Masters

KIND = "trainer"
KILLED_BY = "gradient"
LOOKS_LIKE = "times the right gradient | summed over the devices"


class Mutant(Masters):
    """`Masters` with the sum times the number of ranks."""

    def exchange(self) -> None:
        super().exchange()
        torch._foreach_mul_([master.grad for master in self.masters], dist.get_world_size())
