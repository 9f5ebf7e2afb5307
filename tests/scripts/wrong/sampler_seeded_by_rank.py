"""Ranks shuffle by seeds of their own, so that some rows are on two ranks and others on none.

Source: NVlabs/LongLive#71, mlcommons/training#625.
Red: data.
"""

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from tests.scripts import parts


def main():
    dist.init_process_group("gloo")
    data = parts.samples()
    sampler = DistributedSampler(data, seed=dist.get_rank())
    loader = DataLoader(data, parts.batch(), sampler=sampler)
    net = DistributedDataParallel(parts.net())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    parts.train(net, optimizer, loader, sampler)


if __name__ == "__main__":
    main()
