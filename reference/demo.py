"""PyTorch's data parallelism tutorial on any machine: what the model sees, and what its caller sees.

A hundred random samples of 5 features pass in minibatches of 30, 30, 30 and 10 through one linear layer. On several
devices every replica sees its shard, while the caller sees the whole minibatch.

    python -m reference.demo                        1, 2, 3 and 8 devices: GPUs where there are enough, else CPU
    python -m reference.demo --devices cpu:3        one table
    python -m reference.demo --shuffle              samples in random order, as in the tutorial's loader

Note that ``tensor.to(device)`` returns a copy, which has to be assigned or passed on, and leaves the tensor itself
where it was. ``module.to(device)`` moves the module.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from reference.models.toy import Toy
from reference.trainers.data_parallel import data_parallel

WORLD_SIZES = (1, 2, 3, 8)
"""The numbers of devices whose tables the tutorial shows."""


class RandomDataset(Dataset[Tensor]):
    """``length`` samples of ``size`` standard normal features, drawn from a seed."""

    def __init__(self, size: int, length: int, seed: int = 0) -> None:
        self.data = torch.randn(length, size, generator=torch.Generator().manual_seed(seed))

    def __getitem__(self, index: int) -> Tensor:
        return self.data[index]

    def __len__(self) -> int:
        return len(self.data)


class Announced(nn.Module):
    """The toy network, which records the sizes of its inputs and outputs.

    Replicas run in threads, so their printed lines would be in random order. Instead they append to ``inside``, a list
    that they share. Each entry begins with the number of the shard's first row, by which the caller sorts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.net = Toy()
        self.inside: list[tuple[int, str]] = []

    def forward(self, X: Tensor, rows: Tensor) -> Tensor:
        """Map X (n, 5), a minibatch or a shard of it, to (n, 2); `rows` (n,) are the samples' numbers in it."""
        output: Tensor = self.net(X)
        self.inside.append((int(rows[0]), f"\tIn Model: input size {X.size()} output size {output.size()}"))
        return output


def demonstrate(
    devices: Sequence[torch.device], report: Callable[[str], None] = print, *, shuffle: bool = False
) -> None:
    """Run the tutorial on these devices and report its table: for each minibatch, its shards in order, then the whole.

    The devices are all CUDA or all CPU; a CPU device may be listed several times. With `shuffle` the samples' order is
    drawn from torch's generator.
    """
    model = Announced()
    net = data_parallel(model, devices)
    if len(devices) > 1:
        report(f"Let's use {_name(devices)}!")
    try:
        for X in DataLoader(RandomDataset(5, 100), batch_size=30, shuffle=shuffle):
            X = X.to(devices[0])  # a copy: X.to(...) alone would leave X where it was
            output = net(X, torch.arange(len(X), device=devices[0]))
            for _, line in sorted(model.inside):
                report(line)
            model.inside.clear()
            report(f"Outside: input size {X.size()} output_size {output.size()}")
    finally:
        getattr(net, "close", lambda: None)()


def parse_devices(setting: str) -> list[torch.device]:
    """Return the N devices that ``cpu:N`` or ``cuda:N`` names; for ``cpu``, N times the CPU.

    Raises:
        ValueError: the setting has another form, or CUDA shows fewer devices.
    """
    match = re.fullmatch(r"(cpu|cuda):([1-9]\d*)", setting)
    if match is None:
        raise ValueError(f"devices {setting!r}: expected cpu:N or cuda:N with N >= 1")
    kind, count = match[1], int(match[2])
    if kind == "cpu":
        return [torch.device("cpu")] * count
    if count > torch.cuda.device_count():
        raise ValueError(
            f"devices {setting!r}: CUDA shows {torch.cuda.device_count()}; ask for at most as many, or for cpu:{count}"
        )
    return [torch.device("cuda", index) for index in range(count)]


def _name(devices: Sequence[torch.device]) -> str:
    kind = "GPU" if devices[0].type == "cuda" else "virtual CPU device"
    return f"{len(devices)} {kind}{'s' if len(devices) > 1 else ''}"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables and return the exit status: 0, or 1 with one line on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m reference.demo", description="Print the tables of PyTorch's data parallelism tutorial."
    )
    parser.add_argument(
        "--devices",
        metavar="cpu:N|cuda:N",
        help=f"one table on N devices (default: tables for {', '.join(map(str, WORLD_SIZES))}, on GPUs where there are "
        "enough, otherwise on virtual CPU devices)",
    )
    parser.add_argument("--shuffle", action="store_true", help="put the samples in random order")
    arguments = parser.parse_args(argv)
    setting: str | None = arguments.devices
    available = torch.cuda.device_count()
    settings = [setting] if setting else [f"{'cuda' if k <= available else 'cpu'}:{k}" for k in WORLD_SIZES]
    try:
        tables = [parse_devices(each) for each in settings]
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for number, devices in enumerate(tables):
        if number:
            print()
        print(f"# on {_name(devices)}")
        demonstrate(devices, shuffle=arguments.shuffle)
    return 0


if __name__ == "__main__":
    sys.exit(main())
