"""torch's nn.DataParallel, or its counterpart for CPU devices: the replicas are made again at every step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reference.cpu_data_parallel import CPUDataParallel, refuse_compiled
from reference.sgd import sgd_


def data_parallel(module: nn.Module, devices: Sequence[torch.device]) -> nn.Module:
    """Wrap a module if there are several devices, then move it to the first (PyTorch's data parallelism tutorial).

    The result maps the whole batch to the whole output, on ``devices[0]``; the module is moved, not copied. ValueError
    where the devices are not all CUDA or all CPU.
    """
    kinds = {device.type for device in devices}
    if len(kinds) != 1:
        raise ValueError(f"devices are of {len(kinds)} kinds, {sorted(kinds)}: data parallelism needs exactly one kind")
    if len(devices) > 1:
        module = _DataParallel(module, list(devices)) if kinds == {"cuda"} else CPUDataParallel(module, devices)
    return module.to(devices[0])


class _DataParallel(nn.DataParallel[nn.Module]):
    def replicate(self, module: nn.Module, device_ids: Sequence[int | torch.device]) -> list[nn.Module]:
        refuse_compiled(module)
        return super().replicate(module, device_ids)

    def parallel_apply(self, replicas: Sequence[Any], inputs: Sequence[Any], kwargs: Any) -> list[Any]:
        calls: list[Any] = [in_callers_dtype(replica) for replica in replicas]
        return super().parallel_apply(calls, inputs, kwargs)


def in_callers_dtype(module: nn.Module, device: str = "cuda") -> Callable[..., Any]:
    """Return a function that calls a module in another thread with the dtype that autocast has in this one.

    torch keeps that dtype per thread, and the threads of nn.DataParallel begin with its default, float16.
    """
    dtype = torch.get_autocast_dtype(device)

    def call(*inputs: Any, **named: Any) -> Any:
        torch.set_autocast_dtype(device, dtype)  # the wrapper's own context restores what it was
        return module(*inputs, **named)

    return call


class DataParallelTrainer:
    """SGD on the mean cross-entropy of a data-parallel module.

    Each replica normalises by its own shard; only the first one's running statistics survive the step. There is no
    ``step_unsynced``, because the exchange is part of the wrapper's forward and backward.
    """

    processes: ClassVar[Literal["one", "per-device"]] = "one"

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        self.module = copy.deepcopy(model)
        self.net = data_parallel(self.module, devices)
        self.lr = lr

    def step(self, X: Tensor, y: Tensor, global_batch_size: int) -> Tensor:
        """Update the module with the gradient of the whole batch; see `Trainer.step`."""
        loss = F.cross_entropy(self.net(X), y, reduction="sum")
        torch.autograd.backward(loss)
        sgd_(self.module.parameters(), self.lr, global_batch_size)
        return loss.detach() / global_batch_size

    @property
    def replicas(self) -> list[nn.Module]:
        """The module that all replicas are made from."""
        return [self.module]

    def close(self) -> None:
        """End the threads of CPU replicas."""
        if isinstance(self.net, CPUDataParallel):
            self.net.close()
