"""The book's entry point: train on k devices, measure seconds per epoch and accuracy, print the closing line.

Two things differ from the notebook, because they distort its figures: every device is synchronised before a clock is
read, and the first epoch, which includes the warm-up, is reported apart. For one-process trainers, as in the book.

    python -m reference.book --num-gpus 2 --batch-size 256 --lr .2 --epochs 1
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import cast

import torch

from reference.closing_line import closing_line, sec_per_epoch
from reference.data import DATASETS, LOADERS, feed, load
from reference.evaluate import accuracy
from reference.load import load_named
from reference.loss import mean_loss
from reference.models import MODELS
from reference.models.init import INITS, build
from reference.per_device import synchronize
from reference.trainers import TRAINERS
from reference.trainers.protocol import Trainer


@dataclass(frozen=True)
class BookRun:
    """The measurements of one run."""

    accuracies: tuple[float, ...]
    """Test accuracy after each epoch, 0 to 1."""
    epoch_s: tuple[float, ...]
    """Seconds of each epoch's training, the first one included."""
    devices: tuple[str, ...]
    """The devices' names, as in "cuda:0"."""
    losses: tuple[float, ...] = ()
    """Mean training loss of each epoch; empty where the trainer's step returns none."""

    @property
    def sec_per_epoch(self) -> float:
        """Mean over the epochs after the first, or the only epoch's seconds."""
        return sec_per_epoch(self.epoch_s)

    @property
    def closing_line(self) -> str:
        """The line that the run ends with."""
        last_loss = self.losses[-1] if self.losses else None
        return closing_line(self.accuracies[-1], self.sec_per_epoch, self.devices, last_loss)


def train(
    num_gpus: int,
    batch_size: int,
    lr: float,
    *,
    net: str = "lenet",
    trainer: str = "scratch",
    num_epochs: int = 10,
    dataset: str = "auto",
    data_root: Path = Path("data"),
    devices: Sequence[torch.device] | None = None,
    max_steps: int | None = None,
    loader: str = "resident",
    init: str = "normal",
    seed: int = 0,
    report: Callable[[str], None] = print,
) -> BookRun:
    """Train a new network and report on it.

    Args:
        num_gpus: number of devices.
        batch_size: samples per step over all devices.
        lr: learning rate.
        net: a name in `MODELS`, or the user's ``module:factory``.
        trainer: a one-process name in `TRAINERS`, or the user's ``module:Class``.
        num_epochs: at least 1.
        dataset: a name in `DATASETS`, or the user's ``module:function``.
        data_root: folder of the data files.
        devices: by default the first CUDA devices, or as many CPU devices where there is no CUDA.
        max_steps: steps after which each epoch ends.
        loader: a name in `LOADERS`.
        init: a name in `INITS`; the book draws from N(0, 0.01).
        seed: decides the weights and the order of the samples.
        report: called with each line: one per epoch, then the warm-up's and the closing line.

    Raises:
        ValueError: an unknown name, a number below 1, more devices than there are, or a trainer for several processes.
    """
    for name, value in (("num_gpus", num_gpus), ("num_epochs", num_epochs), ("max_steps", max_steps)):
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}: it must be at least 1")
    devices = _devices(num_gpus, report) if devices is None else devices
    if len(devices) != num_gpus:
        raise ValueError(f"devices names {len(devices)} devices, but num_gpus is {num_gpus}: make them agree")
    trainer_class = cast(type[Trainer], load_named(trainer, TRAINERS, "trainer"))
    if trainer_class.processes != "one":
        raise ValueError(
            f"trainer {trainer!r} needs a process for each device and this function is a single one: "
            "use scratch or data_parallel here, or run it with pytest -m scaling"
        )
    data = load(dataset, data_root).to(devices[0])
    trained = trainer_class(build(net, init, seed), devices, lr=lr)
    accuracies: list[float] = []
    epoch_s: list[float] = []
    epoch_losses: list[float] = []
    try:
        for epoch in range(num_epochs):
            synchronize(devices)
            start = time.perf_counter()
            batches = feed(data, loader, batch_size, device=devices[0], seed=seed, epoch=epoch)
            steps = [(trained.step(X, y, len(X)), len(X)) for X, y in islice(batches, max_steps)]
            synchronize(devices)
            epoch_s.append(time.perf_counter() - start)
            accuracies.append(accuracy(trained.replicas, devices, data.test_X, data.test_y))
            loss = mean_loss(steps, sum(size for _, size in steps))
            epoch_losses += [] if loss is None else [loss]
            shown = "" if loss is None else f", loss {loss:.4f}"
            report(f"epoch {epoch + 1}: {epoch_s[-1]:.1f} sec{shown}, test acc {accuracies[-1]:.4f}")
    finally:
        getattr(trained, "close", lambda: None)()
    run = BookRun(tuple(accuracies), tuple(epoch_s), tuple(map(str, devices)), tuple(epoch_losses))
    if num_epochs > 1:
        report(f"first epoch, with warm-up: {epoch_s[0]:.1f} sec, not in the mean")
    report(run.closing_line)
    return run


def _devices(count: int, report: Callable[[str], None]) -> list[torch.device]:
    if not torch.cuda.is_available():
        report(f"CUDA shows no device: training on {count} CPU device(s) instead")
        return [torch.device("cpu")] * count
    if count > torch.cuda.device_count():
        raise ValueError(f"num_gpus is {count}, but CUDA shows {torch.cuda.device_count()}: ask for at most as many")
    return [torch.device("cuda", index) for index in range(count)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run `train` from the command line and return the exit status: 0, or 1 with one line on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m reference.book", description="Train as the book does, on k devices."
    )
    parser.add_argument(
        "--num-gpus", type=int, default=1, help="devices; CPU threads where there is no CUDA (default: 1)"
    )
    parser.add_argument("--batch-size", type=int, default=256, help="samples per step over all devices (default: 256)")
    parser.add_argument("--lr", type=float, default=0.2, help="learning rate (default: 0.2)")
    parser.add_argument("--epochs", type=int, default=10, dest="num_epochs", help="default: 10")
    parser.add_argument("--net", default="lenet", help=f"{', '.join(MODELS)}, or your module:factory")
    parser.add_argument("--trainer", default="scratch", help=f"{', '.join(TRAINERS)}, or your module:Class")
    parser.add_argument("--dataset", default="auto", help=f"{', '.join(DATASETS)}, or your module:function")
    parser.add_argument("--data-root", type=Path, default=Path("data"), help="folder of the data files (default: data)")
    parser.add_argument("--max-steps", type=int, help="steps after which each epoch ends")
    parser.add_argument("--loader", default="resident", choices=LOADERS, help="default: resident")
    parser.add_argument("--init", default="normal", choices=INITS, help="default: normal, as in the book")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    # The notebook has both names: its function takes num_gpus and is called with nums_gpus.
    parser.add_argument("--nums-gpus", help=argparse.SUPPRESS)
    arguments = vars(parser.parse_args(argv))
    if arguments.pop("nums_gpus") is not None:
        parser.error("--nums-gpus is not an option: the number of devices is --num-gpus")
    try:
        train(**arguments)
    except (ImportError, OSError, TypeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
