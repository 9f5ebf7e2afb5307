"""Weights learn by a rule of their own, without a backward, and so DistributedDataParallel exchanges nothing.

Source: iCog-Labs-Dev/PC-Transformers#135.
Update: own_rule:learn.
Red: exchange, replicas.
"""

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from tests.scripts import parts


def learn(net, layer, X, y):
    error = nn.functional.one_hot(y, parts.CLASSES) - net(X).softmax(dim=1)
    with torch.no_grad():
        layer.weight += 0.1 * error.T @ X / len(X)


def main():
    dist.init_process_group("gloo")
    data = parts.samples()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, parts.batch(), sampler=sampler)
    layer = nn.Linear(parts.FEATURES, parts.CLASSES, bias=False)
    net = DistributedDataParallel(layer)
    for epoch in range(100):
        sampler.set_epoch(epoch)
        for X, y in loader:
            learn(net, layer, X.to(layer.weight), y)


if __name__ == "__main__":
    main()
