"""A network with a replica on every device; all start from the same values, also where shapes are inferred."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from reference.gluon.parameter import DeferredInitializationError, Parameter, rank_of


class Net:
    """Any module, initialised on a list of devices (gluon.Block.initialize with a list of contexts).

    Replicas are copies of one module, so they start bit-equal, buffers included. A lazy module cannot be copied before
    its shapes are known: the first call of the net makes its replicas, and reading them or a parameter's values earlier
    raises. No other call may run at the same time as the first; later ones may come from several threads.

    Args:
        module: the network. It is copied and not changed, except that the first call sets the shapes of a lazy one.
        devices: at least one; a device may be listed several times.
        init: draws the values (see `reference.models.init.INITS`). It gets the module after its shapes are known, so
            that it reaches lazy layers too. By default the values are those that the constructors drew.

    Raises:
        ValueError: there are no devices.
    """

    def __init__(
        self, module: nn.Module, devices: Sequence[torch.device], *, init: Callable[[nn.Module], None] | None = None
    ) -> None:
        if not devices:
            raise ValueError("devices is empty: name at least one device to initialise the net on")
        self.devices = list(devices)
        self._init = init
        self._replicas: list[nn.Module] = []
        self._parameters = {name: Parameter(name, devices) for name, _ in module.named_parameters()}
        self._deferred = module if _lazy(module) else None
        if self._deferred is None:
            self._replicate(module)

    def __call__(self, X: Tensor, device: torch.device | int | None = None) -> Any:
        """Call the replica on one device; the first call completes a deferred initialisation on all devices.

        Args:
            X: samples (n, ...) on that device.
            device: the device, or its index in the list where it is listed twice; X's own device by default.

        Raises:
            ValueError: the net has no replica on that device, or several.
            RuntimeError: after the first forward some shapes are still unknown.
        """
        rank = rank_of(X.device if device is None else device, self.devices, "the net")
        if self._deferred is not None:
            self._complete(self._deferred, X)
        return self._replicas[rank](X)

    @property
    def replicas(self) -> list[nn.Module]:
        """One module per device; DeferredInitializationError where there has been no forward yet."""
        if self._deferred is not None:
            raise DeferredInitializationError(
                "the net has no replicas yet, because it has lazy layers: call it with one minibatch first, or give "
                "every layer its input size"
            )
        return list(self._replicas)

    def collect_params(self) -> dict[str, Parameter]:
        """Return the parameters by name, a shared one once; they may still have no values."""
        return dict(self._parameters)

    def zero_grad(self) -> None:
        """Clear all gradients on all devices."""
        for parameter in self._parameters.values():
            parameter.zero_grad()

    def _complete(self, module: nn.Module, X: Tensor) -> None:
        """Infer the shapes from one sample, without changing running statistics or the dropout's generator."""
        training = [part for part in module.modules() if part.training]
        device = next(chain(module.parameters(), module.buffers())).device
        module.eval()
        try:
            with torch.no_grad():
                module(X[:1].to(device))
        finally:
            for part in training:
                part.training = True
        if _lazy(module):
            raise RuntimeError(
                "the forward has not used every lazy layer, so that some shapes stay unknown: give the layers it does "
                "not use their input size"
            )
        self._deferred = None
        self._replicate(module)

    def _replicate(self, module: nn.Module) -> None:
        original = copy.deepcopy(module)
        if self._init is not None:
            self._init(original)
        self._replicas = [copy.deepcopy(original).to(device) for device in self.devices]
        by_device = [dict(replica.named_parameters()) for replica in self._replicas]
        for name, parameter in self._parameters.items():
            parameter.attach([named[name] for named in by_device])


def _lazy(module: nn.Module) -> bool:
    return any(is_lazy(tensor) for tensor in chain(module.parameters(), module.buffers()))
