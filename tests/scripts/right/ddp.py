"""A small classifier under DistributedDataParallel, with a DistributedSampler and a schedule."""

import argparse

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--out_dir", default=None)
    return parser.parse_args()


def main():
    options = parse()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    X = torch.randn(options.samples, 64)
    y = (X.sum(dim=1) > 0).long()
    data = TensorDataset(X, y)
    sampler = DistributedSampler(data, shuffle=True, seed=1)
    loader = DataLoader(data, options.batch_size, sampler=sampler, num_workers=options.workers)
    net = nn.Sequential(
        nn.Linear(64, options.width),
        nn.ReLU(),
        nn.Linear(options.width, options.width),
        nn.ReLU(),
        nn.Linear(options.width, 2),
    )
    net = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        net.train()
        for X, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(X), y).backward()
            optimizer.step()
            schedule.step()
        if dist.get_rank() == 0:
            print("epoch", epoch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
