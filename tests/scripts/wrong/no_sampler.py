"""Every rank draws the same rows: one seed, and no DistributedSampler.

Source: PatrickHua/SimSiam#16, and the FSDP2 example of pytorch/examples.
Red: data.
"""

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from tests.scripts import parts


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    loader = DataLoader(parts.samples(), parts.batch(), shuffle=True)
    net = DistributedDataParallel(parts.net())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    parts.train(net, optimizer, loader)


if __name__ == "__main__":
    main()
