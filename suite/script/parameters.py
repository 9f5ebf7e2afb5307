"""A script's parameters by name, whole also where they are sharded (worker's side)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer

WRAPPED = re.compile(r"\b(_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)\.")


class Names:
    """Knows the parameters of the modules that train."""

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []
        self._names: dict[int, str] = {}

    def add(self, module: nn.Module) -> dict[str, Tensor]:
        """Take in a module that trains; return its parameters and buffers by name."""
        inner = unwrapped(module)
        prefix = "" if not self.modules else f"{type(inner).__name__}-{len(self.modules)}."
        self.modules.append(module)
        named = {prefix + WRAPPED.sub("", name): value for name, value in inner.named_parameters()}
        self._names |= {id(value): name for name, value in named.items()}
        return named | {prefix + WRAPPED.sub("", name): value for name, value in inner.named_buffers()}

    def of(self, optimizer: Optimizer | None, place: int) -> dict[str, Tensor]:
        """Return the parameters of an optimizer by name, or of all modules; one of no module is named by its place."""
        if optimizer is None:
            return {self._names[id(parameter)]: parameter for each in self.modules for parameter in each.parameters()}
        return {
            self._names.get(id(parameter), f"optimizer {place}, group {group}, parameter {number}"): parameter
            for group, settings in enumerate(optimizer.param_groups)
            for number, parameter in enumerate(settings["params"])
        }


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the module inside of what wraps it for several devices or for the compiler."""
    while True:
        if isinstance(module, (DistributedDataParallel, DataParallel)):
            module = module.module
        elif isinstance(inner := getattr(module, "_orig_mod", None), nn.Module):
            module = inner
        else:
            return module


def is_sharded(tensors: Iterable[Tensor]) -> bool:
    """Return whether ranks hold parts of some of the tensors."""
    return any(hasattr(tensor, "full_tensor") or hasattr(tensor, "_sharded_size") for tensor in tensors)


@torch.no_grad()
def whole(tensor: Tensor) -> Tensor:
    """Return a copy on the CPU of a tensor, gathered where it is sharded, which every rank must do."""
    gathered: Any = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    copied: Tensor = gathered.detach().to("cpu", copy=True)
    return copied


@torch.no_grad()
def load(into: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> list[str]:
    """Copy recorded values into parameters and buffers of one device; return the names of those that do not fit."""
    misfits = []
    for name, tensor in into.items():
        local: Any = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        if name not in values or values[name].shape != local.shape:
            misfits.append(name)
        else:
            local.copy_(values[name])
    return misfits
