"""The documents' eight runs on a CPU, trained completely, next to what the documents print.

    python -m docs.evidence.grid      # two minutes on two cores

Everything is smaller by a factor, so that the comparison can be made at all: scikit-learn's 1,437 digits instead of
60,000 images, minibatches a sixteenth of the book's (90 or 45 steps an epoch; the book has 235 or 118), ResNets of an
eighth of the book's channels. LeNet is the book's own, and so are learning rates, epochs, starts and the order of what
changes from run to run. A device is one core. Every run begins with a fresh net from its seed.

Whether two devices are faster, and what twice the batch does to accuracy, can be compared with the book; seconds and
accuracies cannot.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import nn

from docs.evidence.log import markdown
from reference.book import BookRun, train
from reference.models.resnet import gluon_resnet18, resnet18
from suite.plan.workloads import BUILT_IN, Workload

SCALE = 16
WIDTH = 8  # of 64
RUNS = (
    "book-lenet-256",
    "book-lenet-512",
    "book-resnet18-256",
    "book-resnet18-512",
    "book-gluon-256",
    "book-gluon-512",
)
TRAINERS = {"lenet": "scratch", "resnet18": "data_parallel", "gluon-resnet18": "gluon"}
NARROW = {"resnet18": "narrow_resnet18", "gluon-resnet18": "narrow_gluon_resnet18"}


def narrow_resnet18() -> nn.Sequential:
    """Return the book's ResNet-18 with an eighth of its channels: 176,634 parameters."""
    return resnet18(width=WIDTH)


def narrow_gluon_resnet18() -> nn.Sequential:
    """Return the Gluon chapter's network with an eighth of its channels: 44,396 parameters."""
    return gluon_resnet18(width=WIDTH)


def runs() -> Iterator[tuple[Workload, int]]:
    """Yield what the documents run: a workload and on how many devices, which is where they print a figure."""
    for name in RUNS:
        for world_size in BUILT_IN[name].published:
            yield BUILT_IN[name], world_size


def train_narrow(workload: Workload, world_size: int, seed: int, **more: object) -> BookRun:
    """Train one of them at a sixteenth of its batch."""
    narrow = NARROW.get(workload.model)
    arguments: dict[str, object] = {
        "net": f"{__spec__.name}:{narrow}" if narrow else workload.model,
        "trainer": TRAINERS[workload.model],
        "num_epochs": workload.epochs,
        "dataset": "digits",
        # The concise chapter's residual blocks are still lazy when it draws N(0, .01), and keep torch's own start.
        "init": "default" if workload.model == "resnet18" else workload.init,
        "seed": seed,
        "report": partial(print, file=sys.stderr, flush=True),
    }
    return train(world_size, workload.batch // SCALE, workload.lr, **{**arguments, **more})  # type: ignore[arg-type]


def table(found: Sequence[tuple[Workload, int, BookRun]]) -> str:
    """The book's figures and ours, run by run, and what became of each epoch."""
    last, every = list[tuple[object, ...]](), list[tuple[str, str, str]]()
    for workload, world_size, run in found:
        book = workload.published[world_size]
        net = f"narrow {workload.model}" if workload.model in NARROW else "LeNet"
        row = (f"{TRAINERS[workload.model]}, {world_size}", f"{workload.batch}, {workload.lr:g}", book.sec_per_epoch)
        ours = (net, workload.batch // SCALE, f"{run.sec_per_epoch:.2f}", f"{run.accuracies[-1]:.3f}")
        last.append((*row, book.accuracy or "-", *ours))
        curve, seconds = (" ".join(f"{value:.2f}" for value in values) for values in (run.accuracies, run.epoch_s))
        every.append((f"{workload.name}, {world_size}", curve, seconds))
    head = ("trainer, devices", "the book's batch, rate", "the book: sec/epoch", "accuracy", "ours: net", "batch")
    epochs = ("run", "accuracy after each epoch", "seconds of each epoch")
    return markdown((*head, "sec/epoch", "accuracy"), last) + "\n\n" + markdown(epochs, every)


def main(argv: Sequence[str] | None = None) -> None:
    """Train all runs and print the tables; what is trained at the moment is said on stderr."""
    parser = argparse.ArgumentParser(prog="python -m docs.evidence.grid", description="The documents' runs on a CPU.")
    parser.add_argument("--seed", type=int, default=0, help="of weights and order (default: 0)")
    seed = parser.parse_args(argv).seed
    torch.set_num_threads(1)  # a device is one core, also where there is only one
    found = []
    for workload, world_size in runs():
        print(f"{workload.name} on {world_size} device(s)", file=sys.stderr)
        devices = [torch.device("cpu")] * world_size
        found.append((workload, world_size, train_narrow(workload, world_size, seed, devices=devices)))
    print(
        f"Seed {seed}: CPU devices of one core, batches a {SCALE}th of the book's, ResNets of {WIDTH} channels for its "
        "64. The seconds after the first epoch count.\n"
    )
    print(table(found))


if __name__ == "__main__":
    main()
