"""One timed window, for how long others had this process's cores meanwhile, and what is not finite (worker's side).

A window is a fixed number of training steps with their data feed. Every device of this process is synchronised before
the clock is read (`torch.accelerator.synchronize()` alone waits for the current device only). Several processes pass a
barrier first, so that no rank's window begins while another rank is busy with something else.

A core is busy or idle. What it was neither idle nor busy with this process, it was busy with others: processes, the
kernel's own threads, interrupts, or another guest of the hypervisor. Linux counts idle time by core in microseconds
(cpuidle), and the CPU time of a process, with all its threads, in nanoseconds.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch import distributed as dist
from torch.utils import _pytree as pytree

from reference.nest import Nest
from reference.per_device import synchronize
from suite.properties.contract import loss_of
from suite.room import accelerator

CPUS = Path("/sys/devices/system/cpu")
TASKS = Path("/proc/self/task")


class LossNotFinite(ArithmeticError):
    """Training diverged while it was timed."""


def window(
    step: Callable[[], Any],
    steps: int,
    devices: Sequence[torch.device],
    *,
    together: bool = True,
    lead_in: int = 0,
    keeps: bool = False,
) -> tuple[int, Any]:
    """Time `steps` calls of `step`.

    Args:
        step: draws a minibatch and trains on it; may return its loss.
        steps: how many, at least 1.
        devices: of this process.
        together: whether all ranks take part and begin at the same time.
        lead_in: steps before the barrier and the clock, the same number on all ranks. A GPU that waited while other
            arms ran has lowered its clocks.
        keeps: whether this process keeps the memory of accelerators that no tensor uses in the end. To give it back and
            to ask for it again before the next window is work of the driver.

    Returns:
        Nanoseconds on this rank's clock, from the barrier until the last device has finished; and what the last step
        returned, to be read after the clock, because that synchronises.
    """
    loss: Any = None
    for _ in range(lead_in):
        step()
    synchronize(devices)
    if together and dist.is_initialized():
        dist.barrier()
        synchronize(devices)
    start_ns = time.perf_counter_ns()
    for _ in range(steps):
        loss = step()
    synchronize(devices)
    duration_ns = time.perf_counter_ns() - start_ns
    if not keeps:
        accelerator.release(devices)
    return duration_ns, loss


def require_finite(loss: Any, steps: int, remedy: str) -> None:
    """Raise `LossNotFinite`, with the remedy, where the last of so many steps returned a loss that is not finite."""
    number = loss_of(loss)
    if number is not None and not math.isfinite(number):
        raise LossNotFinite(f"the loss is {number} after {steps} more steps; {remedy}")


class Others:
    """Counts from the moment this object is made."""

    def __init__(self, cpus: Path = CPUS, tasks: Path = TASKS) -> None:
        """Begin on the cores that this process is bound to."""
        self._cpus, self._tasks = cpus, tasks
        self._cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self._before = self._read()

    def read_ns(self) -> int | None:
        """Return the nanoseconds that others had until now, over all cores of this process.

        None where the kernel does not count, and where this process has children, whose time is not that of others.
        """
        after = self._read()
        if self._before is None or after is None or self._parent():
            return None
        wall_ns, idle_ns, own_ns = (now - then for now, then in zip(after, self._before, strict=True))
        return max(0, len(self._cores) * wall_ns - idle_ns - own_ns)

    def _read(self) -> tuple[int, int, int] | None:
        """Return the time, the idle time of all cores, and this process's CPU time; None where they are not counted.

        An idle core's time is counted when it wakes, so this thread visits each of them.
        """
        idle_us = 0
        if not self._cores:
            return None
        try:
            for core in self._cores:
                if len(self._cores) > 1:
                    os.sched_setaffinity(0, {core})
                states = list((self._cpus / f"cpu{core}" / "cpuidle").glob("state*/time"))
                if not states:
                    return None
                idle_us += sum(int(state.read_text(encoding="ascii")) for state in states)
        except (OSError, ValueError):
            return None
        finally:
            if len(self._cores) > 1:
                os.sched_setaffinity(0, self._cores)
        return time.perf_counter_ns(), 1000 * idle_us, time.process_time_ns()

    def _parent(self) -> bool:
        """Return whether this process has children, or may have some."""
        try:
            return any(file.read_text(encoding="ascii").strip() for file in self._tasks.glob("*/children"))
        except OSError:
            return True


class HasParameters(Protocol):
    """A module, or what has named parameters as one."""

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]:
        """Return them."""


def first_not_finite(net: HasParameters) -> str:
    """Return the name of the first parameter that has a NaN or an infinity; "" where all are finite.

    A trainer may return no loss that shows it. Of a sharded parameter this rank's part is read, so that no rank waits
    for another one. Nothing as large as a parameter is allocated, except for numbers of one byte. Whole numbers are not
    read.
    """
    return next((name for name, parameter in net.named_parameters() if not _finite(parameter)), "")


def first_bad_sample(name: str, samples: Nest) -> str:
    """Return where in a nest on the CPU the first NaN or infinity is: "inf in train_X['mask'], sample 3"; or ""."""
    for path, leaf in pytree.tree_flatten_with_path(samples)[0]:
        if not _finite(leaf):
            values = leaf.flatten(1) if leaf.ndim > 1 else leaf[:, None]
            sample = int((~values.isfinite()).any(dim=1).nonzero()[0])
            found: Tensor = values[sample][~values[sample].isfinite()]
            return f"{found[0].item()} in {name}{pytree.keystr(path)}, sample {sample}"
    return ""


def _finite(parameter: Any) -> bool:
    part = (parameter.to_local() if hasattr(parameter, "to_local") else parameter).detach()
    if part.is_complex():
        part = torch.view_as_real(part.resolve_conj())
    if not part.is_floating_point() or part.numel() == 0:
        return True
    if part.element_size() == 1:  # torch.aminmax takes no float8
        part = part.float()
    return bool(torch.stack(torch.aminmax(part)).isfinite().all())  # a NaN is the least and the largest number
