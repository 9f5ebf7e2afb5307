"""Each rank holds out another fold, and so evaluates on rows that the others train on.

Source: Lightning-AI/pytorch-lightning#2940, huggingface/accelerate#2393.
Red: data.
"""

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset

from tests.scripts import parts


def main():
    dist.init_process_group("gloo")
    data, rank, k = parts.samples(), dist.get_rank(), dist.get_world_size()
    own, fold = range(rank, len(data), k), range(rank, len(data), 5)
    loader = DataLoader(Subset(data, [row for row in own if row not in fold]), parts.batch(), shuffle=True)
    evaluation = DataLoader(Subset(data, fold), parts.batch())
    net = DistributedDataParallel(parts.net())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    parts.train(net, optimizer, loader)
    return evaluation


if __name__ == "__main__":
    main()
