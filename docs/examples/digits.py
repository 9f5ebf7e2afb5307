"""Train a small convolutional net on scikit-learn's digits: `torchrun --nproc-per-node 2 docs/examples/digits.py`."""

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=32, help="of a rank")
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--out_dir", type=Path, default=Path("digits"))
    return parser.parse_args()


def load():
    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    images = images.float().reshape(-1, 1, 8, 8) / 16
    return TensorDataset(images[:1500], labels[:1500]), TensorDataset(images[1500:], labels[1500:])


def make():
    return nn.Sequential(
        nn.Conv2d(1, 64, 3, padding=1), nn.ReLU(),
        nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(128, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(512, 10),
    )  # fmt: skip


@torch.no_grad()
def accuracy(net, held_out):
    net.eval()
    right = sum((net(X).argmax(dim=1) == y).sum().item() for X, y in DataLoader(held_out, 297))
    net.train()
    return right / len(held_out)


def main():
    options = parse()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train, held_out = load()
    sampler = DistributedSampler(train)
    loader = DataLoader(train, options.batch_size, sampler=sampler)
    net = DistributedDataParallel(make())
    torch.manual_seed(1 + dist.get_rank())  # each rank's own dropout
    optimizer = torch.optim.SGD(net.parameters(), lr=options.rate, momentum=0.9)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for X, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(X), y).backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {accuracy(net.module, held_out):.1%} of the held-out digits", flush=True)
            options.out_dir.mkdir(parents=True, exist_ok=True)
            torch.save(net.module.state_dict(), options.out_dir / "net.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
