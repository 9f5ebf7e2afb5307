"""Accelerate, with two passes an update; its schedule advances once for each process, by its design."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

from tests.scripts import parts


def main():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    net = parts.net()
    optimizer = torch.optim.AdamW(net.parameters())
    loader = DataLoader(parts.samples(), parts.batch(), shuffle=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 100))
    net, optimizer, loader, schedule = accelerator.prepare(net, optimizer, loader, schedule)
    for _ in range(100):
        for X, y in loader:
            with accelerator.accumulate(net):
                accelerator.backward(nn.functional.cross_entropy(net(X), y))
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    main()
