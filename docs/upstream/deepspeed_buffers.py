"""deepspeed.initialize leaves each rank its own buffers: docs/upstream/deepspeed_buffers.md.

torchrun --nproc-per-node=2 docs/upstream/deepspeed_buffers.py
"""

import deepspeed
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

deepspeed.init_distributed(dist_backend="gloo")
rank = dist.get_rank()


def model() -> nn.Module:
    """Return a net whose parameter and buffer differ from rank to rank, as from generators that are not seeded."""
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, 1.0 + rank)
    net.register_buffer("scale", torch.tensor(1.0 + rank))
    return net


def show(name: str, net: nn.Module) -> None:
    """Print what every rank has."""
    values = [torch.empty(2) for _ in range(dist.get_world_size())]
    dist.all_gather(values, torch.stack([net.weight.detach().flatten()[0], net.scale]))
    if rank == 0:
        print(f"{name}: (weight, buffer) by rank: {[tuple(value.tolist()) for value in values]}")


config = {"train_micro_batch_size_per_gpu": 1}
net = model()
engine, *_ = deepspeed.initialize(model=net, optimizer=torch.optim.SGD(net.parameters(), 0.1), config=config)
show("DistributedDataParallel", DistributedDataParallel(model()).module)
show(f"DeepSpeed {deepspeed.__version__}", engine.module)
dist.destroy_process_group()
