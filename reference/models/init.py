"""Build a model with reproducible weights: table of initialisations, and `build`.

Every run builds its own model from a seed, so that one device and eight start from the same weights. (The concise
chapter initialises one network for each of its two runs, and the first time its lazy layers have no weights yet.)
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from reference.load import load_named
from reference.models import MODELS

_NORMALISATIONS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
"""Batch and instance normalisation of any number of axes share torch's base class."""


def default(model: nn.Module) -> None:
    """Keep every parameter as its constructor drew it."""


def normal(model: nn.Module) -> None:
    """Draw weights from N(0, 0.01) and set biases to zero, as the lecture notebook does."""
    _fill(model, lambda weight: nn.init.normal_(weight, std=0.01))


def xavier(model: nn.Module) -> None:
    """Draw weights from Xavier's uniform distribution and set biases to zero (Glorot and Bengio 2010).

    The bound sqrt(6 / (fan_in + fan_out)) is symmetric, so LeNet's (in, out) matrices need no transposing.
    """
    _fill(model, nn.init.xavier_uniform_)


INITS: dict[str, Callable[[nn.Module], None]] = {"default": default, "normal": normal, "xavier": xavier}


def build(model: str, init: str = "default", seed: int = 0) -> nn.Module:
    """Return a new model on the CPU; equal arguments give bit-equal weights.

    Args:
        model: a name in `MODELS`, or ``module:factory`` or ``path.py:factory`` taking no arguments.
        init: a name in `INITS`.
        seed: of the weights; the state of the global generator does not change.

    Raises:
        ValueError: unknown model or init.
        TypeError: the factory returns something other than an nn.Module.
        FileNotFoundError, ImportError, AttributeError: the user's factory cannot be loaded.
    """
    if init not in INITS:
        raise ValueError(f"unknown init {init!r}: choose one of {', '.join(INITS)}")
    factory = load_named(model, MODELS, "model")
    if not callable(factory):
        raise TypeError(f"model {model!r} is a {type(factory).__name__}: it must be a factory without arguments")
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would also seed the GPUs' generators, and fork_rng does not restore those here.
        torch.default_generator.manual_seed(seed)
        built = factory()
        if not isinstance(built, nn.Module):
            raise TypeError(f"model {model!r} returned a {type(built).__name__}: its factory must return an nn.Module")
        INITS[init](built)
    return built


@torch.no_grad()
def _fill(model: nn.Module, draw: Callable[[Tensor], Tensor]) -> None:
    """Draw every matrix and kernel and set every bias to zero; normalisation layers keep their initial values."""
    for module in model.modules():
        if isinstance(module, _NORMALISATIONS):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim >= 2:
                draw(parameter)
            elif name.startswith("b"):
                parameter.zero_()
