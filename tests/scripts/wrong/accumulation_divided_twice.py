"""The loss is divided by the passes of all ranks, and averaged over the ranks as well.

Source: huggingface/transformers#34191.
Red: gradient.
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
    passes = 4 // dist.get_world_size()
    for epoch in range(100):
        sampler.set_epoch(epoch)
        for number, (X, y) in enumerate(loader, 1):
            (nn.functional.cross_entropy(net(X), y) / 4).backward()
            if number % passes == 0:
                optimizer.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    main()
