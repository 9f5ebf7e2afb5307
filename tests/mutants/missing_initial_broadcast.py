"""The ranks never start from the same weights, and exchange gradients of different networks forever.

Gradients are averaged, so the differences between the replicas stay what they were at the start. With the same seed on
every rank, as in most tests, it is right; the loss of rank 0 goes down either way.

Source: pytorch/pytorch#36613, Lightning-AI/pytorch-lightning#6013
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from reference.trainers.ddp import DDPTrainer

KIND = "trainer"
KILLED_BY = "start"
LOOKS_LIKE = "no broadcast at the start | drifted apart"


class Mutant(DDPTrainer):
    """`DDPTrainer` that saves the broadcast at the start."""

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        module = copy.deepcopy(model).to(devices[0])
        on_gpu = devices[0].type == "cuda"
        self.net = DistributedDataParallel(module, device_ids=[devices[0]] if on_gpu else None, init_sync=False)
        self.optimizer = torch.optim.SGD(module.parameters(), lr)
