"""An optimizer for each parameter, which steps in the backward as soon as the gradient is there."""

import torch
from torch import distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from tests.scripts import parts


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = parts.samples()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, parts.batch(), sampler=sampler)
    net = parts.net()
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1, momentum=0.9) for parameter in net.parameters()}

    def step(parameter):
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for epoch in range(100):
        sampler.set_epoch(epoch)
        for X, y in loader:
            nn.functional.cross_entropy(net(X), y).backward()


if __name__ == "__main__":
    main()
