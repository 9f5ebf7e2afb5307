"""Reads gradients where torch's optimisers take them."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from suite.properties.whole import whole

K = TypeVar("K", bound=Hashable)


@contextmanager
def gradients_at_optimizers(
    trained: Mapping[K, Tensor], *, leave_out: type[Optimizer] | tuple[type[Optimizer], ...] = ()
) -> Iterator[dict[K, Tensor]]:
    """Collect the gradients that torch's optimisers are about to use, float64, by the key of the parameter.

    They are read when an optimizer's own hooks and its closure have run, which may change them. What a `step` does
    before it calls another optimizer's, such as an exchange, cannot be seen: of such an optimizer nothing is collected.
    """
    gradients: dict[K, Tensor] = {}
    of_each: dict[int, RemovableHandle] = {}

    def read(optimizer: Optimizer) -> None:
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        given = {key: one.grad for key, one in trained.items() if id(one) in held and one.grad is not None}
        gradients.update(zip(given, whole(list(given.values())), strict=True))

    def last(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        itself, *others = args
        closure = kwargs.get("closure", others[0] if others else None)
        if closure is None:
            read(optimizer)
            return args, kwargs

        def and_read() -> Any:
            loss = closure()
            read(optimizer)
            return loss

        return ((itself, and_read, *others[1:]), kwargs) if others else (args, {**kwargs, "closure": and_read})

    def begin(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        # One of them is `Optimizer`'s own; torch wraps a method, and a class that inherits it gets the wrapper, too.
        steps = {inspect.unwrap(vars(each)["step"]) for each in type(optimizer).__mro__ if "step" in vars(each)}
        if id(optimizer) not in of_each and len(steps) <= 2 and not isinstance(optimizer, leave_out):
            of_each[id(optimizer)] = optimizer.register_step_pre_hook(last)  # called after those that it has

    hook = register_optimizer_step_pre_hook(begin)
    try:
        yield gradients
    finally:
        for handle in (hook, *of_each.values()):
            handle.remove()
