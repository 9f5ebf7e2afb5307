"""A GAN trains its discriminator without the wrapper, so that each rank has one of its own.

Source: KevinMIN95/StyleSpeech#23, intel/e2eAIOK#198.
Red: replicas, gradient.
"""

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
    discriminator = DistributedDataParallel(parts.net())
    parts.train_gan(generator, discriminator.module, loader, sampler)


if __name__ == "__main__":
    main()
