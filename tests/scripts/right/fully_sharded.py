"""FSDP2 in bfloat16, each block and the whole."""

import torch
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader, DistributedSampler

from tests.scripts import parts


def main():
    dist.init_process_group("gloo")
    data = parts.samples()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, parts.batch(), sampler=sampler)
    torch.manual_seed(0)
    net = parts.net()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(net[0], mesh=mesh, mp_policy=policy)
    fully_shard(net, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(net.parameters())
    parts.train(net, optimizer, loader, sampler)


if __name__ == "__main__":
    main()
