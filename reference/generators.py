"""The states of torch's generators, without which dropout goes on differently after training is resumed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def states(net: nn.Module) -> list[Tensor]:
    """Return the state of the CPU's generator and, where a net is on an accelerator, of its device's; (b,), uint8."""
    return [torch.get_rng_state(), *(torch.get_device_module(device).get_rng_state(device) for device in _own(net))]


def restore(net: nn.Module, saved: Sequence[Tensor]) -> None:
    """Set the generators to what `states` returned for a net on the same kind of device."""
    torch.set_rng_state(saved[0])
    for device, state in zip(_own(net), saved[1:], strict=True):
        torch.get_device_module(device).set_rng_state(state, device)


def _own(net: nn.Module) -> list[torch.device]:
    """Return the device of a net, which is on one, if that has a generator of its own."""
    device = next(net.parameters()).device
    return [] if device.type == "cpu" else [device]
