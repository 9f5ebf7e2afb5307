"""Lightning Fabric: it wraps model and optimizer, and the loop stays yours."""

import torch.distributed as dist
import torch.nn.functional as F
from lightning.fabric import Fabric
from torch.optim import SGD


class FabricTrainer:
    processes = "per-device"

    def __init__(self, model, devices, *, lr):
        self.fabric = Fabric(accelerator=devices[0].type, devices=dist.get_world_size(), strategy="ddp")
        self.fabric.launch()
        self.net, self.optimizer = self.fabric.setup(model, SGD(model.parameters(), lr))

    def step(self, X, y, global_batch_size):
        loss = F.cross_entropy(self.net(X), y, reduction="sum") / global_batch_size
        self.optimizer.zero_grad()
        self.fabric.backward(loss * self.fabric.world_size)
        self.optimizer.step()
        return loss.detach()

    @property
    def replicas(self):
        return [self.net.module]
