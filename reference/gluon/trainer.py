"""gluon.Trainer: rescale by 1 / batch_size, sum the gradients over the devices, update every replica alike."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from torch import nn

from reference.all_reduce import ALL_REDUCE, AllReduce
from reference.gluon.net import Net
from reference.gluon.parameter import Parameter
from reference.per_device import PerDevice
from reference.sgd import sgd_


class Trainer:
    """SGD on parameters that have a copy on every device.

    It differs from MXNet in three ways, so that replicas stay bit-equal for any order of calls:

    - `step` after `allreduce_grads` does not sum again. MXNet's does, and every gradient comes out k times too large.
    - With ``ignore_stale_grad`` MXNet updates only the copies whose gradient is not stale, so replicas drift apart.
      Here a device whose gradient is stale contributes zeros to the sum and is updated like the others, which is also
      what one device would compute. A parameter that is stale on all devices stays as it is.
    - `update` requires gradients that are summed.

    Args:
        params: a net, or its ``collect_params()``; they may have no values yet.
        lr: learning rate; may be changed between steps.
        all_reduce_: sums the gradients in place. With None each device keeps its own, and the replicas drift apart.
        per_device: runs the update on all devices at once; by default it runs on one after the other.
    """

    def __init__(
        self,
        params: Net | Mapping[str, Parameter],
        lr: float,
        *,
        all_reduce_: AllReduce | None = ALL_REDUCE["naive"],
        per_device: PerDevice | None = None,
    ) -> None:
        self.parameters = list((params.collect_params() if isinstance(params, Net) else params).values())
        self.lr = lr
        self.all_reduce_ = all_reduce_
        self.per_device = per_device

    def step(self, batch_size: int, *, ignore_stale_grad: bool = False) -> None:
        """Sum the gradients, unless `allreduce_grads` has done so, and update; arguments and errors as in `update`."""
        self.allreduce_grads()
        self.update(batch_size, ignore_stale_grad=ignore_stale_grad)

    def allreduce_grads(self) -> None:
        """Replace the gradients on every device by their sum, for example to clip them before `update`.

        A second call before the next backward changes nothing. Raises as `Parameter.reduce` does.
        """
        for parameter in self._trained():
            if self.all_reduce_ is not None:
                parameter.reduce(self.all_reduce_)

    def update(self, batch_size: int, *, ignore_stale_grad: bool = False) -> None:
        """Set every copy p to p - lr * grad / batch_size and clear the gradients. If it raises, nothing has changed.

        Args:
            batch_size: divisor of the summed gradient, chosen by the caller: a last minibatch of 96 with a divisor of
                256 makes 0.375 of a step on its mean loss, and 1 is right for losses that are means already.
            ignore_stale_grad: allow gradients that no backward has written since the last update.

        Raises:
            ValueError: ``batch_size`` is below 1.
            RuntimeError: a gradient is stale, or not summed over the devices.
        """
        trained = self._trained()
        for parameter in trained:
            if self.all_reduce_ is not None and len(parameter.devices) > 1 and not parameter.is_summed():
                raise RuntimeError(
                    f"the gradient of parameter {parameter.name!r} is not summed over its {len(parameter.devices)} "
                    "devices: call allreduce_grads before update, or step, which does both"
                )
            if not ignore_stale_grad and (stale := parameter.stale()):
                raise RuntimeError(
                    f"the gradient of parameter {parameter.name!r} on {', '.join(map(parameter.where, stale))} is "
                    "stale, no backward has written it since the last update: train every parameter on every device, "
                    "or pass ignore_stale_grad=True"
                )
        by_device: list[tuple[nn.Parameter, ...]] = list(
            zip(*(parameter.list_data() for parameter in trained), strict=True)
        )
        run = partial(sgd_, lr=self.lr, batch_size=batch_size)
        if self.per_device is not None:
            self.per_device.map(run, by_device)
        else:
            for copies in by_device:
                run(copies)
        for parameter in trained:
            parameter.zero_grad()

    def _trained(self) -> list[Parameter]:
        return [parameter for parameter in self.parameters if parameter.trained]
