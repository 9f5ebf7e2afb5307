"""Each rank shuffles the list of rows by a seed of its own, and takes every k-th of it.

Source: sandyresearch/parcae#10, QwenLM/Qwen3-VL#1947.
Red: data.
"""

import random

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset

from tests.scripts import parts


def main():
    dist.init_process_group("gloo")
    data = parts.samples()
    rows = list(range(len(data)))
    random.Random(3 + dist.get_rank()).shuffle(rows)
    own = Subset(data, rows[dist.get_rank() :: dist.get_world_size()])
    loader = DataLoader(own, parts.batch(), shuffle=True)
    net = DistributedDataParallel(parts.net())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    parts.train(net, optimizer, loader)


if __name__ == "__main__":
    main()
