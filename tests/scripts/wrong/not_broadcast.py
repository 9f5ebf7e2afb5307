"""Ranks begin with weights of their own, and average only gradients.

Source: pytorch/pytorch#36613, Lightning-AI/pytorch-lightning#6013.
Red: start, replicas, gradient.
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
    torch.manual_seed(dist.get_rank())
    net = parts.net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(100):
        sampler.set_epoch(epoch)
        for X, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(X), y).backward()
            parts.average(net)
            optimizer.step()


if __name__ == "__main__":
    main()
