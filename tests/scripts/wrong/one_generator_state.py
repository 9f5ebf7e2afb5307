"""Every rank resumes with the generator's state of rank 0, so that the noise of a denoising model is one for all.

Source: TensorAuto/OpenTau#180, radixark/miles#3187.
Red: random.
"""

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from tests.scripts import parts


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(parts.FEATURES, parts.FEATURES)

    def forward(self, X):
        noise = torch.randn_like(X)
        return nn.functional.mse_loss(self.inner(X + noise), noise)


def main():
    dist.init_process_group("gloo")
    data = parts.samples()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, parts.batch(), sampler=sampler)
    net = DistributedDataParallel(Denoiser())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    snapshot = torch.get_rng_state()  # which rank 0 saves
    dist.broadcast(snapshot, 0)
    for epoch in range(100):
        sampler.set_epoch(epoch)
        batches = iter(loader)
        if epoch == 0:
            torch.set_rng_state(snapshot)
        for X, _ in batches:
            optimizer.zero_grad()
            net(X).backward()
            optimizer.step()


if __name__ == "__main__":
    main()
