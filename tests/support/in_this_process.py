"""Trainers of one process in the process of the test: what they do in a case, and a bench without workers."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from reference.trainers.single import Single
from suite.checks.bench import Bench
from suite.processes.failure import WorkerFailure
from suite.properties import contract, tolerance
from suite.properties.answers import About, Judgement, Observed
from suite.properties.case import Case, Net
from suite.properties.observe import Loss, Observation, observe
from suite.properties.seen import Seen
from suite.properties.trainer import judge

CASE = Case(2, (5, 3), net=Net(hidden=(3,)))
FINE = 1e-9  # of a bound: smaller errors are not looked for


def see(trainer: type[Any], case: Case, check: str = "") -> Observation:
    """Return what a trainer does on virtual devices in this process."""
    return observe(trainer, [torch.device("cpu")] * case.world_size, case, check=check)[0]


def tampered(change: Callable[[Observation], None], trainer: type[Any] = Single, case: Case = CASE) -> Seen:
    """Return what a right trainer did, as the checks get it, changed."""
    seen = copy.deepcopy(see(trainer, case))
    change(seen)
    return Seen(case, [seen])


@dataclass
class InThisProcess(Bench):
    """Puts cases to trainers of one process in this one.

    Attributes:
        dtypes: how many cases there were of each dtype.
        nearest: the largest error of a gradient over its bound, by the dtype of the case.
    """

    dtypes: Counter[str] = field(default_factory=Counter)
    nearest: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    _seen: dict[str, Observation] = field(default_factory=dict)
    _loss: Loss | None = None
    _oracle: str = "sgd"

    def about(self, trainer: str) -> About:
        return contract.describe(contract.load_trainer(trainer))

    def judge(self, trainer: str, check: str, case: Case) -> Judgement:
        """Put one case to a trainer and apply one check."""
        self.dtypes[case.dtype] += 1
        with self._noting(case.dtype):
            return super().judge(trainer, check, case)

    def files(self, group: Any, observed: Sequence[Observed]) -> list[str]:
        """Return the names of what was seen, which is kept here."""
        return [each.file for each in observed]

    def _observe(
        self, trainer: str, case: Case, check: str, name: str, *, plain: bool = False
    ) -> tuple[Any, list[Observed]]:
        made = contract.load_trainer(trainer)
        devices = [torch.device("cpu")] * case.world_size
        seen, self._loss = observe(made, devices, case, check=check, plain=plain)
        self._seen[name], self._oracle = seen, getattr(made, "oracle", "sgd")
        return None, [Observed(name, seen["raised"], returned=None not in seen["losses"])]

    def _asked(self, group: Any, check: str, case: Case, variants: int, files: dict[str, list[str]]) -> Judgement:
        records: dict[str, Any] = {part: [self._seen[name] for name in names] for part, names in files.items()}
        [alone] = records.pop("alone", [None])
        told: dict[str, Any] = {"oracle": self._oracle, "loss": self._loss, "variants": variants}
        try:
            return judge(check, Seen(case, alone=alone, **told, **records))
        except Exception as error:  # as from a worker
            raise WorkerFailure("in this process", repr(error)) from error

    @contextmanager
    def _noting(self, dtype: str) -> Iterator[None]:
        worst = tolerance.worst

        def noted(names: Any, expected: Any, actual: Any, allowed: Sequence[Tensor]) -> Any:
            if found := worst(names, expected, actual, [FINE * bound for bound in allowed]):
                self.nearest[dtype] = max(self.nearest[dtype], FINE * found[1] / found[2])
            return worst(names, expected, actual, allowed)

        tolerance.worst = noted
        try:
            yield
        finally:
            tolerance.worst = worst
