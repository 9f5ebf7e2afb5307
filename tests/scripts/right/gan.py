"""A GAN: two modules with an optimizer each, which step in turn."""

from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from tests.scripts import parts


def main():
    dist.init_process_group("gloo")
    data = parts.samples()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, parts.batch(), sampler=sampler)
    generator = DistributedDataParallel(nn.Linear(parts.FEATURES, parts.FEATURES))
    parts.train_gan(generator, DistributedDataParallel(parts.net()), loader, sampler)


if __name__ == "__main__":
    main()
