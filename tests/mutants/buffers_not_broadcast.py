"""Buffers are never sent from rank 0, neither at the start nor later: only the parameters agree.

``broadcast_buffers=False`` saves a collective a forward, and since torch 2.1 it also leaves out the buffers at the
start. BatchNorm does not read its statistics in training, so parameters are right and only evaluation depends on the
rank; after a step the statistics differ under DDP, too. A buffer that the forward reads (a random projection, a scale)
spoils the gradient.

Source: pytorch/pytorch#111138, open-mmlab/mmdetection#2539
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from reference.trainers.ddp import DDPTrainer

KIND = "trainer"
KILLED_BY = "evaluation"
LOOKS_LIKE = "drifted apart | buffer"


class Mutant(DDPTrainer):
    """`DDPTrainer` for nets without buffers."""

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        module = copy.deepcopy(model).to(devices[0])
        for param in module.parameters():
            dist.broadcast(param.data, src=0)
        on_gpu = devices[0].type == "cuda"
        self.net = DistributedDataParallel(module, device_ids=[devices[0]] if on_gpu else None, init_sync=False)
        self.net.broadcast_buffers = False
        self.optimizer = torch.optim.SGD(module.parameters(), lr)
