"""Clocks on the worker's side: what one timed window is.

A window is a fixed number of training steps together with their data feed. Every device this process drives is
synchronised before the clock is read (`torch.cuda.synchronize()` alone waits for the current device only), and with
several processes all of them leave a barrier first, so that a rank's window does not begin while another is still busy
with something else.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import distributed as dist


class LossNotFinite(ArithmeticError):
    """Training diverged while it was being timed; what was measured is not training."""


def synchronise(devices: Sequence[torch.device]) -> None:
    """Wait until every device in `devices` has finished what it was given."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def window(step: Callable[[], Any], steps: int, devices: Sequence[torch.device], *, together: bool = True) -> int:
    """Time `steps` calls of `step`.

    Args:
        step: draws a minibatch and trains on it; may return its loss.
        steps: how many, at least 1.
        devices: those that this process drives.
        together: whether all ranks take part, and so begin at the same time.

    Returns:
        Nanoseconds on this rank's clock, from the barrier to the last device's end.

    Raises:
        LossNotFinite: the last step returned a loss that is not a finite number.
    """
    loss: Any = None
    synchronise(devices)
    if together and dist.is_initialized():
        dist.barrier()
        synchronise(devices)
    start_ns = time.perf_counter_ns()
    for _ in range(steps):
        loss = step()
    synchronise(devices)
    duration_ns = time.perf_counter_ns() - start_ns
    if loss is not None and not math.isfinite(float(loss)):  # read after the clock: it synchronises
        raise LossNotFinite(f"the loss is {float(loss)} after {steps} more steps; lower lr, or choose another init")
    return duration_ns
