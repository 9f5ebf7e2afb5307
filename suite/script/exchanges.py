"""Counts how often a script exchanges gradients between two updates (worker's side).

A pass through DistributedDataParallel exchanges unless `no_sync` forbids it. What is exchanged by calls of
torch.distributed, as by FSDP2 or by hand, is counted in values. Not covered: exchanges by other libraries, or by
gathering.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from suite.script.trees import leaves

# Those that FSDP2 calls differ from version to version.
REDUCING = (
    "all_reduce", "all_reduce_coalesced", "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single", "reduce",
)  # fmt: skip


class Exchanges:
    """What was exchanged since the last update.

    Attributes:
        passes: through DistributedDataParallel that exchange gradients.
        values: that calls of torch.distributed reduced.
        backwards: calls of `backward`.
    """

    def __init__(self) -> None:
        self.passes = self.values = self.backwards = 0

    def install(self) -> None:
        """Patch torch."""
        for name in filter(partial(hasattr, dist), REDUCING):
            counted = self._counted(getattr(dist, name))
            setattr(dist, name, counted)
            setattr(dist.distributed_c10d, name, counted)
        wrapper: Any = DistributedDataParallel
        wrapper.forward = self._passes(wrapper.forward)
        torch.autograd.backward = self._begins(torch.autograd.backward)

    def taken(self) -> dict[str, int]:
        """Return the counts, and begin again."""
        counts = {"passes": self.passes, "values": self.values, "backwards": self.backwards}
        self.passes = self.values = self.backwards = 0
        return counts

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def counted(*args: Any, **kwargs: Any) -> Any:
            # Of what goes in and what comes out the larger one is the message.
            sizes = [sum(t.numel() for t in leaves(each)) for each in (*args, *kwargs.values())]
            self.values += max(sizes, default=0)
            return call(*args, **kwargs)

        return counted

    def _begins(self, backward: Callable[..., None]) -> Callable[..., None]:
        @wraps(backward)
        def begins(*args: Any, **kwargs: Any) -> None:
            self.backwards += 1
            backward(*args, **kwargs)

        return begins

    def _passes(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(forward)
        def passes(wrapper: DistributedDataParallel, *args: Any, **kwargs: Any) -> Any:
            self.passes += torch.is_grad_enabled() and bool(wrapper.require_backward_grad_sync)
            return forward(wrapper, *args, **kwargs)

        return passes
