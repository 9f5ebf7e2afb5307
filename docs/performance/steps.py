"""A step of the reference, timed beside the book's and beside bare loops of the libraries: two tables.

    python -m docs.performance.steps                          # LeNet, five minutes on two idle cores
    python -m docs.performance.steps --net resnet18 --batch 16 --windows 8

The reference runs as in a workload in channels_last, the book's loop as it is printed. In a session a new process, or a
new one for each device, times all loops in turns. Devices are CPU devices of one core and one thread; the minibatch
stays in memory. Intervals are 95 % t-intervals over sessions. The libraries are those of `tox -e adapters`.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from docs.evidence.log import markdown
from reference.load import load_named
from reference.models.init import build
from reference.trainers import TRAINERS
from suite.processes.jobs import ModelSpec
from suite.rank.arm import make_trainer
from suite.room import quiet
from suite.verdict.metrics import Interval, faster_half, from_logs

TITLE = "A step of the reference"
CPU = torch.device("cpu")
RANKS = 2
LR, HUGE_LR = 0.01, 1e3  # with the second one, the rounding of the weights is nothing beside their update
WINDOW_S = 0.1

BOOK, BOOK_ON_TWO = "the book's loop", "the book's loop over two devices"
BARE_DDP, BARE_FSDP = "bare DistributedDataParallel", "bare FSDP2"
LIBRARIES = {  # the module that each needs, and its adapter
    "Lightning": ("lightning", "docs/adapters/with_lightning.py:LightningTrainer"),
    "Accelerate": ("accelerate", "docs/adapters/with_accelerate.py:AccelerateTrainer"),
    "Fabric": ("lightning", "docs/adapters/with_fabric.py:FabricTrainer"),
}

Make = Callable[[nn.Module, float], Any]  # of a net and a learning rate, a trainer


@dataclass(frozen=True)
class Loop:
    """One thing that is timed, and what it is compared with.

    Attributes:
        name: in the table.
        base: the loop that it is held against; its own name where it is a base.
        make: of a net and a learning rate, a trainer.
    """

    name: str
    base: str
    make: Make


@dataclass(frozen=True)
class Steps:
    """What was measured.

    Attributes:
        markdown: both tables.
        ratios: by loop, its base's time over its own.
        errors: by loop of one process, the error of its float32 gradient over that of the book's loop.
    """

    markdown: str
    ratios: dict[str, Interval]
    errors: dict[str, Interval]


@dataclass(frozen=True)
class Setting:
    """What every loop trains.

    Attributes:
        net: a name in `reference.models.MODELS`, of a net for images (1, 28, 28).
        batch: samples of a step over all devices, a multiple of their number.
        windows: of each loop in a session, of 0.1 s or one step.
    """

    net: str
    batch: int
    windows: int


class Book:
    """The book's loop: shards one after another, an exchange by parameter, gradients set to zero."""

    def __init__(self, model: nn.Module, devices: int, lr: float) -> None:
        self.replicas, self.lr = [copy.deepcopy(model) for _ in range(devices)], lr

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> None:
        """Update all replicas with the gradient of the whole minibatch."""
        k = len(self.replicas)
        shards = zip(self.replicas, X.chunk(k), y.chunk(k), strict=True)
        losses = [F.cross_entropy(net(X_shard), y_shard, reduction="none").sum() for net, X_shard, y_shard in shards]
        for loss in losses:
            torch.autograd.backward(loss)
        params = [list(net.parameters()) for net in self.replicas]
        with torch.no_grad():
            for copies in zip(*params, strict=True):
                first, *others = (param.grad for param in copies if param.grad is not None)
                for other in others:
                    first += other
                for other in others:
                    other.copy_(first)
            for param in (param for of_device in params for param in of_device):
                if param.grad is not None:
                    param.sub_(self.lr * param.grad / global_batch_size)
                    param.grad.zero_()


class Bare:
    """The loop of torch's tutorials: the mean loss of equal shards, whose mean over ranks the wrapper takes."""

    def __init__(self, net: nn.Module, lr: float) -> None:
        self.net, self.optimizer = net, SGD(net.parameters(), lr)

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> None:
        """Take part in one update with this rank's shard."""
        loss = F.cross_entropy(self.net(X), y)
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()


def bare_ddp(model: nn.Module, lr: float) -> Bare:
    """Return a loop around DistributedDataParallel."""
    return Bare(DistributedDataParallel(copy.deepcopy(model).to(memory_format=torch.channels_last)), lr)


def bare_fsdp(model: nn.Module, lr: float) -> Bare:
    """Return a loop around FSDP2 with a unit for each child, as in torch's tutorial; its weights must be contiguous."""
    net = copy.deepcopy(model)
    for child in net.children():
        if any(True for _ in child.parameters()):
            fully_shard(child)
    fully_shard(net)
    return Bare(net, lr)


def trainer(name: str, devices: int = 1, memory_format: str = "channels_last", *, compiled: bool = False) -> Make:
    """Return what makes a trainer as a worker does: a name in the table, or the file and class of an adapter."""
    spec = ModelSpec(model="", loader="resident", precision="float32", memory_format=memory_format, compile=compiled)

    def make(model: nn.Module, lr: float) -> Any:
        made: Any = load_named(name, TRAINERS, "trainer")
        return make_trainer(made, copy.deepcopy(model), [CPU] * devices, lr, spec)

    return make


ONE_PROCESS = (
    Loop(BOOK, BOOK, lambda model, lr: Book(model, 1, lr)),
    Loop("`single`, contiguous", BOOK, trainer("single", memory_format="contiguous")),
    Loop("`single`", BOOK, trainer("single")),
    Loop("`scratch`", BOOK, trainer("scratch")),
    Loop("`scratch`, compiled", BOOK, trainer("scratch", compiled=True)),
    Loop(BOOK_ON_TWO, BOOK_ON_TWO, lambda model, lr: Book(model, 2, lr)),
    Loop("`scratch` over two devices", BOOK_ON_TWO, trainer("scratch", 2)),
    Loop("`scratch` over two devices, compiled", BOOK_ON_TWO, trainer("scratch", 2, compiled=True)),
)
ON_RANKS = (
    Loop(BARE_DDP, BARE_DDP, bare_ddp),
    Loop("`ddp`", BARE_DDP, trainer("ddp")),
    *(Loop(name, BARE_DDP, trainer(adapter)) for name, (needed, adapter) in LIBRARIES.items() if find_spec(needed)),
    Loop(BARE_FSDP, BARE_FSDP, bare_fsdp),
    Loop("`fsdp`", BARE_FSDP, trainer("fsdp")),
)
GROUPS = {"one": ONE_PROCESS, "ranks": ON_RANKS}


def section() -> str:
    """Return the tables of LeNet with the book's minibatch."""
    return measure(Setting("lenet", batch=256, windows=20)).markdown


def measure(setting: Setting, sessions: int = 6) -> Steps:
    """Time all loops in so many fresh processes, or sets of processes."""
    step_s, error = _Values(), _Values()
    for number in range(sessions):
        for group in GROUPS:
            for name, (seconds, off) in _in_processes(group, setting, number).items():
                step_s[name].append(seconds)
                error[name].append(off)
    loops = [loop for group in GROUPS.values() for loop in group]
    ratios = {loop.name: _ratio(step_s[loop.base], step_s[loop.name]) for loop in loops}
    errors = {loop.name: _ratio(error[loop.name], error[BOOK]) for loop in ONE_PROCESS}

    def row(loop: Loop, *more: Interval) -> list[str]:
        figures = [""] * (1 + len(more)) if loop.name == loop.base else map(_shown, (ratios[loop.name], *more))
        return [loop.name, f"{math.exp(statistics.fmean(map(math.log, step_s[loop.name]))) * 1e3:.1f}", *figures]

    head = ("loop", "step, ms", "time of its base / its own")
    absent = [[name, "not installed", ""] for name, (needed, _) in LIBRARIES.items() if not find_spec(needed)]
    tables = (
        f"{setting.net}, {setting.batch} samples, one process:\n",
        markdown((*head, "error / the book's"), [row(loop, errors[loop.name]) for loop in ONE_PROCESS]),
        f"\n{setting.net}, {setting.batch} samples, {RANKS} processes:\n",
        markdown(head, [*map(row, ON_RANKS), *absent]),
    )
    return Steps("\n".join(tables), ratios, errors)


class _Values(defaultdict[str, list[float]]):
    """A list of sessions' values for each loop."""

    def __init__(self) -> None:
        super().__init__(list)


def _ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Interval:
    return from_logs([math.log(above / below) for above, below in zip(numerators, denominators, strict=True)])


def _shown(ratio: Interval) -> str:
    ends = "" if ratio.low is None else f" [{ratio.low:.3f}, {ratio.high:.3f}]"
    return f"{ratio.estimate:.3f}{ends}"


def _in_processes(group: str, setting: Setting, number: int) -> dict[str, list[float]]:
    """Return each loop's seconds a step, and its error, of a session."""
    launcher = [] if group == "one" else ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    given = ["--net", setting.net, "--batch", str(setting.batch), "--windows", str(setting.windows)]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "session.json")
        command = [sys.executable, *launcher, "-m", "docs.performance.steps", *given]
        command += ["--session", group, str(number), str(out)]
        subprocess.run(command, check=True, env=quiet.environment(os.environ, "cpu"))
        found: dict[str, list[float]] = json.loads(out.read_text(encoding="utf-8"))
    return found


def _session(group: str, setting: Setting, number: int, out: Path) -> None:
    """Time the loops of a group, in this process or on its ranks, and write what `_in_processes` returns."""
    torch.set_num_threads(1)
    torch.manual_seed(number)
    X, y = torch.rand(setting.batch, 1, 28, 28), torch.randint(10, (setting.batch,))
    model, loops = build(setting.net, "xavier", number), list(GROUPS[group])
    random.Random(number).shuffle(loops)  # memory that is given out earlier may be faster
    errors = {loop.name: math.nan for loop in loops}
    rank, cores = 0, quiet.available_cores()
    if group == "one":
        exact = _gradient(copy.deepcopy(model).double(), X.double(), y)
        errors = {loop.name: _error(loop.make(model, HUGE_LR), model, exact, X, y) for loop in loops}
    else:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        X, y = X.chunk(RANKS)[rank], y.chunk(RANKS)[rank]
        quiet.take_turns()
        quiet.pin([cores[rank % len(cores)]])
    trainers = [loop.make(model, LR) for loop in loops]
    quiet.pin([cores[rank % len(cores)]])  # only now, because threads of replicas take cores of their own
    steps = [partial(made.step, X, y, setting.batch) for made in trainers]
    for step in steps * 3:
        step()
    counts = [max(1, round(WINDOW_S / _window(step, 1))) for step in steps]
    taken: list[list[float]] = [[] for _ in steps]
    for turn in range(setting.windows):
        for index in range(len(steps))[:: 1 if turn % 2 == 0 else -1]:
            taken[index].append(_window(steps[index], counts[index]))
    if rank == 0:
        found = {loop.name: (faster_half(own), errors[loop.name]) for loop, own in zip(loops, taken, strict=True)}
        out.write_text(json.dumps(found), encoding="utf-8")
    if group != "one":
        dist.barrier()
    sys.stdout.flush()
    # Gloo's threads end the process with an abort, rarely, if they are still there when the interpreter shuts down.
    os._exit(0)


def _window(step: Callable[[], Any], steps: int) -> float:
    """Return the seconds of a step, on the slowest rank."""
    if dist.is_initialized():
        dist.barrier()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    slowest = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
    if dist.is_initialized():
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.item() / steps


def _gradient(net: nn.Module, X: Tensor, y: Tensor) -> Tensor:
    torch.autograd.backward(F.cross_entropy(net(X), y))
    return torch.cat([param.grad.flatten() for param in net.parameters() if param.grad is not None])


def _error(made: Any, model: nn.Module, exact: Tensor, X: Tensor, y: Tensor) -> float:
    """Return how far the gradient of a trainer's step is from one in float64, relative to it."""
    made.step(X, y, len(y))
    pairs = zip(model.parameters(), made.replicas[0].parameters(), strict=True)
    moved = torch.cat([(before.double() - after.double()).flatten() for before, after in pairs]).detach()
    return float((moved / HUGE_LR - exact).norm() / exact.norm())


def main() -> None:
    """Print the tables; a process of a session times and prints nothing."""
    parser = argparse.ArgumentParser(prog="python -m docs.performance.steps", description="Steps, side by side.")
    parser.add_argument("--net", default="lenet", help="default: lenet")
    parser.add_argument("--batch", type=int, default=256, help="samples over all devices (default: 256)")
    parser.add_argument("--windows", type=int, default=20, help="of each loop in a session (default: 20)")
    parser.add_argument("--sessions", type=int, default=6, help="default: 6")
    parser.add_argument("--session", nargs=3, metavar=("GROUP", "NUMBER", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    setting = Setting(options.net, options.batch, options.windows)
    if options.session:
        group, number, out = options.session
        _session(group, setting, int(number), Path(out))
    print(measure(setting, options.sessions).markdown)


if __name__ == "__main__":
    main()
