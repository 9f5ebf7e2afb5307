"""A layer is frozen while the model is wrapped and trained later, so that its gradient is not exchanged.

Source: huggingface/transformers#416, and the warning in the documentation of DistributedDataParallel.
Red: replicas, gradient.
"""

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from tests.scripts import parts


def main():
    dist.init_process_group("gloo")
    data = parts.samples()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, parts.batch(), sampler=sampler)
    net = parts.net()
    net[0].requires_grad_(False)
    wrapped = DistributedDataParallel(net)
    net[0].requires_grad_(True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    parts.train(wrapped, optimizer, loader, sampler)


if __name__ == "__main__":
    main()
