"""Tied weights are two tensors after they were materialised, and each gets its own half of the gradient.

Copying a model tensor by tensor makes two of what two modules share. What is saved and served is the tied model, with
the embedding's tensor, so the head's half is lost.

Source: verl-project/verl#7835, facebookresearch/lingua#75
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from reference.nest import Nest
from reference.trainers.ddp import DDPTokensTrainer

KIND = "trainer"
KILLED_BY = "gradient"
LOOKS_LIKE = ""


class Mutant(DDPTokensTrainer):
    """`DDPTokensTrainer` on a model whose parameters were all made anew."""

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        materialised = copy.deepcopy(model)
        for module in materialised.modules():
            for name, parameter in module.named_parameters(recurse=False):
                setattr(module, name, nn.Parameter(parameter.detach().clone(), parameter.requires_grad))
        super().__init__(materialised, devices, lr=lr)
        self.saved = copy.deepcopy(model)
        self._save()

    def step(self, X: Nest, y: Nest, global_batch_size: int) -> Tensor:
        loss = super().step(X, y, global_batch_size)
        self._save()
        return loss

    @property
    def replicas(self) -> list[nn.Module]:
        return [self.saved]

    @torch.no_grad()
    def _save(self) -> None:
        trained = dict(self.net.module.named_parameters())
        for name, parameter in self.saved.named_parameters():
            parameter.copy_(trained[name])
