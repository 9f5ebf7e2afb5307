"""Whether a trained net's parameters are finite, also where its trainer returns no loss (worker's side)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def first_not_finite(net: nn.Module) -> str:
    """Return the name of the first parameter that has a NaN or an infinity; "" where all are finite.

    Of a sharded parameter this rank's part is read, so that no rank waits for another one. Nothing as large as a
    parameter is allocated, except for numbers of one byte.

    Args:
        net: parameters of any device; those that are no real floating point numbers are not read.
    """
    return next((name for name, parameter in net.named_parameters() if not _finite(parameter)), "")


def _finite(parameter: Any) -> bool:
    part = (parameter.to_local() if hasattr(parameter, "to_local") else parameter).detach()
    if not part.is_floating_point() or part.numel() == 0:
        return True
    if part.element_size() == 1:  # torch.aminmax takes no float8
        part = part.float()
    return bool(torch.stack(torch.aminmax(part)).isfinite().all())  # a NaN is the least and the largest number
