"""What a trainer may set for its whole process: torch's grad mode, default dtype and default device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def kept() -> Iterator[None]:
    """Set again afterwards what was set before."""
    grad, dtype, device = torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_default_device()
    try:
        yield
    finally:
        _set(grad, dtype, device)


@contextmanager
def torchs_own() -> Iterator[None]:
    """Have torch's own defaults inside, whatever a trainer's module has set: gradients, float32, the CPU."""
    with kept():
        _set(True, torch.float32, torch.device("cpu"))
        yield


def _set(grad: bool, dtype: torch.dtype, device: torch.device) -> None:
    torch.set_grad_enabled(grad)
    torch.set_default_dtype(dtype)
    if torch.get_default_device() != device:
        torch.set_default_device(None if device.type == "cpu" else device)
