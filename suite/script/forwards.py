"""Watches the modules that a script trains, and the losses that it computes outside of them (worker's side).

The outermost module is one that is called in training mode with gradients, and has parameters that need them. What it
is called with are the rows that the script trains on.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer

from suite.script import trees
from suite.script.numerics import Numerics
from suite.script.patching import wrap
from suite.script.tape import ARGUMENTS, TARGETS, Tape

LOSSES = (
    "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "kl_div",
)  # fmt: skip
WRAPPED = re.compile(r"\b(_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)\.")


class Forwards:
    """What the outermost modules were called with.

    Attributes:
        names: of their parameters.
        passes: since the last update.
        record: what was seen in all updates.
    """

    def __init__(
        self, numerics: Numerics, tape: Tape, start: Mapping[str, Tensor] | None, *, keeps_values: bool
    ) -> None:
        """Keep what is needed.

        Args:
            numerics: gives modules their precision.
            tape: gives arguments and targets.
            start: the recorded weights and buffers to begin with; None begins with the script's own.
            keeps_values: whether the record has the weights that the script begins with.
        """
        self.names = Names()
        self._numerics, self._tape, self._start, self._keeps_values = numerics, tape, start, keeps_values
        self._known: set[int] = set()
        self._inside = False
        self.passes = self._drew = 0
        self._rows: list[str] = []
        self.record: dict[str, Any] = {
            "returns_loss": False,
            "begun": {},
            "values": {},
            "misfits": [],
            "unwritten": [],
            "generators": "",
            "sharded": False,
        }

    def install(self) -> None:
        """Patch torch."""
        wrap(nn.Module, "__call__", self._call)
        for name in LOSSES:
            wrap(F, name, self._lose)

    def taken(self) -> dict[str, Any]:
        """Return what was seen since the last update, and begin again."""
        seen = {"passes": self.passes, "rows": self._rows, "drew": self._drew}
        self.passes, self._rows, self._drew = 0, [], 0
        return seen

    def _call(self, call: Callable[..., Any], module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        if self._inside:
            return call(module, *args, **kwargs)
        if not self._is_outermost(module):  # such as one that is evaluated
            return call(module, *self._numerics.fitting(module, args), **self._numerics.fitting(module, kwargs))
        self._inside = True
        try:
            args, kwargs = self._enter(module, args, kwargs)
            before = _generators()
            output = call(module, *args, **kwargs)
            self._drew += before != _generators()
            losses = [t for t in trees.leaves(_tree(output)) if t.numel() == 1 and t.requires_grad]
            self.record["returns_loss"] = bool(losses)
            return output
        finally:
            self._inside = False

    def _is_outermost(self, module: nn.Module) -> bool:
        if not (module.training and torch.is_grad_enabled()):
            return False
        if threading.current_thread() is not threading.main_thread():
            return False
        # A recomputed part of a module is called while the backward runs.
        in_backward = torch._C._current_graph_task_id() != -1
        return not in_backward and any(parameter.requires_grad for parameter in module.parameters())

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        if id(module) not in self._known:
            self._known.add(id(module))
            self._begin(module)
        self.passes += 1
        args, kwargs = self._tape.called(ARGUMENTS, [list(args), kwargs])
        given = [tensor for tensor in trees.leaves([args, kwargs]) if not tensor.requires_grad]
        self._rows += trees.row_digests(given)
        return args, kwargs

    def _begin(self, module: nn.Module) -> None:
        """Give a module its precision and its weights, and note with what it begins."""
        self._numerics.prepare(module)
        record, named = self.record, self.names.add(module)
        record["generators"] = record["generators"] or _generators()
        if self._start is not None:
            record["misfits"] += load(named, self._start)
            return
        parameters = {name: tensor for name, tensor in named.items() if isinstance(tensor, nn.Parameter)}
        record["sharded"] = record["sharded"] or is_sharded(parameters.values())
        for name, tensor in named.items():
            value = whole(tensor)
            if value.is_floating_point() and bool(value.isnan().any()):
                record["unwritten"].append(name)
            if name in parameters:
                record["begun"][name] = trees.digest(value)
            if self._keeps_values:
                record["values"][name] = value

    def _lose(self, loss: Callable[..., Tensor], input: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not self._inside and input.requires_grad and not target.requires_grad:
            target = self._tape.called(TARGETS, target)
        elif input.dtype == torch.float64:
            target = trees.doubled(target)
        return loss(input, target, *args, **kwargs)


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


def _generators() -> str:
    """Return a digest of the states of torch's generators, that of a GPU included."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states.append(torch.cuda.get_rng_state())
    return "".join(map(trees.digest, states))


def _tree(output: Any) -> Any:
    """Return an output of a module as a tree; objects with fields, such as a dataclass, count as their fields."""
    return vars(output) if hasattr(output, "__dict__") and not isinstance(output, Tensor) else output
