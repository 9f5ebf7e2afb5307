"""A network with a replica on every device, all starting from the same values, also when shapes are inferred."""

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

    Replicas are copies of one module, so that they start bit-equal, buffers included. A lazy module cannot be copied
    before its shapes are known: its replicas are made by the first call of the net, and asking for them or for a
    parameter's values before is an error. That first call must be alone; later ones may come from several threads.

    Args:
        module: the network. It is copied and stays as it is; only the shapes of a lazy one are filled in by the first
            call.
        devices: at least one; the same device may stand there several times.
        init: draws the values, given the module once its shapes are known, so that lazy layers do not escape it (see
            `reference.models.init.INITS`). By default they stay as the module's constructors draw them.

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
        """Call the replica on one device; the first call completes a deferred initialisation on all of them.

        Args:
            X: samples (n, ...) on that device.
            device: where, as in `Parameter.data`; X's own device by default.

        Returns:
            What the module returns.

        Raises:
            ValueError: the net has no replica there, or several.
        """
        rank = rank_of(X.device if device is None else device, self.devices, "the net")
        if self._deferred is not None:
            self._complete(self._deferred, X)
        return self._replicas[rank](X)

    @property
    def replicas(self) -> list[nn.Module]:
        """One module a device.

        Raises:
            DeferredInitializationError: there has been no forward yet.
        """
        if self._deferred is not None:
            raise DeferredInitializationError(
                "the net has no replicas yet, because it has lazy layers: call it with one minibatch first, or give "
                "every layer its input size"
            )
        return list(self._replicas)

    def collect_params(self) -> dict[str, Parameter]:
        """Return the parameters by name, a shared one once; their values may still be deferred."""
        return dict(self._parameters)

    def zero_grad(self) -> None:
        """Forget all gradients on all devices."""
        for parameter in self._parameters.values():
            parameter.zero_grad()

    def _complete(self, module: nn.Module, X: Tensor) -> None:
        """Infer the shapes from one sample, without a trace in running statistics or in the dropout's generator."""
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
