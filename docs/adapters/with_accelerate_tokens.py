"""Accelerate on texts: AdamW, clipping, and micro-batches, divided by the tokens that count on all ranks."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch.optim import AdamW

from reference import nest


class AccelerateTokensTrainer:
    processes = "per-device"
    oracle = "self"
    trains = "tokens"
    micro_batches = 2

    def __init__(self, model, devices, *, lr):
        self.accelerator = Accelerator(cpu=devices[0].type == "cpu", gradient_accumulation_steps=self.micro_batches)
        self.net, self.optimizer = self.accelerator.prepare(model, AdamW(model.parameters(), lr))

    def step(self, X, y, global_batch_size):
        labels, total = y["labels"], 0
        counting = self.accelerator.reduce((labels != -100).sum())
        for rows in torch.arange(len(labels), device=labels.device).tensor_split(self.micro_batches):
            piece, targets = nest.take((X, labels), rows)
            with self.accelerator.accumulate(self.net):
                scores = self.net(piece).flatten(0, 1)
                loss = F.cross_entropy(scores, targets.flatten(), reduction="sum") / counting
                # It divides by the number of micro-batches, and by that of the ranks.
                self.accelerator.backward(loss * self.micro_batches * self.accelerator.num_processes)
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.net.parameters(), 1.0)
                self.optimizer.step()
                self.optimizer.zero_grad()
            total += loss.detach()
        return total

    @property
    def replicas(self):
        return [self.accelerator.unwrap_model(self.net)]
