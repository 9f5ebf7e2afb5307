"""What a trainer did in a case, as the checks get it, changed by a test."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from reference.trainers.single import Single
from suite.properties.case import Case, Net
from suite.properties.observe import Observation, observe
from suite.properties.seen import Seen

CASE = Case(2, (5, 3), net=Net(hidden=(3,)))


def see(trainer: type[Any], case: Case, check: str = "") -> Observation:
    """Return what a trainer does on virtual devices in this process."""
    return observe(trainer, [torch.device("cpu")] * case.world_size, case, check=check)[0]


def tampered(change: Callable[[Observation], None], trainer: type[Any] = Single, case: Case = CASE) -> Seen:
    """Return what a right trainer did, changed."""
    seen = copy.deepcopy(see(trainer, case))
    change(seen)
    return Seen(case, [seen])
