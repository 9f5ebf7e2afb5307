"""The schedule advances once for each process in every update.

Source: huggingface/accelerate#2926, Lightricks/LTX-Video-Trainer#67.
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
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / 100)

    def advance():
        for _ in range(dist.get_world_size()):
            warm_up.step()

    parts.train(net, optimizer, loader, sampler, after=advance)


if __name__ == "__main__":
    main()
