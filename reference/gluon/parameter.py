"""One parameter with a copy and a gradient on every device, and the state of each gradient since the last update."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from reference.all_reduce import AllReduce
from reference.gluon.split import copyto


class DeferredInitializationError(RuntimeError):
    """Replicas or values were read before the first forward, which infers the shapes."""


class Parameter:
    """A named parameter on several devices.

    The copies are bit-equal until the caller changes one alone. A gradient is *stale* from the update that used it to
    the next backward that writes it, and *summed* from the all-reduce to the update. Before the first forward of a net
    with lazy layers there are no copies, and reading them raises DeferredInitializationError.
    """

    def __init__(self, name: str, devices: Sequence[torch.device]) -> None:
        self.name = name
        self.devices = list(devices)
        self._copies: list[nn.Parameter] = []
        self._gradients: list[_Gradient] = []

    def attach(self, copies: Sequence[nn.Parameter]) -> None:
        """Set the leaf tensors, one per device; their ``requires_grad`` must not change afterwards."""
        self._copies = list(copies)
        self._gradients = [_Gradient(f"{self.name!r} on {self.where(rank)}") for rank in range(len(copies))]
        for copy, gradient in zip(self._copies, self._gradients, strict=True):
            if copy.requires_grad:
                copy.register_post_accumulate_grad_hook(gradient.written)  # type: ignore[no-untyped-call]

    def list_data(self) -> list[nn.Parameter]:
        """Return the copies themselves, one per device."""
        if not self._copies:
            raise DeferredInitializationError(
                f"parameter {self.name!r} has no values yet, because its net has lazy layers: call the net with one "
                "minibatch first, or give every layer its input size"
            )
        return list(self._copies)

    def data(self, device: torch.device | int) -> nn.Parameter:
        """Return the copy on one device, which is named as in `rank_of`."""
        return self.list_data()[rank_of(device, self.devices, f"parameter {self.name!r}")]

    def list_grad(self) -> list[Tensor | None]:
        """Return the gradients, one per device: None before a backward has reached it and again after each update.

        Raises:
            RuntimeError: the parameter is frozen.
        """
        copies = self.list_data()
        if not self.trained:
            raise RuntimeError(
                f"parameter {self.name!r} has no gradient because it is frozen: set requires_grad before making the net"
            )
        return [copy.grad for copy in copies]

    def grad(self, device: torch.device | int) -> Tensor | None:
        """Return the gradient on one device, which is named as in `rank_of`; raises as `list_grad` does."""
        return self.list_grad()[rank_of(device, self.devices, f"parameter {self.name!r}")]

    def set_data(self, value: Tensor) -> None:
        """Write a value of the parameter's shape into every copy, in place."""
        for copy in self.list_data():
            copyto(value, copy)

    def zero_grad(self) -> None:
        """Clear the gradients on all devices."""
        for copy, gradient in zip(self._copies, self._gradients, strict=True):
            copy.grad, gradient.sum, gradient.filled = None, None, False

    @property
    def trained(self) -> bool:
        """Whether the parameter is trained: False if it is frozen."""
        return any(copy.requires_grad for copy in self.list_data())

    def where(self, rank: int) -> str:
        """Return the name of the device of this rank, with the rank where the device is listed several times."""
        device = self.devices[rank]
        return f"{device} (number {rank})" if self.devices.count(device) > 1 else str(device)

    def stale(self) -> list[int]:
        """Return the ranks of the devices that no backward has given a gradient since the last update."""
        pairs = zip(self._copies, self._gradients, strict=True)
        return [rank for rank, (copy, gradient) in enumerate(pairs) if copy.grad is None or gradient.filled]

    def is_summed(self) -> bool:
        """Return whether every device holds the sum, or no device holds a gradient."""
        held = [copy.grad is not None for copy in self._copies]
        return not any(held) or (all(held) and all(gradient.sum is not None for gradient in self._gradients))

    def reduce(self, all_reduce_: AllReduce) -> None:
        """Replace the gradient on every device by their sum; a second call before the next backward changes nothing.

        A device whose gradient is stale contributes zeros, and receives the sum like the others. If the gradient is
        stale on all devices, nothing happens.

        Raises:
            RuntimeError: some devices still hold an earlier sum, and others a new gradient of their own.
        """
        if self.is_summed():
            return
        pairs = list(zip(self._copies, self._gradients, strict=True))
        if any(gradient.sum is not None and copy.grad is not None for copy, gradient in pairs):
            raise RuntimeError(
                f"parameter {self.name!r} holds a sum on some of its {len(pairs)} devices and a gradient of their "
                "own on others: update after allreduce_grads, or call zero_grad, before the next backward"
            )
        grads = []
        for copy, gradient in pairs:
            if copy.grad is None:
                copy.grad, gradient.filled = torch.zeros_like(copy), True
            grads.append(copy.grad)
        all_reduce_(grads)
        for (_, gradient), grad in zip(pairs, grads, strict=True):
            gradient.sum = grad


class _Gradient:
    """The state of the gradient on one device. It holds no reference to the parameter, which it would keep alive."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.sum: Tensor | None = None
        """The gradient tensor while it holds the all-reduce's sum."""
        self.filled = False
        """Whether the device contributed zeros to the all-reduce, having no gradient."""

    def written(self, copy: Tensor) -> None:
        """Record, as a hook, that a backward has written the gradient; RuntimeError where it added to the sum."""
        into_the_sum = self.sum is not None and copy.grad is self.sum
        self.sum, self.filled = None, False
        if into_the_sum:
            raise RuntimeError(
                f"a backward has added to the summed gradient of parameter {self.label}: update after allreduce_grads, "
                "or call zero_grad, before the next backward"
            )


def rank_of(device: torch.device | int, devices: Sequence[torch.device], what: str) -> int:
    """Return the index of a device in a list; of one that is listed several times, the index itself is given.

    Raises:
        ValueError: the device is not in the list, or several times, or the index is out of range. The message names
            `what` has copies on these devices.
    """
    listed = ", ".join(map(str, devices))
    if isinstance(device, int):
        if not 0 <= device < len(devices):
            raise ValueError(f"{what} has no device number {device}: it is on {len(devices)} devices, {listed}")
        return device
    ranks = [rank for rank, candidate in enumerate(devices) if candidate == device]
    if not ranks:
        raise ValueError(f"{what} is not on {device}: it is on {listed}")
    if len(ranks) > 1:
        raise ValueError(f"{what} is on {device} {len(ranks)} times: name one by its number, {ranks}")
    return ranks[0]
