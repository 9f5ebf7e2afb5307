"""nn.DataParallel for CPU devices, where torch's own wrapper only calls the module.

It behaves the same: the module is replicated at every forward, once per shard; replica 0 works on the original's
buffers, so only its updates survive; outputs are gathered on the first device, scalars as a vector; gradients are
summed into the original. Unlike torch's replicas, these have working ``parameters()``. Not covered: gradients of
gradients, and a second backward through one forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils import _pytree as pytree

from reference.per_device import PerDevice
from reference.scatter import gather, scatter


class CPUDataParallel(nn.Module):
    """Wrap a module so that its forward and backward run on several CPU devices at once.

    Args:
        module: any module; its parameters stay where they are.
        devices: the CPU devices, one entry per replica; with a single one the module itself is called.
    """

    def __init__(self, module: nn.Module, devices: Sequence[torch.device]) -> None:
        super().__init__()
        self.module = module
        self.per_device = PerDevice(devices)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the module on shards of its inputs, and return its output with its tensors gathered.

        Tensors (n, ...), also inside lists, tuples and dicts, are split along their first axis; every replica gets all
        other values as they are. The output is a tensor, or lists, tuples and dicts of tensors.

        Raises:
            ValueError: the tensors do not all have the same number of samples.
            TypeError: the module's output contains something other than tensors.
        """
        leaves, structure = pytree.tree_flatten((inputs, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if len(self.per_device.devices) == 1 or not tensors:
            return self.module(*inputs, **kwargs)
        lengths = {len(tensor) for tensor in tensors if tensor.ndim}
        if len(lengths) != 1 or any(tensor.ndim == 0 for tensor in tensors):
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
            raise ValueError(f"inputs of shapes {shapes} cannot be split alike: their first axis must be the samples")
        call = _Call(self.module, self.per_device, leaves, structure)
        outputs = _Parallel.apply(call, torch.is_grad_enabled(), len(tensors), *tensors, *self.module.parameters())
        return pytree.tree_unflatten(list(outputs), call.output_structure)

    def close(self) -> None:
        """End the threads of the replicas."""
        self.per_device.close()


class _Call:
    """One forward of the wrapper: the module, its inputs, and how inputs and outputs are nested."""

    output_structure: pytree.TreeSpec

    def __init__(self, module: nn.Module, per_device: PerDevice, leaves: list[Any], structure: pytree.TreeSpec) -> None:
        self.module, self.per_device, self.leaves, self.structure = module, per_device, leaves, structure

    def run(self, replica: nn.Module, shards: Sequence[Tensor], grad: bool) -> tuple[list[Tensor], pytree.TreeSpec]:
        """Call one replica with its shards in place of the tensors; return its output tensors and their nesting."""
        remaining = iter(shards)
        leaves = [next(remaining) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        inputs, kwargs = pytree.tree_unflatten(leaves, self.structure)
        with torch.set_grad_enabled(grad):
            outputs, structure = pytree.tree_flatten(replica(*inputs, **kwargs))
        for output in outputs:
            if not isinstance(output, Tensor):
                raise TypeError(f"the module returned a {type(output).__name__}: only tensors can be gathered")
        return outputs, structure


class _Parallel(torch.autograd.Function):
    """The replicas as one node of the caller's graph.

    torch runs the backward of CPU tensors in the thread that starts it. Therefore each replica has its own graph, from
    its shard and its parameters to its outputs, and the node's backward starts each graph's in the replica's thread.
    """

    @staticmethod
    def forward(ctx: Any, call: _Call, grad: bool, n_inputs: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        inputs, parameters = tensors[:n_inputs], tensors[n_inputs:]
        devices = call.per_device.devices
        by_input = [scatter(tensor.detach(), devices) for tensor in inputs]
        shards = [
            [shard.requires_grad_(tensor.requires_grad) for shard, tensor in zip(row, inputs, strict=True)]
            for row in zip(*by_input, strict=True)
        ]
        keep_buffers = [True] + [False] * (len(shards) - 1)
        # All copies are made before any replica runs, because replica 0 changes the original's buffers.
        replicas = call.per_device.map(partial(_replicate, call.module), devices[: len(shards)], keep_buffers)
        results = call.per_device.map(lambda replica, row: call.run(replica, row, grad), replicas, shards)
        outputs = [flat for flat, _ in results]
        call.output_structure = results[0][1]

        ctx.per_device, ctx.outputs = call.per_device, outputs
        # In the order of the original's parameters().
        ctx.leaves = [[*row, *replica.parameters()] for row, replica in zip(shards, replicas, strict=True)]
        ctx.n_inputs, ctx.home = n_inputs, [tensor.device for tensor in (*inputs, *parameters)]
        gathered = [gather([output.detach() for output in row], devices[0]) for row in zip(*outputs, strict=True)]
        for whole, first in zip(gathered, outputs[0], strict=True):
            if not first.requires_grad:
                ctx.mark_non_differentiable(whole)
        return tuple(gathered)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *wholes: Tensor) -> tuple[Tensor | None, ...]:
        def replica_backward(outputs: list[Tensor], upstream: Sequence[Tensor], leaves: list[Tensor]) -> list[Any]:
            wanted = [leaf for leaf in leaves if leaf.requires_grad]
            # Scalars with the same gradient, because torch checks a gradient that it is given, and imports its symbolic
            # shapes for that: two seconds in a new process.
            with torch.enable_grad():
                pairs = zip(outputs, upstream, strict=True)
                roots = [(out * g.to(out.device)).sum() for out, g in pairs if out.requires_grad]
            grads = iter(torch.autograd.grad(roots, wanted, allow_unused=True))
            return [next(grads) if leaf.requires_grad else None for leaf in leaves]

        shards = [_split_like(whole, row) for whole, row in zip(wholes, zip(*ctx.outputs, strict=True), strict=True)]
        upstream = list(zip(*shards, strict=True))
        by_replica = ctx.per_device.map(replica_backward, ctx.outputs, upstream, ctx.leaves)
        by_leaf = list(zip(*by_replica, strict=True))
        by_input, by_parameter = by_leaf[: ctx.n_inputs], by_leaf[ctx.n_inputs :]
        of_inputs = [
            None if all(grad is None for grad in grads) else gather(_filled(grads, ctx.leaves, i), home)
            for i, (grads, home) in enumerate(zip(by_input, ctx.home[: ctx.n_inputs], strict=True))
        ]
        of_parameters = [_sum(grads, home) for grads, home in zip(by_parameter, ctx.home[ctx.n_inputs :], strict=True)]
        return None, None, None, *of_inputs, *of_parameters


def is_compiled(module: nn.Module) -> bool:
    """Return whether a module or a part of it was compiled in place, by ``module.compile()``."""
    return any(part._compiled_call_impl is not None for part in module.modules())


def refuse_compiled(module: nn.Module) -> None:
    """Raise RuntimeError if a module was compiled in place, because replicas of it would be wrong.

    A replica, of torch as well as ours, keeps the compiled call, which is bound to the original: every replica would
    compute with the original's parameters, on GPUs with those of the first one, and none would get a gradient.
    """
    if is_compiled(module):
        raise RuntimeError(
            "the module was compiled in place (module.compile()), and its replicas would run the original: leave "
            "compile off, or use a trainer with a replica of its own on each device"
        )


def _replicate(module: nn.Module, device: torch.device, keep_buffers: bool) -> nn.Module:
    """Return a copy on a device with the same structure and attributes, and new leaf parameters.

    A module or tensor that the original holds twice is one object in the copy too. With `keep_buffers` the copy shares
    the original's buffers. Raises as `refuse_compiled` does.
    """
    refuse_compiled(module)
    tensors: dict[Tensor, Tensor] = {}
    # torch's own hook for replicas, which modules that keep a second list of their weights (RNNs) override.
    modules = {original: original._replicate_for_data_parallel() for original in module.modules()}  # type: ignore[no-untyped-call]
    for original, replica in modules.items():
        for name, child in original._modules.items():
            replica._modules[name] = None if child is None else modules[child]
        for name, parameter in original._parameters.items():
            if parameter is not None and parameter not in tensors:
                fresh = parameter.detach().clone().to(device)
                tensors[parameter] = nn.Parameter(fresh, requires_grad=parameter.requires_grad)
            setattr(replica, name, None if parameter is None else tensors[parameter])
        for name, buffer in original._buffers.items():
            if buffer is not None and buffer not in tensors:
                tensors[buffer] = buffer if keep_buffers else buffer.detach().clone().to(device)
            setattr(replica, name, None if buffer is None else tensors[buffer])
    copy: nn.Module = modules[module]
    return copy


def _split_like(whole: Tensor, shards: Sequence[Tensor]) -> Sequence[Tensor]:
    """Split the gradient of a gathered output: into the shards' rows, or into single values where they are scalars."""
    return whole.unbind() if shards[0].ndim == 0 else torch.split(whole, [len(s) for s in shards])


def _filled(grads: Sequence[Tensor | None], leaves: list[list[Tensor]], i: int) -> list[Tensor]:
    """Return one gradient for each shard of input i, zeros where a replica did not use it."""
    return [torch.zeros_like(row[i]) if grad is None else grad for grad, row in zip(grads, leaves, strict=True)]


def _sum(grads: Sequence[Tensor | None], device: torch.device) -> Tensor | None:
    """Add gradients in the replicas' order; None when no replica used the parameter."""
    total: Tensor | None = None
    for grad in grads:
        if grad is not None:
            total = grad.to(device) if total is None else total + grad.to(device)
    return total
