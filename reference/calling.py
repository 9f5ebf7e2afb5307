"""Calls a model of any signature on a minibatch, and finds the scores in whatever it returns.

A training step calls its model as it likes. Whoever calls the model without it, such as an evaluation, reads the
signature of `forward`: see `calls`.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from reference.cpu_data_parallel import CPUDataParallel
from reference.nest import Nest

LABELS = ("y", "label", "labels", "target", "targets")
"""Names of the parameter of a forward that takes y."""

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments."""


class NoScores(ValueError):
    """Nothing that a model returns has a score of every class for every label."""


def calls(net: nn.Module, X: Nest, y: Nest) -> list[Call]:
    """Return the ways to call a model on a minibatch, the first choice first.

    - A dict X whose keys are all parameters of `forward` is passed as keyword arguments, any other X as the first
      argument.
    - y is passed where `forward` requires one more argument: the parts of a dict that have its parameters' names, or
      the whole. Where a parameter of one of the names `LABELS` has a default, y is left out at first, and passed in the
      second way.
    """
    try:
        parameters = list(inspect.signature(unwrapped(net).forward).parameters.values())
    except (TypeError, ValueError):  # a compiled script has none
        return [((X,), {})]
    any_name = any(one.kind is one.VAR_KEYWORD for one in parameters)
    any_position = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    names = {one.name for one in named}
    by_name = isinstance(X, dict) and (X.keys() <= names or (any_name and not positional and not any_position))
    filled = set(X) if by_name else {one.name for one in positional[:1]}
    args, kwargs = ((), dict(X)) if by_name else ((X,), {})
    free = [one for one in named if one.name not in filled]
    required = [one.name for one in free if one.default is one.empty]
    optional = [one.name for one in free if one.default is not one.empty and one.name in LABELS]
    least = (args, kwargs | _labels(y, required))
    return [least, (args, least[1] | _labels(y, optional[:1]))] if optional else [least]


def _labels(y: Nest, names: list[str]) -> dict[str, Any]:
    """Return y as keyword arguments of these names."""
    if isinstance(y, dict) and any(name in y for name in names):
        return {name: y[name] for name in names if name in y}
    return dict.fromkeys(names[:1], y)


def unwrapped(net: nn.Module) -> nn.Module:
    """Return the model itself, without what wraps it for data parallelism or torch.compile."""
    while True:
        if isinstance(net, (nn.parallel.DistributedDataParallel, nn.DataParallel, CPUDataParallel)):
            net = net.module
        elif isinstance(compiled := net._modules.get("_orig_mod"), nn.Module):
            net = compiled
        else:
            return net


def tensors(value: Any) -> list[Tensor]:
    """Return the tensors in what a model takes or returns, in their order.

    Looked into are mappings, lists, tuples, dataclasses, and the attributes of other plain objects.
    """
    found: list[Tensor] = []
    seen: set[int] = set()

    def look(part: Any) -> None:
        if isinstance(part, Tensor):
            found.append(part)
        elif id(part) not in seen:
            seen.add(id(part))
            for each in _parts(part):
                look(each)

    look(value)
    return found


def _parts(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, (type, nn.Module)) or callable(value):
        return []
    if dataclasses.is_dataclass(value):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    return list(getattr(value, "__dict__", {}).values())


def scores(output: Any, labels: Tensor) -> Tensor:
    """Return the first tensor in a model's output that has a score of every class for every label, else NoScores.

    For labels (n, ...) it is (n, ..., classes), or (n, classes, ...).
    """
    returned = tensors(output)
    for tensor in returned:
        if tensor.ndim != labels.ndim + 1 or not tensor.is_floating_point():
            continue
        last, second = tensor.shape[:-1] == labels.shape, tensor.shape[:1] + tensor.shape[2:] == labels.shape
        if (last and tensor.shape[-1] > 1) or (second and tensor.shape[1] > 1):
            return tensor
    shapes = [tuple(tensor.shape) for tensor in returned]
    raise NoScores(
        f"the model returns tensors of {shapes} for labels of {tuple(labels.shape)}: an accuracy needs a score for "
        "each of two or more classes, (n, ..., classes) or (n, classes, ...); return them, also beside a loss"
    )
