"""What the scripts under test are made of: data that all ranks have alike, small nets, and the plain loop."""

from __future__ import annotations

import argparse

import torch
from torch import distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

FEATURES, CLASSES, TOKENS = 8, 3, 11


def batch():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=8)
    return parser.parse_args().batch_size


def samples(n=256, seed=0):
    """Return n rows of features, float32 (n, 8), and classes, int64 (n,)."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(n, FEATURES, generator=generator)
    return TensorDataset(X, torch.randint(CLASSES, (n,), generator=generator))


def texts(n=256, length=6):
    """Return n texts of several lengths, int64 (n, length), and labels, of which -100 does not count."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(TOKENS, (n, length), generator=generator)
    lengths = torch.randint(1, length + 1, (n, 1), generator=generator)
    return TensorDataset(tokens, tokens.roll(-1, 1).masked_fill(torch.arange(length) >= lengths, -100))


def net(dropout=0.0):
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, CLASSES))


def writer():
    return nn.Sequential(nn.Embedding(TOKENS, 8), nn.Tanh(), nn.Linear(8, TOKENS))


def average(net):
    """Average the gradients over all ranks."""
    for parameter in net.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def train(net, optimizer, loader, sampler=None, epochs=100, first=0, after=lambda: None):
    for epoch in range(first, first + epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        net.train()
        for X, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(X), y).backward()
            optimizer.step()
            after()


def train_gan(generator, discriminator, loader, sampler, epochs=100):
    """Let a generator make rows of which the discriminator finds that they are not of its first class."""
    for_generator, for_discriminator = (torch.optim.Adam(net.parameters()) for net in (generator, discriminator))
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for X, _ in loader:
            real, fake = torch.zeros(len(X), dtype=torch.int64), torch.ones(len(X), dtype=torch.int64)
            made = generator(X.flip(1))
            for_discriminator.zero_grad()
            found = discriminator(torch.cat([X, made.detach()]))
            nn.functional.cross_entropy(found, torch.cat([real, fake])).backward()
            for_discriminator.step()
            for_generator.zero_grad()
            nn.functional.cross_entropy(discriminator(made), real).backward()
            for_generator.step()
