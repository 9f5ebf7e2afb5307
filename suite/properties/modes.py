"""Keeps a user's model comparable whatever its step does to training and eval mode (worker's side).

What depends on the mode and mixes the samples of a rank, or draws, is rightly another on k devices than on one: batch
normalisation and dropout. Torch's own layers of these kinds stay in eval mode, also where `train()` is called. All
other modules follow the step, because a model may return other things while it trains. What is compiled runs as it is
written, because hooks see no modules in compiled code.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

KEPT_IN_EVAL: tuple[type[nn.Module], ...] = (
    nn.modules.batchnorm._NormBase,  # batch and instance normalisation, on several devices too
    nn.modules.dropout._DropoutNd,
    nn.RReLU,
    # These two drop out what is between their layers.
    nn.RNNBase,
    nn.MultiheadAttention,
)


@contextmanager
def comparable(model: nn.Module, *, everything: bool = False) -> Iterator[None]:
    """Put a model in eval mode, and keep the layers above in it, or every module, although `train()` is called.

    A batch normalisation without running statistics gets mean 0 and variance 1, because it has no eval mode otherwise.
    """
    model.eval()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
            _give_statistics(module)
    set_mode = nn.Module.train

    def stay(module: nn.Module, mode: bool = True) -> nn.Module:
        return set_mode(module, False)

    with ExitStack() as stack:
        for kind in (nn.Module,) if everything else KEPT_IN_EVAL:
            stack.callback(_restore, kind, vars(kind).get("train"))
            kind.train = stay  # type: ignore[method-assign,assignment]
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


def _restore(kind: type[nn.Module], its_own: object) -> None:
    if its_own is None:
        del kind.train
    else:
        kind.train = its_own  # type: ignore[assignment,method-assign]


def _give_statistics(module: nn.modules.batchnorm._BatchNorm) -> None:
    like = next(module.parameters(), torch.empty(0))
    module.track_running_stats = True
    module.running_mean = torch.zeros(module.num_features, dtype=like.dtype, device=like.device)
    module.running_var = torch.ones_like(module.running_mean)
