"""Two processes load each rank's rows, and dropout has a seed of each rank."""

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from tests.scripts import parts


def main():
    dist.init_process_group("gloo")
    data = parts.samples()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, parts.batch(), sampler=sampler, num_workers=2, persistent_workers=True)
    torch.manual_seed(0)
    net = DistributedDataParallel(parts.net(dropout=0.5))
    torch.manual_seed(dist.get_rank())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    parts.train(net, optimizer, loader, sampler)


if __name__ == "__main__":
    main()
