"""What the ranks of a script exchange between two updates, and whether they share one model (worker's side).

A pass through DistributedDataParallel exchanges gradients unless `no_sync` forbids it. What is exchanged by calls of
torch.distributed, as by FSDP2 or by hand, is counted in values. Not covered: exchanges by other libraries, or by
gathering.

Ranks that share one model are not data-parallel. That is recognised by DTensor (tensor parallelism), the stages of
torch's pipelines, and rows that an all_to_all sends to other ranks, as to experts. Not covered: a model or a sequence
that is split by hand.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from suite.script.patching import wrap
from suite.script.trees import leaves

# Those that FSDP2 calls differ from version to version.
REDUCING = (
    "all_reduce", "all_reduce_coalesced", "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single", "reduce",
)  # fmt: skip
ROUTING = ("all_to_all", "all_to_all_single", "all_to_all_single_autograd")


class Exchanges:
    """What was exchanged since the last update.

    Attributes:
        passes: through DistributedDataParallel that exchange gradients.
        values: that calls of torch.distributed reduced.
        backwards: calls of `backward`.
    """

    def __init__(self) -> None:
        self.passes = self.values = self.backwards = 0
        self._routes = False

    def install(self) -> None:
        """Patch torch."""
        from torch.distributed import _functional_collectives as functional

        for name in REDUCING:
            wrap(dist, name, self._reduce)
        for name in ROUTING:
            wrap(dist, name, self._route)
            wrap(functional, name, self._route)
        wrap(DistributedDataParallel, "forward", self._pass)
        wrap(torch.autograd, "backward", self._go_back)

    def taken(self) -> dict[str, int]:
        """Return the counts, and begin again."""
        counts = {"passes": self.passes, "values": self.values, "backwards": self.backwards}
        self.passes = self.values = self.backwards = 0
        return counts

    def shared_by(self, modules: Iterable[nn.Module]) -> str:
        """Return in words how ranks share the modules that train; "" where each rank has them whole."""
        if _has_stages():
            return "the stages of a pipeline"
        if self._routes:
            return "rows that an all_to_all sends to other ranks"
        return "tensor parallelism" if any(map(_has_parts, modules)) else ""

    def _reduce(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # Of what goes in and what comes out the larger one is the message.
        sizes = [sum(t.numel() for t in leaves(each)) for each in (*args, *kwargs.values())]
        self.values += max(sizes, default=0)
        return call(*args, **kwargs)

    def _route(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._routes = self._routes or torch.is_grad_enabled()
        return call(*args, **kwargs)

    def _pass(self, forward: Callable[..., Any], wrapper: DistributedDataParallel, /, *args: Any, **kwargs: Any) -> Any:
        self.passes += torch.is_grad_enabled() and bool(wrapper.require_backward_grad_sync)
        return forward(wrapper, *args, **kwargs)

    def _go_back(self, backward: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        self.backwards += 1
        backward(*args, **kwargs)


def _has_stages() -> bool:
    stages = sys.modules.get("torch.distributed.pipelining.stage")
    return stages is not None and any(isinstance(found, stages._PipelineStageBase) for found in gc.get_objects())


def _has_parts(module: nn.Module) -> bool:
    """Return whether something beside FSDP, which shards one dimension of its mesh, made parameters DTensors."""
    fsdp = getattr(dist, "fsdp", None)
    managed = {
        id(parameter)
        for each in module.modules()
        if fsdp is not None and isinstance(each, fsdp.FSDPModule)
        for parameter in each.parameters()
    }
    parts: list[Any] = [parameter for parameter in module.parameters() if hasattr(parameter, "placements")]
    return any(
        id(part) not in managed or (part.device_mesh.ndim > 1 and not part.placements[0].is_replicate())
        for part in parts
    )
