"""Each rank divides by its own tokens, and DistributedDataParallel averages the means.

Source: huggingface/transformers#34242, pytorch/torchtitan#2206.
Red: gradient.
"""

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
            losses = nn.functional.cross_entropy(net(tokens).flatten(0, 1), labels.flatten(), reduction="none")
            counts = (labels.flatten() >= 0).double()
            (losses * counts).sum().div(counts.sum()).backward()
            optimizer.step()


if __name__ == "__main__":
    main()
