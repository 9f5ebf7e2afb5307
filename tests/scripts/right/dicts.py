"""Minibatches are dicts, and the model takes keyword arguments and returns its loss."""

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from tests.scripts import parts


class Rows(Dataset):
    def __init__(self):
        self.data = parts.samples()

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        X, y = self.data[index]
        return {"features": X, "labels": y, "name": f"row {index}"}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = parts.net()

    def forward(self, features, labels=None):
        return {"loss": nn.functional.cross_entropy(self.inner(features), labels)}


def main():
    dist.init_process_group("gloo")
    data = Rows()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, parts.batch(), sampler=sampler)
    net = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(100):
        sampler.set_epoch(epoch)
        for batch in loader:
            names = batch.pop("name")
            assert len(names) == len(batch["labels"])
            optimizer.zero_grad()
            net(**batch)["loss"].backward()
            optimizer.step()


if __name__ == "__main__":
    main()
