"""torch.compile over DistributedDataParallel, and an evaluation of the module inside."""

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from tests.scripts import parts


def main():
    dist.init_process_group("gloo")
    data = parts.samples(4 * parts.batch())
    sampler = DistributedSampler(data)
    loader = DataLoader(data, parts.batch(), sampler=sampler)
    net = torch.compile(DistributedDataParallel(parts.net()))
    optimizer = torch.optim.AdamW(net.parameters())
    for epoch in range(100):
        parts.train(net, optimizer, loader, sampler, epochs=1, first=epoch)
        net.eval()
        with torch.no_grad():
            net(data.tensors[0][:4])


if __name__ == "__main__":
    main()
