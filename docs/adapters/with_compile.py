"""A plain loop with torch.compile around DistributedDataParallel."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD


class CompiledTrainer:
    processes = "per-device"

    def __init__(self, model, devices, *, lr):
        self.model = model.to(devices[0])
        wrapped = DistributedDataParallel(self.model, device_ids=None if devices[0].type == "cpu" else devices)
        self.net = torch.compile(wrapped, dynamic=True)
        self.optimizer = SGD(self.model.parameters(), lr)

    def step(self, X, y, global_batch_size):
        loss = F.cross_entropy(self.net(X), y, reduction="sum") / global_batch_size
        self.optimizer.zero_grad()
        (loss * dist.get_world_size()).backward()
        self.optimizer.step()
        return loss.detach()

    @property
    def replicas(self):
        return [self.model]
