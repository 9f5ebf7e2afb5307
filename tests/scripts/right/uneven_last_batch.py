"""Three rows in a rank's last minibatch: epochs of two updates, batch normalisation, and an evaluation in between."""

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from tests.scripts import parts


def main():
    dist.init_process_group("gloo")
    data, test = parts.samples(4 * parts.batch() - 5), parts.samples(10, seed=1)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, parts.batch(), sampler=sampler)
    evaluation = DataLoader(test, 10)
    net = DistributedDataParallel(nn.Sequential(nn.BatchNorm1d(parts.FEATURES), parts.net()))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(100):
        parts.train(net, optimizer, loader, sampler, epochs=1, first=epoch)
        net.eval()
        with torch.no_grad():
            for X, y in evaluation if dist.get_rank() == 0 else ():
                nn.functional.cross_entropy(net.module(X), y)


if __name__ == "__main__":
    main()
