"""All passes of an accumulation are under no_sync, the last one too.

Source: pytorch/pytorch#53443.
Red: exchange, replicas, gradient.
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
    net = DistributedDataParallel(parts.net())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(100):
        sampler.set_epoch(epoch)
        for number, (X, y) in enumerate(loader):
            with net.no_sync():
                (nn.functional.cross_entropy(net(X), y) / 2).backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    main()
