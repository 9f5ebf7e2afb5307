"""Makes what k ranks compute comparable with one: float64, no dropout, running statistics, no compiler (worker's side).

Patches torch in this process, before a script is loaded, for as long as the process lives. What is patched keeps its
signature. Not covered: casts that a model makes itself, and random numbers that it draws by other means.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import fsdp
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from suite.script import trees
from suite.script.patching import wrap

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
            wrap(F, name, self._keep_whole)
        wrap(F, "scaled_dot_product_attention", self._attend_to_all)
        wrap(F, "batch_norm", self._normalise)
        wrap(nn.SyncBatchNorm, "forward", _sync_batch_norm)
        wrap(nn.Module, "to_empty", _mark)
        wrap(DistributedDataParallel, "__init__", self._wrap_prepared)
        wrap(DistributedDataParallel, "register_comm_hook", self._note_compression)
        wrap(fsdp, "fully_shard", self._shard_prepared)

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

    def _keep_whole(self, dropout: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Any:
        given = _arguments(dropout, args, kwargs)
        self.dropout = self.dropout or bool(given["training"] and given["p"])
        return given["input"]

    def _attend_to_all(
        self,
        attention: Callable[..., Tensor],
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

    def _normalise(self, batch_norm: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        """Normalise by running statistics, or by none where there are none."""
        given = _arguments(batch_norm, args, kwargs)
        self.batch_norm = self.batch_norm or given["training"]
        if given["running_mean"] is None or given["running_var"] is None:
            rows, features = given["input"], given["input"].shape[1]
            given |= {"running_mean": rows.new_zeros(features), "running_var": rows.new_ones(features)}
        return batch_norm(**given | {"training": False})

    def _wrap_prepared(
        self, init: Callable[..., None], wrapper: Any, module: nn.Module, *args: Any, **how: Any
    ) -> None:
        self.prepare(module)
        if self.double:
            how.pop("mixed_precision", None)
        init(wrapper, module, *args, **how)

    def _shard_prepared(self, shard: Callable[..., Any], module: Any, **how: Any) -> Any:
        for each in module if isinstance(module, list) else [module]:
            self.prepare(each)
        if self.double:
            how.pop("mp_policy", None)
        return shard(module, **how)

    def _note_compression(self, register: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        self.compressed = True
        register(*args, **kwargs)


def _arguments(call: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the arguments of a call by name, with their defaults."""
    given = inspect.signature(call).bind(*args, **kwargs)
    given.apply_defaults()
    return given.arguments


@torch.no_grad()
def _mark(to_empty: Callable[..., nn.Module], module: nn.Module, *, device: Any, recurse: bool = True) -> nn.Module:
    """Have `to_empty` fill what it makes with NaN: memory that nothing writes would be another one in every run."""
    emptied = to_empty(module, device=device, recurse=recurse)
    for tensor in (*emptied.parameters(recurse), *emptied.buffers(recurse)):
        if tensor.is_floating_point():
            tensor.fill_(torch.nan)
    return emptied


def _sync_batch_norm(forward: Callable[..., Tensor], module: nn.SyncBatchNorm, input: Tensor) -> Tensor:
    """Stand in for the forward of SyncBatchNorm, which exchanges statistics without F.batch_norm."""
    return F.batch_norm(
        input, module.running_mean, module.running_var, module.weight, module.bias, True, eps=module.eps
    )
