"""Counts the floating-point operations of a model (worker's side)."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from reference import calling, nest
from reference.nest import Nest


def of_a_sample(model: nn.Module, X: Nest, y: Nest) -> int:
    """Return the FLOP of a forward and a backward on one sample, as torch counts them: two for a multiply-add.

    Only shapes are computed (torch's device "meta"), so nothing is allocated and no device is used. Matrix products,
    convolutions and attention count, the masked half of causal attention too; elementwise operations do not.

    Args:
        model: on any device; it does not change.
        X: samples (n, ...), or a nest of them.
        y: their labels, for a model that takes them.

    Returns:
        0 where the model cannot be run without values, such as one that looks into its input.
    """

    def shape_of(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(tensor, device="meta", requires_grad=tensor.requires_grad)

    try:
        state = {name: shape_of(tensor) for name, tensor in (*model.named_parameters(), *model.named_buffers())}
        sample = [nest.each(shape_of, nest.take(part, slice(1))) for part in (X, y)]
        args, kwargs = calling.calls(model, *sample)[-1]  # with y where it may have that, because a loss needs it
        with FlopCounterMode(display=False) as counter:
            output = torch.func.functional_call(model, state, args, kwargs)
            torch.autograd.backward(next(each for each in calling.tensors(output) if each.requires_grad).sum())
    except Exception:  # whatever a model of the user's own raises on a device that it was not made for
        return 0
    return int(counter.get_total_flops())
