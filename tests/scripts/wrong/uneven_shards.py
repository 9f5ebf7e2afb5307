"""Ranks have unequal shares of the rows, so that their last minibatches are unequal, and the mean of their means is
taken.

Source: huggingface/transformers#608, pytorch/pytorch#67253.
Red: gradient.
"""

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset

from tests.scripts import parts


def main():
    dist.init_process_group("gloo")
    k = dist.get_world_size()
    data = parts.samples(3 * parts.batch() * k - 5 * (k - 1))
    own = Subset(data, range(dist.get_rank(), len(data), k))
    loader = DataLoader(own, parts.batch())
    net = DistributedDataParallel(parts.net())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    parts.train(net, optimizer, loader)


if __name__ == "__main__":
    main()
