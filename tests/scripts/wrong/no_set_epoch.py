"""Every epoch has the same order, because set_epoch is not called: a note, and no failure.

Source: pytorch/pytorch#31771.
Red: nothing.
"""

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from tests.scripts import parts


def main():
    dist.init_process_group("gloo")
    data = parts.samples()
    loader = DataLoader(data, parts.batch(), sampler=DistributedSampler(data))
    net = DistributedDataParallel(parts.net())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(100):
        parts.train(net, optimizer, loader, epochs=1)


if __name__ == "__main__":
    main()
