"""Resuming gives every rank rank 0's slices of the momentum.

Each rank of a sharded trainer has the optimizer's state of its own slices. One file was written for all ranks, by rank
0, as if the state were the same on all of them. The weights are gathered, and right.

Source: huggingface/transformers#23034
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from reference.trainers.fsdp import FSDPTrainer

KIND = "trainer"
KILLED_BY = "resume"
LOOKS_LIKE = "optimizer's state"


class Mutant(FSDPTrainer):
    """`FSDPTrainer` with momentum, of which rank 0's rows take the place of each rank's own."""

    oracle: ClassVar[Literal["sgd", "self"]] = "self"

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr, momentum=0.9)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for kept in self.optimizer.state.values():
            mine = kept["momentum_buffer"].to_local()
            mine.copy_(kept["momentum_buffer"].full_tensor()[: len(mine)])
