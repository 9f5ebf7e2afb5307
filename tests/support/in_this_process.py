"""A bench without workers: cases for trainers of one process, put to them in the process of the test."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from suite.checks.bench import Bench
from suite.processes.failure import WorkerFailure
from suite.properties import contract, tolerance
from suite.properties.answers import About, Judgement
from suite.properties.case import Case
from suite.properties.observe import observe
from suite.rank import commands

FINE = 1e-9  # of a bound: smaller errors are not looked for


@dataclass
class InThisProcess(Bench):
    """Puts cases to trainers of one process in this one.

    Attributes:
        dtypes: how many cases there were of each dtype.
        nearest: the largest error of a gradient over its bound, by the dtype of the case.
    """

    dtypes: Counter[str] = field(default_factory=Counter)
    nearest: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    _state: commands.State = field(default_factory=lambda: commands.State(0))

    def about(self, trainer: str) -> About:
        """Return the description of a trainer."""
        return contract.describe(contract.load_trainer(trainer))

    def judge(self, trainer: str, check: str, case: Case) -> Judgement:
        """Put one case to a trainer and apply one check."""
        self.dtypes[case.dtype] += 1
        with self._noting(case.dtype):
            return super().judge(trainer, check, case)

    def _observe(self, trainer: str, case: Case, check: str, **how: bool) -> tuple[Any, list[Any]]:
        made = contract.load_trainer(trainer)
        record, self._state.loss = observe(made, [torch.device("cpu")] * case.world_size, case, check=check, **how)
        self._state.oracle = getattr(made, "oracle", "sgd")
        return None, [record]

    def _asked(self, group: Any, told: dict[str, Any]) -> Judgement:
        try:
            return commands.judge(self._state, **{**told, "records": vars(told["records"])})
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
