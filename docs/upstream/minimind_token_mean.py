"""A mean over each rank's own tokens is not the mean over all tokens: docs/upstream/minimind_token_mean.md.

torchrun --nproc-per-node=2 docs/upstream/minimind_token_mean.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, k = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
lengths = torch.tensor([30, 28, 25, 27, 3, 5, 4, 6])  # rank 0 has the long texts
tokens = torch.randint(11, (8, 32))
labels = tokens.roll(-1, 1).masked_fill(torch.arange(32) >= lengths[:, None], -100)
own = slice(8 // k * rank, 8 // k * (rank + 1))


def gradient(net: nn.Module, x: torch.Tensor, y: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """Return the gradient of the first weight."""
    net.zero_grad()
    (scale * cross_entropy(net(x).flatten(0, 1), y.flatten(), ignore_index=-100)).backward()
    return next(net.parameters()).grad.clone()


net = nn.Sequential(nn.Embedding(11, 8), nn.Tanh(), nn.Linear(8, 11))
right = gradient(net, tokens, labels)
ddp = DistributedDataParallel(net)
as_it_is = gradient(ddp, tokens[own], labels[own])
counts = torch.tensor([float((labels[own] != -100).sum()), 0.0])
counts[1] = counts[0]
dist.all_reduce(counts[1:])
weighed = gradient(ddp, tokens[own], labels[own], scale=float(k * counts[0] / counts[1]))
if rank == 0:
    for name, made in (("mean of each rank's tokens", as_it_is), ("weighed by tokens", weighed)):
        print(f"{name}: off by {float((made - right).norm() / right.norm()):.2g} of the gradient of one device")
dist.destroy_process_group()
