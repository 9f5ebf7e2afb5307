"""Models with signatures and outputs of their own, and trainers that call them so: right ones, and one that is not."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from tests.support.learners import Pair, overlapping_blobs
from tests.support.own_models import ByHand

WIDTH = 6


@dataclass
class Output:
    """What a model returns."""

    loss: Tensor | None
    logits: Tensor
    hidden: tuple[Tensor, ...] = ()


class ModelOutput(OrderedDict[str, Any]):
    """An ordered dict whose items are attributes too, as that of transformers."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


class Pieces(NamedTuple):
    """What a layer returns."""

    h: Tensor
    size: Tensor


class Layer(nn.Module):
    """A layer that returns a named tuple, of which one part is a mean over the rows that it got."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, WIDTH)

    def forward(self, h: Tensor) -> Pieces:
        h = self.linear(h)
        return Pieces(h, h.abs().mean())


class Auxiliary(nn.Module):
    """Returns nothing while there are no labels, and otherwise a dict."""

    def forward(self, h: Tensor, y: Tensor | None) -> dict[str, Any] | None:
        return None if y is None else {"norms": [h.norm(dim=1)], "count": len(h)}


class TakesLabels(nn.Module):
    """forward(X, y) to scores and the mean loss, as nanoGPT; without y the scores of one sample alone, and None."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Layer(5), Layer(WIDTH)
        self.auxiliary, self.head = Auxiliary(), nn.Linear(WIDTH, 2)

    def hidden(self, X: Tensor, y: Tensor | None) -> Tensor:
        """Map X (n, 5) to (n, WIDTH)."""
        h = torch.tanh(self.first(X).h)
        h = self.second(h).h
        self.auxiliary(h, y)
        return h

    def forward(self, X: Tensor, y: Tensor | None = None) -> Any:
        if y is None:
            return self.head(self.hidden(X, y)[-1:]), None
        scores = self.head(self.hidden(X, y))
        return scores, F.cross_entropy(scores, y) if len(y) else scores.sum()


class NeedsLabels(TakesLabels):
    """forward(X, y) to a loss of shape (1,) and scores; y must be given."""

    def forward(self, X: Tensor, y: Tensor) -> Any:  # type: ignore[override]
        scores, loss = super().forward(X, y)
        return loss[None], scores


class ToADataclass(TakesLabels):
    """forward(X, y) to a dataclass."""

    def forward(self, X: Tensor, y: Tensor | None = None) -> Any:
        h = self.hidden(X, y)
        scores = self.head(h)
        return Output(None if y is None or not len(y) else F.cross_entropy(scores, y), scores, (h, h.cumsum(1)))


class ToADict(TakesLabels):
    """forward(X, y) to a dict."""

    def forward(self, X: Tensor, y: Tensor | None = None) -> Any:
        scores, loss = super().forward(X, y)
        return {"logits": scores, "loss": loss}


class ToAnObject(ToADataclass):
    """forward(X, y) to an object of no class in particular."""

    def forward(self, X: Tensor, y: Tensor | None = None) -> Any:
        return SimpleNamespace(**vars(super().forward(X, y)))


class ByName(ToADataclass):
    """forward(features=, mask=, labels=) to an ordered dict of its own class, the loss first."""

    def forward(  # type: ignore[override]
        self, features: Tensor | None = None, mask: Tensor | None = None, *, labels: Tensor | None = None
    ) -> Any:
        assert features is not None
        assert mask is not None
        output = super().forward(features * mask, labels)
        loss = {} if output.loss is None else {"loss": output.loss}
        return ModelOutput(**loss, logits=output.logits, hidden=output.hidden)


class OnlyLoss(TakesLabels):
    """forward(X, y) to the mean loss alone."""

    def forward(self, X: Tensor, y: Tensor | None = None) -> Any:
        return super().forward(X, y)[1]


class Again(TakesLabels):
    """Calls a layer twice, one of them under activation checkpointing, and changes outputs in place."""

    def hidden(self, X: Tensor, y: Tensor | None) -> Tensor:
        h = self.first(X).h
        h.relu_()
        h = checkpoint(self.second, h, use_reentrant=False).h
        h = self.second(h.tanh()).h
        h += 1
        return h


def masked() -> tuple[Any, Any]:
    """The blobs by name, with a mask for one feature in four."""

    def named(pair: Pair) -> Any:
        X, y = pair
        return {"features": X, "mask": (X.abs() * 10 % 4 > 1)}, y

    train, test = overlapping_blobs()
    return named(train), named(test)


class Calls(ByHand):
    """Right: calls model(X, y), which returns scores and its rows' mean loss, in this order or the other."""

    def mean(self, output: Any) -> Tensor:
        """The mean loss in an output."""
        if isinstance(output, tuple):
            return output[1] if output[1].numel() == 1 else output[0].squeeze()
        loss: Tensor = output["loss"] if isinstance(output, dict) else output.loss
        return loss

    def call(self, X: Any, y: Any) -> Any:
        return self.net(X, y)

    def forward(self, X: Any, y: Any) -> Tensor:
        return self.mean(self.call(X, y)) * len(y)


class CallsAlone(Calls):
    """As `Calls`, in one process on one device."""

    processes = "one"

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        self.net, self.optimizer = model, self.make_optimizer(list(model.parameters()), lr)

    def exchange(self) -> None:
        pass


class CallsByName(Calls):
    """Right: calls model(labels=, **X)."""

    def call(self, X: Any, y: Any) -> Any:
        return self.net(labels=y, **X)


class CallsTokensByName(CallsByName):
    """As `CallsByName`, and trains texts."""

    trains = "tokens"


class CallsForALoss(Calls):
    """Right: its model returns the loss."""

    def mean(self, output: Any) -> Tensor:
        loss: Tensor = output
        return loss


class Wraps(Calls):
    """Right: on several devices its replica is torch's wrapper around the model, whose gradients it averages."""

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        if dist.get_world_size() > 1:
            self.net = DistributedDataParallel(self.net)

    def exchange(self) -> None:
        for parameter in self.net.parameters():
            if parameter.grad is not None:
                parameter.grad *= dist.get_world_size()


class HoldsInAnother(Calls):
    """Wrong: on several devices its replica is a module of its own around the model."""

    @property
    def replicas(self) -> list[nn.Module]:
        return [nn.ModuleList([self.net])] if dist.get_world_size() > 1 else [self.net]


class Compiles(Calls):
    """Right: trains the compiled model."""

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)
        self.net = torch.compile(self.net, backend="aot_eager")  # type: ignore[assignment]


class _Apart:
    """Wrong: on rank 1 a weight of the second layer is another one."""

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        super().__init__(model, devices, lr=lr)  # type: ignore[call-arg]
        if dist.get_rank() == 1:
            with torch.no_grad():
                dict(model.named_modules())["second.linear"].weight[0, 0] += 0.5  # type: ignore[index,operator]


class CallsApart(_Apart, Calls):
    """Wrong as `_Apart`."""


class CallsByNameApart(_Apart, CallsByName):
    """Wrong as `_Apart`."""


class CallsAloneForALoss(CallsAlone):
    """As `CallsForALoss`, in one process on one device."""

    mean = CallsForALoss.mean


class CallsForALossApart(_Apart, CallsForALoss):
    """Wrong as `_Apart`."""


class WrapsApart(_Apart, Wraps):
    """Wrong as `_Apart`."""


class CompilesApart(_Apart, Compiles):
    """Wrong as `_Apart`."""
