"""Watches the modules that a script trains, and the losses that it computes outside of them (worker's side).

The outermost module is one that is called in training mode with gradients, and has parameters that need them. What it
is called with are the rows that the script trains on.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from suite.script import trees
from suite.script.feed import Feed
from suite.script.numerics import Numerics
from suite.script.parameters import Names, is_sharded, load, whole

LOSSES = (
    "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "kl_div",
)  # fmt: skip


class Forwards:
    """What the outermost modules were called with.

    Attributes:
        names: of their parameters.
        passes: since the last update.
        not_kept: what could not be kept of their arguments; "" where all could.
    """

    def __init__(
        self,
        numerics: Numerics,
        feed: Feed | None,
        start: Mapping[str, Tensor] | None,
        *,
        keeps_values: bool,
        keeps_inputs: Callable[[], bool],
    ) -> None:
        """Keep what is needed.

        Args:
            numerics: gives modules their precision.
            feed: gives arguments and targets where the script has no DataLoader; None elsewhere.
            start: the recorded weights and buffers to begin with; None begins with the script's own.
            keeps_values: whether the record has the weights that the script begins with.
            keeps_inputs: says at a forward whether the record needs its arguments.
        """
        self.names = Names()
        self.not_kept = ""
        self._numerics, self._feed, self._start = numerics, feed, start
        self._keeps_values, self._keeps_inputs = keeps_values, keeps_inputs
        self._known: set[int] = set()
        self._inside = False
        self.passes = self._drew = 0
        self._rows: list[str] = []
        self._arguments: list[Any] = []
        self._targets: list[Any] = []
        self._begun: dict[str, str] = {}
        self._values: dict[str, Tensor] = {}
        self._misfits: list[str] = []
        self._unwritten: list[str] = []
        self._generators = ""
        self._sharded = self._returns_loss = False

    def install(self) -> None:
        """Patch torch."""
        base: Any = nn.Module
        call = base.__call__

        @functools.wraps(call)
        def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
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
                self._returns_loss = any(t.numel() == 1 and t.requires_grad for t in trees.leaves(_tree(output)))
                return output
            finally:
                self._inside = False

        base.__call__ = called
        for name in LOSSES:
            setattr(F, name, self._fed_loss(getattr(F, name)))

    def taken(self) -> dict[str, Any]:
        """Return what was seen since the last update, and begin again."""
        seen = {"passes": self.passes, "rows": self._rows, "drew": self._drew}
        self.passes, self._rows, self._drew = 0, [], 0
        return seen

    def record(self) -> dict[str, Any]:
        """Return what was seen in all updates."""
        return {
            "arguments": self._arguments,
            "targets": self._targets,
            "returns_loss": self._returns_loss,
            "begun": self._begun,
            "values": self._values,
            "misfits": self._misfits,
            "unwritten": self._unwritten,
            "generators": self._generators,
            "sharded": self._sharded,
        }

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
        if self._feed is not None:
            with suppress(LookupError):
                union = self._feed.inputs("arguments", len(self._arguments))
                args, kwargs = tuple(trees.filled(list(args), union[0])), trees.filled(kwargs, union[1])
        if self._numerics.double:
            args, kwargs = trees.doubled(args), trees.doubled(kwargs)
        given = [tensor for tensor in trees.leaves([list(args), kwargs]) if not tensor.requires_grad]
        self._rows += trees.row_digests(given)
        self._keep(self._arguments, [list(args), kwargs])
        return args, kwargs

    def _keep(self, kept: list[Any], tree: Any) -> None:
        try:
            kept.append(trees.plain(tree) if self._keeps_inputs() else None)
        except trees.NotKept as error:
            self.not_kept = str(error)
            kept.append(None)

    def _begin(self, module: nn.Module) -> None:
        """Give a module its precision and its weights, and note with what it begins."""
        self._numerics.prepare(module)
        if not self._generators:
            self._generators = _generators()
        named = self.names.add(module)
        if self._start is not None:
            self._misfits += load(named, self._start)
            return
        parameters = {name: tensor for name, tensor in named.items() if isinstance(tensor, nn.Parameter)}
        self._sharded = self._sharded or is_sharded(parameters.values())
        for name, tensor in named.items():
            value = whole(tensor)
            if value.is_floating_point() and bool(value.isnan().any()):
                self._unwritten.append(name)
            if name in parameters:
                self._begun[name] = trees.digest(value)
            if self._keeps_values:
                self._values[name] = value

    def _fed_loss(self, loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @functools.wraps(loss)
        def fed(input: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            if self._inside or not input.requires_grad or target.requires_grad:
                return loss(input, trees.doubled(target) if input.dtype == torch.float64 else target, *args, **kwargs)
            if self._feed is not None:
                with suppress(LookupError):
                    target = trees.filled(target, self._feed.inputs("targets", len(self._targets)))
            if self._numerics.double:
                target = trees.doubled(target)
            self._keep(self._targets, target)
            return loss(input, target, *args, **kwargs)

        return fed


def _generators() -> str:
    """Return a digest of the states of torch's generators, that of a GPU included."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states.append(torch.cuda.get_rng_state())
    return "".join(map(trees.digest, states))


def _tree(output: Any) -> Any:
    """Return an output of a module as a tree; objects with fields, such as a dataclass, count as their fields."""
    return vars(output) if hasattr(output, "__dict__") and not isinstance(output, Tensor) else output
