"""One timed window, on the worker's side.

A window is a fixed number of training steps with their data feed. Every device of this process is synchronised before
the clock is read (`torch.accelerator.synchronize()` alone waits for the current device only). Several processes pass a
barrier first, so that no rank's window begins while another rank is busy with something else.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import distributed as dist

from reference.per_device import synchronize
from suite.properties.contract import loss_of
from suite.room import accelerator


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
    """Check what the last of so many steps returned.

    Raises:
        LossNotFinite: it is a loss that is not a finite number; the message has the remedy.
        suite.properties.contract.ContractError: it is something else than a number.
    """
    number = loss_of(loss)
    if number is not None and not math.isfinite(number):
        raise LossNotFinite(f"the loss is {number} after {steps} more steps; {remedy}")
