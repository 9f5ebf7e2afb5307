"""A loop without an optimizer of torch's: its own function makes the update, from gradients that are averaged before.

Update: own_update:descend.
"""

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from tests.scripts import parts


@torch.no_grad()
def descend(net, momenta, rate=0.1):
    for parameter, momentum in zip(net.parameters(), momenta, strict=True):
        momentum.mul_(0.9).add_(parameter.grad)
        parameter -= rate * momentum
        parameter.grad = None


def main():
    dist.init_process_group("gloo")
    data = parts.samples()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, parts.batch(), sampler=sampler)
    net = DistributedDataParallel(parts.net())
    momenta = [torch.zeros_like(parameter) for parameter in net.parameters()]
    for epoch in range(100):
        sampler.set_epoch(epoch)
        for X, y in loader:
            nn.functional.cross_entropy(net(X), y).backward()
            descend(net, momenta)


if __name__ == "__main__":
    main()
