"""HSDP: FSDP2 over a mesh of two dimensions, which shards within a group of ranks and replicates over the groups."""

import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import SGD


class HSDPTrainer:
    processes = "per-device"
    shares_gpus = False

    def __init__(self, model, devices, *, lr):
        size = dist.get_world_size()
        replicas = 2 if size % 2 == 0 else 1
        mesh = init_device_mesh(devices[0].type, (replicas, size // replicas), mesh_dim_names=("replicate", "shard"))
        self.net = model.to(devices[0])
        for tensor in (*self.net.parameters(), *self.net.buffers()):
            dist.broadcast(tensor.detach(), src=0)
        fully_shard(self.net, mesh=mesh)
        self.net.set_gradient_divide_factor(1.0)  # the sum over ranks: the loss has the global divisor
        self.net.set_force_sum_reduction_for_comms(True)  # gloo has no other
        self.optimizer = SGD(self.net.parameters(), lr)

    def step(self, X, y, global_batch_size):
        loss = F.cross_entropy(self.net(X), y, reduction="sum") / global_batch_size
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    @property
    def replicas(self):
        return [self.net]
