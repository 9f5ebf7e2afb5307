"""Every process makes a group of its own, so that there are as many trainings.

Source: Lightning Fabric's image classifier under torchrun, with its default of one device.
Red: world.
"""

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from tests.scripts import parts


def main():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    data = parts.samples()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, parts.batch(), sampler=sampler)
    net = DistributedDataParallel(parts.net())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    parts.train(net, optimizer, loader, sampler)


if __name__ == "__main__":
    main()
