"""The schedule counts the updates that one device would make with a rank's minibatch, k times as many.

Source: Lightning-AI/pytorch-lightning#2149, huggingface/diffusers#6137.
Red: schedule.
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
    net = DistributedDataParallel(parts.net())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    updates = len(data) // parts.batch()
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    parts.train(net, optimizer, loader, sampler, after=schedule.step)


if __name__ == "__main__":
    main()
