"""Accelerate: `prepare` wraps model and optimizer, and the loop stays yours."""

import torch.nn.functional as F
from accelerate import Accelerator
from torch.optim import SGD


class AccelerateTrainer:
    processes = "per-device"

    def __init__(self, model, devices, *, lr):
        self.accelerator = Accelerator(cpu=devices[0].type == "cpu")
        self.net, self.optimizer = self.accelerator.prepare(model, SGD(model.parameters(), lr))

    def step(self, X, y, global_batch_size):
        loss = F.cross_entropy(self.net(X), y, reduction="sum") / global_batch_size
        self.optimizer.zero_grad()
        self.accelerator.backward(loss * self.accelerator.num_processes)
        self.optimizer.step()
        return loss.detach()

    @property
    def replicas(self):
        return [self.accelerator.unwrap_model(self.net)]
