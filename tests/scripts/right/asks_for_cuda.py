"""CUDA and NCCL, as most scripts ask for them; without a GPU the suite shows it the CPU as one."""

import os

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from tests.scripts import parts


def main():
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    device = torch.device("cuda", local)
    dist.init_process_group("nccl", device_id=device)
    torch.cuda.manual_seed_all(1)
    data = parts.samples()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, parts.batch(), sampler=sampler, pin_memory=torch.cuda.is_available())
    net = DistributedDataParallel(parts.net().to(local), device_ids=[local], output_device=local)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cuda")
    weights = torch.ones(parts.CLASSES, device="cuda")
    for epoch in range(100):
        sampler.set_epoch(epoch)
        for X, y in loader:
            X, y = X.to(device, non_blocking=True), y.cuda(local, non_blocking=True)
            with torch.autocast("cuda", dtype=torch.float16):
                output = net(X)
                loss = nn.functional.cross_entropy(output, y, weight=weights.to(output))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            torch.cuda.synchronize()


if __name__ == "__main__":
    main()
