"""Each rank splits the data by random numbers of its own, and evaluates on what the others train on.

Source: Lightning-AI/pytorch-lightning#7728, TensorAuto/OpenTau#498.
Red: data.
"""

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, random_split

from tests.scripts import parts


def main():
    dist.init_process_group("gloo")
    train, test = random_split(parts.samples(), [0.8, 0.2])
    sampler = DistributedSampler(train)
    loader = DataLoader(train, parts.batch(), sampler=sampler)
    evaluation = DataLoader(test, parts.batch())
    net = DistributedDataParallel(parts.net())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    parts.train(net, optimizer, loader, sampler)
    return evaluation


if __name__ == "__main__":
    main()
