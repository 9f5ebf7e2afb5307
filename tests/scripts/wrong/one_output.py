"""The gradient is exactly 0: cross_entropy over one output.

Source: the DDP tutorial series of pytorch/examples.
Red: moves.
"""

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from tests.scripts import parts


def main():
    dist.init_process_group("gloo")
    data = parts.samples()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, parts.batch(), sampler=sampler)
    net = DistributedDataParallel(nn.Linear(parts.FEATURES, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(100):
        sampler.set_epoch(epoch)
        for X, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(X), y[:, None].double()).backward()
            optimizer.step()


if __name__ == "__main__":
    main()
