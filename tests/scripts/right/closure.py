"""The step computes its gradients itself, by a closure, as Lightning's automatic optimization has it."""

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
    optimizer = torch.optim.AdamW(net.parameters())
    for epoch in range(100):
        sampler.set_epoch(epoch)
        for X, y in loader:

            def closure(X=X, y=y):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(net(X), y)
                loss.backward()
                return loss

            optimizer.step(closure)


if __name__ == "__main__":
    main()
