"""A script that is checked: it runs in the main thread for a few updates, and what it did is written to a file.

On k ranks it is recorded. On one, a replay gets the rows and rates that were recorded, and begins with the weights of
rank 0. After the last update the script stands still, and never goes on.
"""

from __future__ import annotations

import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import distributed as dist
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from suite.processes.jobs import WatchedScript
from suite.script import as_cuda, loaders, trees
from suite.script.exchanges import Exchanges
from suite.script.forwards import Forwards, is_sharded, whole
from suite.script.main import of_end, run_as_main, so_far
from suite.script.numerics import Numerics
from suite.script.tape import Tape
from suite.script.updates import NamedUpdate, period, place_of

UPDATES = 4  # that are recorded
MOST_VALUES = 2**28  # of gradients that are kept: 2 GB
PATIENCE_S = 20.0  # with other ranks once the script has ended on this one
FOREVER = threading.Event()


class NoUpdate(RuntimeError):
    """A script ended before it made an update, or left with an error."""


class Recording:
    """A training script in the main thread, watched.

    The methods but `run` are for the thread that serves the controller.
    """

    def __init__(self, job: WatchedScript, rank: int) -> None:
        """Keep what is to be done, and the rank of this process."""
        self._job, self._script, self._rank, self._folder = job, job.script, rank, Path(job.folder)
        recorded = [read(self._folder, number) for number in range(job.ranks)] if job.replay else []
        self._recorded = recorded[0] if recorded else None
        self._tape = Tape(recorded, job.replay, double=job.double)
        self._draws, self._exchanges = loaders.Draws(self._tape), Exchanges()
        self._numerics = Numerics(double=job.double)
        start = self._recorded["values"] if self._recorded else None
        self._forwards = Forwards(self._numerics, self._tape, start, keeps_values=rank == 0 and not self._tape.replays)
        self._optimizers: list[Optimizer | None] = []
        self._named: NamedUpdate | None = None
        self._steps: list[dict[str, Any]] = []
        self._world = 0
        self._by_itself = False  # whether the script has ended
        self._own_rates: list[list[Any]] = []
        self._stepping: Optimizer | None = None
        self._kept = 0  # values of gradients
        self._failure: BaseException | None = None
        self._done = threading.Event()

    def run(self) -> NoReturn:
        """Run the script in this thread. It never returns: the process ends when the controller says so."""
        self._install()
        try:
            try:
                run_as_main(self._script)
            except SystemExit as left:
                if left.code not in (None, 0):
                    raise NoUpdate(of_end(self._script, f"left with {left.code!r}", len(self._steps))) from None
            self._finish(ended=True)
        except BaseException as error:
            self._failure = error
        self._stand_still()

    def reach(self) -> dict[str, Any]:
        """Wait until the record is written; return what the controller must know of it.

        Raises:
            BaseException: what the script raised.
            NoUpdate: it ended without an update.
        """
        self._done.wait()
        if self._failure is not None:
            raise self._failure
        if self._by_itself and not self._job.replay and not self._all_recorded():
            made = f"it ended after {len(self._steps)} step(s) of an optimizer"
            return {"raised": {"where": "the script", "error": made, "traceback": ""}}
        return {
            "draws": [step["draws"] for step in self._steps],
            "passes": [step["passes"] for step in self._steps],
        }

    def so_far(self) -> str:
        """Return in words how far the script has come."""
        forwards, backwards = self._forwards.passes, self._exchanges.backwards
        return so_far(self._script, len(self._steps), f"{forwards} forward(s), {backwards} backward(s), and ")

    def _all_recorded(self) -> bool:
        """Wait a while for the records of the other ranks, which may wait for this one."""
        files = [path_of(self._folder, rank) for rank in range(int(os.environ["WORLD_SIZE"]))]
        until = time.monotonic() + PATIENCE_S
        while not all(file.exists() for file in files):
            if time.monotonic() > until:
                return False
            time.sleep(0.05)
        return True

    def _install(self) -> None:
        if self._job.as_cuda:
            as_cuda.install(max(self._job.ranks, int(os.environ["LOCAL_WORLD_SIZE"])))
        for part in (self._numerics, self._exchanges, self._draws, self._forwards):
            part.install()
        if self._script.update:
            before, after = partial(self._before, None), partial(self._after, None)
            self._named = NamedUpdate(self._script, before=before, after=after)
            return
        register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: self._before(optimizer))
        register_optimizer_step_post_hook(lambda optimizer, args, kwargs: self._after(optimizer))

    def _stand_still(self) -> NoReturn:
        self._done.set()
        while True:
            FOREVER.wait()

    def _before(self, optimizer: Optimizer | None) -> None:
        """Note what a step is made of, and give it the recorded rates; None is a function that the user names."""
        if self._stepping not in (None, optimizer):  # an optimizer that steps another one, as for ZeRO
            return
        skipped = getattr(optimizer, "found_inf", None)
        if skipped is not None and float(skipped):  # GradScaler tells a fused optimizer to leave this step out
            return
        self._stepping = optimizer
        if not self._steps:
            self._world = dist.get_world_size() if dist.is_initialized() else 0
            if self._named and self._named.late:  # what was seen belongs to an update before the first one
                self._seen()
        groups = optimizer.param_groups if optimizer is not None else []
        self._steps.append(
            {
                "optimizer": place_of(optimizer, self._optimizers),
                "rates": [float(group["lr"]) for group in groups],
                "first_rates": [float(group["initial_lr"]) if "initial_lr" in group else None for group in groups],
                **self._gradients(optimizer),
                **self._seen(),
            }
        )
        number = len(self._steps) - 1
        if self._recorded and number < len(self._recorded["steps"]):
            self._own_rates.append([group["lr"] for group in groups])
            for group, rate in zip(groups, self._recorded["steps"][number]["rates"], strict=False):
                group["lr"] = torch.full_like(group["lr"], rate) if isinstance(group["lr"], torch.Tensor) else rate

    def _parameters(self, optimizer: Optimizer | None) -> dict[str, torch.Tensor]:
        return self._forwards.names.of(optimizer, place_of(optimizer, self._optimizers))

    def _gradients(self, optimizer: Optimizer | None) -> dict[str, Any]:
        """Return what the gradients are."""
        # GradScaler hands a fused optimizer scaled gradients, and the scale.
        scale = getattr(optimizer, "grad_scale", None)
        gradients = {
            name: (whole(p.grad) if scale is None else whole(p.grad) / float(scale))
            for name, p in self._parameters(optimizer).items()
            if p.grad is not None
        }
        size = sum(gradient.numel() for gradient in gradients.values())
        keeps = self._rank == 0 and self._kept + size <= MOST_VALUES
        self._kept += size
        return {
            "digests": {name: trees.digest(gradient) for name, gradient in gradients.items()},
            "finite": all(bool(gradient.isfinite().all()) for gradient in gradients.values()),
            "largest": max((float(g.abs().max()) for g in gradients.values() if g.numel()), default=0.0),
            "gradients": gradients if keeps else {},
        }

    def _seen(self) -> dict[str, Any]:
        """Return what was seen since the last update, and begin again."""
        seen = {"exchanged": self._exchanges.taken(), "draws": self._tape.draws, **self._forwards.taken()}
        self._tape.draws = 0
        return seen

    def _after(self, optimizer: Optimizer | None) -> None:
        if self._stepping is not optimizer:
            return
        self._stepping = None
        groups = optimizer.param_groups if optimizer is not None else []
        for group, rate in zip(groups, self._own_rates.pop() if self._own_rates else (), strict=False):
            group["lr"] = rate  # its schedule goes on from its own
        step, named = self._steps[-1], self._parameters(optimizer)
        inside = self._seen()  # a step may draw and compute its gradients itself
        exchanged = inside.pop("exchanged")
        step["in_step"] = exchanged.pop("values")
        for before, more in ((step, inside), (step["exchanged"], exchanged)):
            before.update({name: before[name] + count for name, count in more.items()})
        if exchanged["backwards"] and (left := self._gradients(optimizer))["largest"]:
            step |= left
        step["size"] = sum(p.numel() for p in named.values() if p.requires_grad)
        step["sharded"] = is_sharded(named.values())
        step["after"] = {} if step["sharded"] else {name: trees.digest(p) for name, p in named.items()}
        calls = [each["optimizer"] for each in self._steps]
        cycle = period(calls)
        if cycle and len(calls) >= UPDATES * cycle and len(calls) % cycle == 0:
            self._finish(ended=False)
            self._stand_still()

    def _finish(self, *, ended: bool) -> None:
        """Write the record; `ended` says that the script ended by itself."""
        self._by_itself = ended
        if not self._steps:
            raise NoUpdate(of_end(self._script, "ended", 0))
        record = {
            "ended": ended,
            "update": self._script.update,
            "world": self._world,
            "cycle": period([step["optimizer"] for step in self._steps]) or 1,
            "steps": self._steps,
            "dropout": self._numerics.dropout,
            "compressed": self._numerics.compressed,
            "batch_norm": self._numerics.batch_norm,
            "shared_by": self._exchanges.shared_by(self._forwards.names.modules),
            "loaders": [] if self._tape.replays else loaders.described(self._draws),
            "batches": [loaders.length(loader) for loader in self._draws.trained],
            **self._tape.record(self._steps),
            **self._forwards.record,
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        torch.save(record, path_of(self._folder, self._rank, self._job.replay))


def path_of(folder: Path, rank: int, replay: str = "") -> Path:
    """Return the file of a record."""
    return folder / (f"replay-{replay}.pt" if replay else f"rank-{rank}.pt")


def read(folder: Path, rank: int, replay: str = "") -> dict[str, Any]:
    """Return a record."""
    record: dict[str, Any] = torch.load(path_of(folder, rank, replay), weights_only=True, mmap=True)
    return record
