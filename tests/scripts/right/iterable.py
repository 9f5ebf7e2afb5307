"""An IterableDataset, of which each rank takes every k-th row."""

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

from tests.scripts import parts


class Stream(IterableDataset):
    def __iter__(self):
        rank, k = dist.get_rank(), dist.get_world_size()
        for number, row in enumerate(parts.samples()):
            if number % k == rank:
                yield row


def main():
    dist.init_process_group("gloo")
    loader = DataLoader(Stream(), parts.batch())
    net = DistributedDataParallel(parts.net())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    parts.train(net, optimizer, loader)


if __name__ == "__main__":
    main()
