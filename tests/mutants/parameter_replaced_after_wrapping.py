"""A parameter that replaced another after wrapping is never exchanged.

DDP hooks the parameters that it finds when it is made. A head that is exchanged, re-initialised or re-tied later is new
to it: it keeps each rank's own gradient, and ``find_unused_parameters`` silences the complaint about the old one. The
rest of the net is right, for one step.

Source: pytorch/pytorch#12603, pytorch/pytorch#104336
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from reference.trainers.ddp import DDPTrainer

KIND = "trainer"
KILLED_BY = "replicas"
LOOKS_LIKE = "no exchange | missing exchange | drifted apart"


class Mutant(DDPTrainer):
    """`DDPTrainer` whose last module gets new parameters of equal values."""

    def __init__(self, model: nn.Module, devices: Sequence[torch.device], *, lr: float) -> None:
        module = copy.deepcopy(model).to(devices[0])
        on_gpu = devices[0].type == "cuda"
        self.net = DistributedDataParallel(
            module, device_ids=[devices[0]] if on_gpu else None, find_unused_parameters=True
        )
        head = [part for part in module.modules() if any(True for _ in part.parameters(recurse=False))][-1]
        for name, param in list(head.named_parameters(recurse=False)):
            setattr(head, name, nn.Parameter(param.detach().clone(), requires_grad=param.requires_grad))
        self.optimizer = torch.optim.SGD(module.parameters(), lr)
