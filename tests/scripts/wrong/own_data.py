"""Each rank makes its data itself, by random numbers of its own, and a sampler leaves it a part of them.

Source: the DDP tutorial series of pytorch/examples.
Red: data.
"""

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from tests.scripts import parts


def main():
    dist.init_process_group("gloo")
    data = parts.samples(seed=dist.get_rank())
    sampler = DistributedSampler(data)
    loader = DataLoader(data, parts.batch(), sampler=sampler)
    net = DistributedDataParallel(parts.net())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    parts.train(net, optimizer, loader, sampler)


if __name__ == "__main__":
    main()
