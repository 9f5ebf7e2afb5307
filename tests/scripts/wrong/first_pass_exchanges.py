"""Of an accumulation the first pass exchanges, and the others are under no_sync.

Source: modelscope/FunASR#3472, karpathy/build-nanogpt#30.
Red: replicas, gradient.
"""

from contextlib import nullcontext

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
            with net.no_sync() if number % 2 else nullcontext():
                (nn.functional.cross_entropy(net(X), y) / 2).backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    main()
