"""Ranks of a script that exchange nothing: the default group is torch's `fake` one (worker's side).

What is exchanged as objects stays real, because scripts read it: it goes over a group of gloo that is beside each of
the script's own. Collectives of tensors leave their results as they were, so a script whose control flow reads them may
go another way; its times are then not those of its ranks.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from suite.script.patching import wrap

REGISTERS = "torch.testing._internal.distributed.fake_pg"  # the backend, when it is imported
OF_OBJECTS = ("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list")

Function = Callable[..., Any]


class Apart:
    """What a script's process groups become.

    Attributes:
        real: the group of all ranks that does exchange; None until the script has joined one.
    """

    def __init__(self) -> None:
        """Patch torch."""
        importlib.import_module(REGISTERS)
        self.real: dist.ProcessGroup | None = None
        self._twins: dict[dist.ProcessGroup | None, dist.ProcessGroup] = {}
        wrap(dist, "init_process_group", functools.partial(self._join, dist.new_group))
        wrap(dist, "new_group", self._make)
        wrap(dist, "monitored_barrier", lambda *args, **kwargs: None)
        for name in OF_OBJECTS:
            wrap(dist, name, self._exchange)
        wrap(DistributedDataParallel, "__init__", _without_exchange)

    def _join(self, new_group: Function, join: Function, *args: Any, **kwargs: Any) -> None:
        kwargs.update(zip(("backend", "init_method"), args, strict=False))
        for unwanted in ("pg_options", "device_id"):
            kwargs.pop(unwanted, None)
        join(**{**kwargs, "backend": "gloo"})
        self.real, fake = c10d._get_default_group(), new_group(backend="fake")
        self._twins = {None: self.real, fake: self.real}
        c10d._update_default_pg(fake)

    def _make(self, new_group: Function, ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        synchronizes = {"use_local_synchronization": bool(kwargs.get("use_local_synchronization"))}
        made = new_group(ranks, backend="fake", **synchronizes)
        self._twins[made] = new_group(ranks, backend="gloo", **synchronizes)
        return made

    def _exchange(self, exchange: Function, *args: Any, group: Any = None, **kwargs: Any) -> Any:
        kwargs.pop("device", None)
        args = tuple(self._twins.get(each, each) if isinstance(each, dist.ProcessGroup) else each for each in args)
        return exchange(*args, group=self._twins.get(group, group), **kwargs)


def _without_exchange(init: Function, wrapper: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
    init(wrapper, *args, **kwargs)
    # Its own all_reduce ends in an assertion of torch on a fake group.
    wrapper.register_comm_hook(None, lambda state, bucket: _done(bucket.buffer()))


def _done(value: torch.Tensor) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future
