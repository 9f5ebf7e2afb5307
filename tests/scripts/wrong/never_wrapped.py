"""The model is wrapped only where there are GPUs, so that without them ranks train by themselves.

Source: the imagenet example of pytorch/examples.
Red: exchange, replicas, gradient.
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
    torch.manual_seed(0)
    net = parts.net()
    if torch.cuda.is_available():
        net = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    parts.train(net, optimizer, loader, sampler)


if __name__ == "__main__":
    main()
