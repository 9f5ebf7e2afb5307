"""A script that is timed: it runs in the main thread, stands still after an update, and goes on for so many more.

While it goes on, an update costs one call of a hook, which decrements a number. The controller's commands arrive in
another thread, which sleeps meanwhile. The processes that the script has started, such as those of a DataLoader, are
stopped while it stands still: otherwise they would prepare minibatches, from which the next window would be fed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import torch
from torch import distributed as dist

from reference.per_device import synchronize
from suite.processes.jobs import ScriptRun
from suite.room import accelerator, quiet
from suite.script.apart import Apart
from suite.script.isolation import Kept
from suite.script.main import lasting, of_end, run_as_main, so_far
from suite.script.updates import Updates
from suite.script.work import UPDATES, Work

UNFED = "the script draws from no DataLoader, so that its feed is a part of the other bars"


class ScriptEnded(RuntimeError):
    """A script ended before it made as many updates as were to be timed."""


class NoGroup(RuntimeError):
    """The ranks of a script train apart from one another."""


class TimedScript:
    """A training script, ready to run windows once it has reached its first updates.

    The methods but `run` are for the thread that serves the controller.

    Attributes:
        devices: of this rank.
        has_cores: whether nobody else has work for its cores.
        kept: how what it writes is kept apart.
        sample_flop: 0, because what a sample takes is not known.
        unfed: why the last probe has timed nothing; "" where it has.
        work: of this rank in an update.
    """

    sample_flop = 0

    def __init__(
        self, devices: Sequence[torch.device], script: ScriptRun, kept: Kept, *, has_cores: bool, cores: Sequence[int]
    ) -> None:
        """Keep what is needed; `cores` are for the processes that the script starts."""
        self.kept = kept
        self.devices, self.has_cores = list(devices), has_cores
        self._script, self._cores = script, cores
        self._turn = threading.Condition()
        self._goes_on = True  # whether it is the script's turn
        self._failure: BaseException | None = None
        self._left = 1  # updates until it looks whether to stop
        self._at_edge: Callable[[], int] = self._pause
        self._steps = self._begun_ns = self._taken_ns = 0
        self._keeps = False
        self._together = True  # whether all ranks begin a window
        self._apart: Apart | None = None
        self.unfed = ""
        self.work = Work()
        self._updates = Updates(self._updated, script)

    def run(self) -> NoReturn:
        """Run the script in this thread. It never returns: the process ends when the controller says so."""
        os.register_at_fork(after_in_child=quiet.unpin(self._cores))
        self._apart = None if self._script.exchanges else Apart()
        try:
            run_as_main(self._script)
            failure: BaseException = ScriptEnded(self._ended("ended"))
        except SystemExit as left:
            failure = ScriptEnded(self._ended(f"left with {left.code!r}"))
        except BaseException as error:
            failure = error
        with self._turn:
            self._failure, self._goes_on = failure, False
            self._turn.notify_all()
        while True:
            threading.Event().wait()

    def reach(self) -> None:
        """Wait until it has made its first updates.

        Raises:
            BaseException: what the script raised before.
            ScriptEnded: it ended before.
            NoGroup: its process group does not have the ranks that were started.
        """
        self._wait_for_script()
        self.work.begin()
        started, joined = int(os.environ["WORLD_SIZE"]), dist.get_world_size() if dist.is_initialized() else 0
        if started > 1 and joined != started:
            has = f"its process group has {joined} rank(s)" if joined else "it has no process group"
            raise NoGroup(
                f"{started} ranks were started, and {has}: each trains by itself, and its time says nothing about "
                "scaling; let the script call torch.distributed.init_process_group(), or tell its framework to use the "
                "ranks that torchrun started"
            )

    def window(self, steps: int, lead_in: int = 0, *, keeps: bool = False) -> int:
        """Return the nanoseconds of so many updates with everything that lies between them.

        Args:
            steps: updates that are timed.
            lead_in: updates before them.
            keeps: whether this process keeps the accelerators' memory that no tensor uses.

        Raises:
            BaseException: what the script raised.
            ScriptEnded: it ended before.
        """
        self._steps, self._at_edge, self._keeps = steps, self._begin, keeps
        self.advance(lead_in)
        self.work.note(lead_in + steps)
        return self._taken_ns

    def probe(
        self, steps: int, *, resident: bool, share: int, exchange: bool, alone: bool, lead_in: int = 0
    ) -> int | None:
        """Return the nanoseconds of so many updates of a diagnostic variant; None on a rank that stands still.

        Args:
            steps: updates that are timed.
            resident: whether the loader gives its last minibatch again.
            share, exchange: as the command and the group of this script have them.
            alone: whether only rank 0 goes on; the ranks must exchange nothing.
            lead_in: updates before them.
        """
        if alone and int(os.environ["RANK"]) > 0:
            return None
        if not self.work.remembers:
            self.work.remembers = True
            self.advance(UPDATES)
            self.work.note(UPDATES)
        self.unfed = UNFED if resident and not self.work.draws else ""
        if self.unfed:
            return None
        self._together = not alone
        self.work.repeat(lead_in + steps if resident else 0)
        return self.window(steps, lead_in)

    @property
    def unclean(self) -> str:
        """What happened in the last window that does not belong to a step, in words; "" for nothing."""
        return ", ".join(dict.fromkeys(self.work.events))

    @property
    def gradient_bytes(self) -> int:
        """Return the bytes of all gradients, of all ranks' slices together where they are sharded."""
        return sum(p.numel() * p.element_size() for _, p in self.named_parameters() if p.requires_grad)

    def named_parameters(self) -> list[tuple[str, torch.Tensor]]:
        """Return those of all optimizers; a script's own names are not known."""
        return [
            (f"{number} of group {place} of {type(optimizer).__name__}", parameter)
            for optimizer in self._updates.optimizers
            if optimizer is not None
            for place, group in enumerate(optimizer.param_groups)
            for number, parameter in enumerate(group["params"])
        ]

    def close(self) -> None:
        """End the processes that the script has started."""
        _signal_children(signal.SIGKILL)

    def advance(self, updates: int) -> None:
        """Let the script make so many updates, and what its next edge adds, and wait until it stands still again."""
        with self._turn:
            self._left, self._goes_on = updates, True
            self._turn.notify_all()
        self._wait_for_script()

    def _wait_for_script(self) -> None:
        with self._turn:
            self._turn.wait_for(lambda: not self._goes_on)
        if self._failure is not None:
            raise self._failure

    def _updated(self) -> None:
        self._left -= 1
        while self._left <= 0:
            self._left = self._at_edge()

    def _pause(self) -> int:
        """Stand still until more updates are asked for; return how many precede the next edge."""
        _signal_children(signal.SIGSTOP)
        with self._turn:
            self._goes_on = False
            self._turn.notify_all()
            self._turn.wait_for(lambda: self._goes_on)
        _signal_children(signal.SIGCONT)
        return self._left

    def _begin(self) -> int:
        synchronize(self.devices)
        if self._together and dist.is_initialized():
            dist.barrier(group=self._apart.real if self._apart else None)
            synchronize(self.devices)
        self._at_edge = self._end
        self.work.events.clear()
        self._begun_ns = time.perf_counter_ns()
        return self._steps

    def _end(self) -> int:
        synchronize(self.devices)
        self._taken_ns = time.perf_counter_ns() - self._begun_ns
        if not self._keeps:
            accelerator.release(self.devices)
        self._at_edge = self._pause
        return 0

    def so_far(self) -> str:
        """Return in words how far the script has come."""
        return so_far(self._script, self._updates.steps)

    def _ended(self, how: str) -> str:
        made = max(self._updates.made, self._updates.steps)
        said = of_end(self._script, how, made)
        if not made:
            return said
        needed = self._left + (self._steps if self._at_edge == self._begin else 0)
        longer = f": {found} looks like how long" if (found := lasting(self._script.words)) else ", by epochs or steps"
        return f"{said}, and at least {needed} more are to be timed; let it train for longer{longer}"


def _signal_children(number: signal.Signals) -> None:
    parents = dict(_parents())
    family = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    for child in family - {os.getpid()}:
        with contextlib.suppress(OSError):
            os.kill(child, number)


def _parents() -> Iterator[tuple[int, int]]:
    """Yield every process with its parent (Linux); an interpreter of a base need not have psutil."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            _, _, after = path.read_text().rpartition(")")  # the name in parentheses may have spaces
            yield int(path.parent.name), int(after.split()[1])
