"""A bias against classes that were predicted too often follows each rank's own counts.

The bias is no parameter, and gradients are exchanged, so the replicas agree after every step. Which classes a rank
favours is its own affair from the second step on.

Source: pytorch/torchtitan#1114 (the counts of tokens for each expert must be summed over all ranks)
"""

from __future__ import annotations

from torch import Tensor

from tests.right.losses import BalancesLoad

KIND = "trainer"
KILLED_BY = "trajectory"
LOOKS_LIKE = ""


class Mutant(BalancesLoad):
    """`BalancesLoad` without the exchange of counts."""

    def counts(self, chosen: Tensor) -> Tensor:
        return chosen
