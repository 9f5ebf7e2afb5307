"""A loss with weights of its own is not wrapped, so that its gradient is not exchanged.

Source: KevinMusgrave/pytorch-metric-learning#710, facebookresearch/ClassyVision#394.
Red: replicas, gradient.
"""

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from tests.scripts import parts


class Margin(nn.Module):
    """Cosines to a centre of each class, as for faces."""

    def __init__(self):
        super().__init__()
        self.centres = nn.Parameter(torch.randn(parts.CLASSES, parts.CLASSES))

    def forward(self, X, y):
        cosines = nn.functional.normalize(X) @ nn.functional.normalize(self.centres).T
        return nn.functional.cross_entropy(8 * cosines, y)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = parts.samples()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, parts.batch(), sampler=sampler)
    net, loss = DistributedDataParallel(parts.net()), Margin()
    optimizer = torch.optim.SGD([*net.parameters(), *loss.parameters()], lr=0.1)
    for epoch in range(100):
        sampler.set_epoch(epoch)
        for X, y in loader:
            optimizer.zero_grad()
            loss(net(X), y).backward()
            optimizer.step()


if __name__ == "__main__":
    main()
