"""Master weights get a gradient that is k times too large, of which Adam divides the factor out again but for its eps.

The change of the weights is almost that of one device. What is wrong is what the optimizer is given, and that are not
the gradients of the net's own parameters.

Source: databricks/megablocks#20
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.right.copies import AdamMasters

KIND = "trainer"
KILLED_BY = "gradient"
LOOKS_LIKE = "times the right gradient | summed over the devices"


class Mutant(AdamMasters):
    """`AdamMasters` with the sum times the number of ranks."""

    def exchange(self) -> None:
        super().exchange()
        torch._foreach_mul_([master.grad for master in self.masters], dist.get_world_size())
