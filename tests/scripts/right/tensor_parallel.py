"""Two layers that are split over the ranks by columns and by rows, of which each is given the same rows."""

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader

from tests.scripts import parts


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    net = nn.Sequential(nn.Linear(parts.FEATURES, 12), nn.Tanh(), nn.Linear(12, parts.CLASSES))
    parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    loader = DataLoader(parts.samples(), parts.batch(), shuffle=True, generator=torch.Generator().manual_seed(1))
    parts.train(net, torch.optim.AdamW(net.parameters()), loader)


if __name__ == "__main__":
    main()
