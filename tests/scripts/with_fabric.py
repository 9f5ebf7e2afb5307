"""Lightning Fabric on the ranks that torchrun has started."""

import os

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader

from tests.scripts import parts


def main():
    fabric = Fabric(accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy="ddp")
    fabric.launch()
    net = parts.net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net, optimizer = fabric.setup(net, optimizer)
    loader = fabric.setup_dataloaders(DataLoader(parts.samples(), parts.batch(), shuffle=True))
    for _ in range(100):
        for X, y in loader:
            optimizer.zero_grad()
            fabric.backward(nn.functional.cross_entropy(net(X), y))
            optimizer.step()


if __name__ == "__main__":
    main()
