"""Makes what k ranks compute comparable with one: float64, no dropout, running statistics, no compiler (worker's side).

Patches torch in this process, before a script is loaded, for as long as the process lives. What is patched keeps its
signature. Not covered: casts that a model makes itself, and random numbers that it draws by other means.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import fsdp
from torch.distributed.fsdp import _fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from suite.script import trees

DROPOUTS = ("dropout", "alpha_dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout")


class Numerics:
    """What was switched off.

    Attributes:
        double: whether floating-point numbers are float64.
        dropout: whether the script would drop something out.
        batch_norm: whether a batch would be normalised by its own statistics.
        compressed: whether it sends gradients in a form of its own.
    """

    def __init__(self, *, double: bool) -> None:
        self.double = double
        self.dropout = self.compressed = self.batch_norm = False

    def install(self) -> None:
        """Patch torch."""
        torch.compiler.set_stance("force_eager")
        for name in DROPOUTS:
            setattr(F, name, self._without_dropout(getattr(F, name)))
        F.scaled_dot_product_attention = self._attends_without_dropout(F.scaled_dot_product_attention)
        F.batch_norm = self._by_running_statistics(F.batch_norm)
        sync: Any = nn.SyncBatchNorm
        sync.forward = _sync_batch_norm
        wrapper: Any = DistributedDataParallel
        wrapper.__init__ = self._wraps_double(wrapper.__init__)
        wrapper.register_comm_hook = self._notes_compression(wrapper.register_comm_hook)
        base: Any = nn.Module
        base.to_empty = _marked(base.to_empty)
        shard: Any = self._shards_double(fsdp.fully_shard)
        modules: list[Any] = [fsdp, _fully_shard, _fully_shard._fully_shard]
        for module in modules:
            module.fully_shard = shard

    def prepare(self, module: nn.Module) -> None:
        """Give a module that is about to train its precision, and leave out the dropout of recurrent layers."""
        for part in module.modules():
            if isinstance(part, nn.RNNBase) and part.dropout:
                part.dropout, self.dropout = 0.0, True
        tensors = [*module.parameters(), *module.buffers()]
        if self.double and any(t.is_floating_point() and t.dtype != torch.float64 for t in tensors):
            module.double()

    def fitting(self, module: nn.Module, arguments: Any) -> Any:
        """Return what a module is called with in the module's precision."""
        if not self.double or not any(t.is_floating_point() for t in trees.leaves(arguments)):
            return arguments
        first = next(module.parameters(), None)
        return trees.doubled(arguments) if first is not None and first.dtype == torch.float64 else arguments

    def _without_dropout(self, dropout: Callable[..., Tensor]) -> Callable[..., Tensor]:
        signature = inspect.signature(dropout)

        @functools.wraps(dropout)
        def kept(*args: Any, **kwargs: Any) -> Tensor:
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            self.dropout = self.dropout or bool(given.arguments["training"] and given.arguments["p"])
            kept_whole: Tensor = given.arguments["input"]
            return kept_whole

        return kept

    def _attends_without_dropout(self, attention: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @functools.wraps(attention)
        def attend(
            query: Tensor,
            key: Tensor,
            value: Tensor,
            attn_mask: Any = None,
            dropout_p: float = 0.0,
            *args: Any,
            **how: Any,
        ) -> Tensor:
            self.dropout = self.dropout or bool(dropout_p)
            return attention(query, key, value, attn_mask, 0.0, *args, **how)

        return attend

    def _wraps_double(self, init: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(init)
        def wrap(wrapper: nn.Module, module: nn.Module, *args: Any, **kwargs: Any) -> None:
            self.prepare(module)
            if self.double:
                kwargs.pop("mixed_precision", None)
            init(wrapper, module, *args, **kwargs)

        return wrap

    def _shards_double(self, shard: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(shard)
        def fully_shard(module: Any, **kwargs: Any) -> Any:
            for each in module if isinstance(module, list) else [module]:
                self.prepare(each)
            if self.double:
                kwargs.pop("mp_policy", None)
            return shard(module, **kwargs)

        return fully_shard

    def _by_running_statistics(self, batch_norm: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @functools.wraps(batch_norm)
        def normalise(
            input: Tensor,
            running_mean: Tensor | None,
            running_var: Tensor | None,
            weight: Tensor | None = None,
            bias: Tensor | None = None,
            training: bool = False,
            momentum: float = 0.1,
            eps: float = 1e-5,
        ) -> Tensor:
            self.batch_norm = self.batch_norm or training
            if running_mean is None or running_var is None:
                running_mean, running_var = input.new_zeros(input.shape[1]), input.new_ones(input.shape[1])
            return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)

        return normalise

    def _notes_compression(self, register: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(register)
        def noted(*args: Any, **kwargs: Any) -> None:
            self.compressed = True
            register(*args, **kwargs)

        return noted


def _marked(to_empty: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """Have `to_empty` fill what it makes with NaN: memory that nothing writes would be another one in every run."""

    @functools.wraps(to_empty)
    @torch.no_grad()
    def marked(module: nn.Module, *, device: Any, recurse: bool = True) -> nn.Module:
        emptied = to_empty(module, device=device, recurse=recurse)
        for tensor in (*emptied.parameters(recurse), *emptied.buffers(recurse)):
            if tensor.is_floating_point():
                tensor.fill_(torch.nan)
        return emptied

    return marked


def _sync_batch_norm(module: nn.SyncBatchNorm, input: Tensor) -> Tensor:
    """Stand in for the forward of SyncBatchNorm, which exchanges statistics without F.batch_norm."""
    return F.batch_norm(
        input, module.running_mean, module.running_var, module.weight, module.bias, True, eps=module.eps
    )
