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

    Three departures from MXNet, each so that replicas stay bit-equal whatever is called in whichever order:

    - `step` after `allreduce_grads` does not sum again. MXNet's does, and every gradient comes out k times too large.
    - With ``ignore_stale_grad`` MXNet leaves out the stale *copies*: the others are updated, and replicas drift apart.
      Here a device whose gradient is stale adds zeros to the sum and is updated with it like the others, which is also
      what one device would compute; a parameter that is stale on all devices stays as it is.
    - `update` insists on gradients that are summed.

    Args:
        params: a net, or its ``collect_params()``; may still be deferred.
        lr: learning rate; may be changed between steps.
        all_reduce_: sums the gradients in place. None leaves each device with its own, and the replicas drift.
        per_device: runs the update on all devices at once; in turn by default.
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
        """Sum the gradients, unless `allreduce_grads` has, and update; see `update`."""
        self.allreduce_grads()
        self.update(batch_size, ignore_stale_grad=ignore_stale_grad)

    def allreduce_grads(self) -> None:
        """Leave on every device the sum of the gradients since the last update; to clip them, say, before `update`.

        Calling it again before the next backward changes nothing.

        Raises:
            RuntimeError: some device took part in a backward since the last sum, and another still holds that sum.
            DeferredInitializationError: there has been no forward yet.
        """
        for parameter in self._trained():
            if self.all_reduce_ is not None:
                parameter.reduce(self.all_reduce_)

    def update(self, batch_size: int, *, ignore_stale_grad: bool = False) -> None:
        """Set every copy p to p - lr * grad / batch_size and forget the gradients. Nothing changes if it raises.

        Args:
            batch_size: what the summed gradient is divided by. It is the caller's: a last minibatch of 96 stepped with
                256 is 0.375 of a step on its mean loss, and 1 is right for losses that are means already.
            ignore_stale_grad: allow gradients that no backward has written since the last update.

        Raises:
            ValueError: ``batch_size`` is below 1.
            RuntimeError: a gradient is stale, or not summed over the devices.
            DeferredInitializationError: there has been no forward yet.
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
