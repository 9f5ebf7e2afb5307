"""Each rank clips its own gradient, and only then gradients are averaged.

Source: mindspore-lab/mindcv#603, determined-ai/determined#602.
Red: gradient.
"""

import torch
from torch import distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from tests.scripts import parts


def main():
    dist.init_process_group("gloo")
    data = parts.samples()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, parts.batch(), sampler=sampler)
    torch.manual_seed(0)
    net = parts.net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(100):
        sampler.set_epoch(epoch)
        for X, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(X), y).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.01)
            parts.average(net)
            optimizer.step()


if __name__ == "__main__":
    main()
