"""Texts of several lengths: the sum of losses over the tokens of all ranks."""

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from tests.scripts import parts


def main():
    dist.init_process_group("gloo")
    data = parts.texts()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, parts.batch(), sampler=sampler)
    net = DistributedDataParallel(parts.writer())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(100):
        sampler.set_epoch(epoch)
        for tokens, labels in loader:
            optimizer.zero_grad()
            total = nn.functional.cross_entropy(net(tokens).flatten(0, 1), labels.flatten(), reduction="sum")
            count = (labels >= 0).sum().double()
            dist.all_reduce(count)
            (total * dist.get_world_size() / count).backward()
            optimizer.step()


if __name__ == "__main__":
    main()
