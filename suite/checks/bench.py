"""Puts generated cases to a trainer in worker processes and shrinks what fails (controller's side).

A group of ranks is started once for each world size and serves all cases, checks and trainers. A rank that dies or
hangs ends its check without shrinking, with every live rank's stack; the next case gets a fresh group.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import HealthCheck, Phase, errors, given, settings

from suite.checks import draw
from suite.processes.failure import WorkerFailure, harmless
from suite.processes.group import Group
from suite.processes.jobs import CaseJob
from suite.processes.pool import Pool
from suite.properties.case import MAY_REFUSE, Case
from suite.room.devices import Devices

MOST_REPLICAS = 8  # virtual devices of one process
MOST_RANKS = 4  # processes
HANG_S = 30.0  # a case takes milliseconds; the first one of a sharded trainer loads FSDP
SHARE = 0.25  # of hypothesis's examples, for each check


@dataclass(frozen=True)
class Outcome:
    """The outcome of a check on a trainer.

    Attributes:
        failure: what is wrong in the smallest failing case, ready to be shown; empty when nothing is.
        notes: what a reader should know of a right trainer, each once.
        examples: the number of cases that were judged.
        crashed: whether the trainer raised, died or hung, as opposed to computing something wrong.
    """

    failure: str
    notes: list[str]
    examples: int
    crashed: bool = False


class _Wrong(Exception):
    """The trainer gets a case wrong; hypothesis searches for a smaller one."""


class _Ended(BaseException):
    """Ranks died or hung. It passes through hypothesis, which would repeat an Exception to shrink its case."""


@dataclass
class Bench:
    """The worker processes that cases are put to.

    Args:
        pool: starts them.
        devices: CPU workers stand for any number of devices; CUDA devices are used in turn, repeatedly if necessary.
    """

    pool: Pool
    devices: Devices
    _groups: dict[int, Group] = field(default_factory=dict)
    _about: dict[str, dict[str, Any]] = field(default_factory=dict)
    _bound: set[str] = field(default_factory=set)
    _started: int = 0

    def group(self, size: int) -> Group:
        """Return the ranks of one world size, started unless they are alive."""
        group = self._groups.get(size)
        if group is None or not group.alive:
            self._started += 1
            group = self._groups[size] = self.pool.launch(f"bench-{size}-{self._started}", size)
            group.wait_connected()
        return group

    def about(self, trainer: str) -> dict[str, Any]:
        """Return a worker's description of a trainer: {"processes", "oracle", "unsynced"}.

        Raises:
            WorkerFailure: it cannot be loaded, or breaks the protocol.
        """
        if trainer not in self._about:
            [answer] = self.group(1).request("describe", trainer=trainer)
            self._about[trainer] = answer["about"]
        return self._about[trainer]

    def judge(self, trainer: str, check: str, case: Case) -> dict[str, Any]:
        """Put one case to a trainer, apply one check, and return `suite.properties.seen.Judgement` as a dict.

        Raises:
            WorkerFailure: a rank died, hung, refused while others waited for it, or breaks the protocol; or the check
                itself raised.
        """
        about = self.about(trainer)
        alone = self._observe(trainer, about, case.alone(), check)[1][0] if about["oracle"] == "self" else None
        group, ranks = self._observe(trainer, about, case, check)
        try:
            judgement = group.request_first("judge", check=check, case=case.as_json(), ranks=ranks, alone=alone)
        except WorkerFailure as failure:
            if failure.details:  # a broken contract has none, and is no error of the check
                failure.cause = f"the check could not be applied: {failure.cause}"
            raise
        judgement["suspects"] = list(map(harmless, judgement["suspects"]))  # the text may quote the trainer's exception
        return judgement | {name: harmless(judgement[name]) for name in ("finding", "note", "details")}

    def search(
        self, trainer: str, check: str, *, examples: int | None = None, fresh: bool = False, shrink: bool = True
    ) -> Outcome:
        """Search for a case that a trainer gets wrong.

        Args:
            trainer: a table name, `module:Class` or `path.py:Class`.
            check: a name in `suite.properties.trainer.CHECKS`.
            examples: the number of cases; by default a share of the hypothesis profile's.
            fresh: draw other cases in every run; otherwise they are always the same.
            shrink: report the smallest failing case; otherwise the first one.

        Raises:
            WorkerFailure: the trainer cannot be loaded, or breaks the protocol.
        """
        about = self.about(trainer)
        most = MOST_REPLICAS if about["processes"] == "one" else MOST_RANKS
        search = _Search(self, trainer, check)
        # Shrinking tries many cases, and each one that a trainer refuses may cost a fresh group.
        shrinks = shrink and check not in MAY_REFUSE

        @settings(
            max_examples=examples or max(1, int(settings().max_examples * SHARE)),
            derandomize=not fresh,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink) if shrinks else (Phase.generate,),
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        )
        @given(draw.cases(check, most, about["oracle"]))
        def judge_all(case: Case) -> None:
            search.judge(case)

        try:
            judge_all()
        except _Wrong:
            search.tell_suspects_apart()
        except _Ended:
            pass
        except errors.Flaky:
            search.failure += "\n  not every time: the same case was right when it was put to the trainer again"
        return Outcome(search.failure, list(search.notes), search.judged, search.crashed)

    def close(self) -> None:
        """End all workers."""
        for group in self._groups.values():
            group.close()
        self._groups.clear()

    def _observe(
        self, trainer: str, about: dict[str, Any], case: Case, check: str
    ) -> tuple[Group, list[dict[str, Any]]]:
        names = [self.devices.names[rank % len(self.devices.names)] for rank in range(case.world_size)]
        group = self.group(1 if about["processes"] == "one" else case.world_size)
        job = CaseJob(
            trainer=trainer,
            processes=about["processes"],
            devices=tuple(names),
            backend=self.devices.backend(names),
        )
        if group.name not in self._bound:
            group.request("bind", arm=job)
            self._bound.add(group.name)
        answers = group.request("observe", HANG_S, arm=job, case=case.as_json(), evaluates=check == "evaluation")
        return group, answers


@dataclass
class _Search:
    """The state of one search."""

    bench: Bench
    trainer: str
    check: str
    failure: str = ""
    crashed: bool = False
    smallest: Case | None = None  # the last wrong case, which at the end of a search is the smallest one
    notes: dict[str, None] = field(default_factory=dict)
    judged: int = 0
    suspects: list[str] | None = None  # bugs that fit every wrong case
    refused: set[tuple[str, str]] = field(default_factory=set)

    def judge(self, case: Case) -> None:
        """Judge a case.

        Raises:
            _Wrong: the trainer gets it wrong.
            _Ended: ranks died or hung.
        """
        kind = (case.net.unused, case.net.norm)
        if kind in self.refused:
            return
        self.judged += 1
        try:
            judgement = self.bench.judge(self.trainer, self.check, case)
        except WorkerFailure as failure:
            if self.check in MAY_REFUSE and failure.refused:
                self.notes[_first_sentence(f"refused: {failure.cause}")] = None
                self.refused.add(kind)  # once is enough: the group is gone
                return
            self.failure = explain(self.trainer, self.check, case, {"finding": failure.cause}, failure.details)
            self.crashed = True
            raise _Ended from failure
        if judgement["note"]:
            self.notes[_first_sentence(judgement["note"])] = None
        if judgement["finding"]:
            self._suspect(judgement)
            self.crashed = judgement["crashed"]
            self.smallest = case
            self.failure = explain(self.trainer, self.check, case, judgement, [judgement["details"]])
            raise _Wrong

    def tell_suspects_apart(self) -> None:
        """Where several bugs fit the smallest case, judge another one with 2 k + 1 samples a step on its k devices."""
        if self.smallest is None or len(self.suspects or ()) < 2:
            return
        batches = tuple(2 * self.smallest.world_size + 1 for _ in self.smallest.batches)
        with suppress(WorkerFailure):
            self._suspect(self.bench.judge(self.trainer, self.check, replace(self.smallest, batches=batches)))
            judgement = self.bench.judge(self.trainer, self.check, self.smallest)
            judgement["suspects"] = self.suspects
            self.failure = explain(self.trainer, self.check, self.smallest, judgement, [judgement["details"]])

    def _suspect(self, judgement: dict[str, Any]) -> None:
        fitting = [line for line in judgement["suspects"] if self.suspects is None or line in self.suspects]
        self.suspects = judgement["suspects"] = fitting or self.suspects or judgement["suspects"]


def explain(trainer: str, check: str, case: Case, judgement: dict[str, Any], details: Sequence[str] = ()) -> str:
    """Return a failure as it is shown: what is wrong, known bugs that it looks like, the case, how to see it again."""
    lines = [f"{trainer}, check {check!r}: {judgement['finding']}"]
    lines += [f"  looks like: {suspect}" for suspect in judgement.get("suspects", ())]
    lines.append(
        f"  smallest case found: {case.world_size} device(s), minibatches of {list(case.batches)}, {case.dtype}, "
        f"lr {case.lr}, seed {case.seed}, net {case.as_json()['net']}"
    )
    command = ["python", "-m", "suite.checks", trainer, check, str(case)]
    lines.append(f"  see it again: {shlex.join(command)}")
    return "\n".join([*lines, *filter(None, details)])


def _first_sentence(note: str) -> str:
    """Return the first sentence of the first line; torch's refusals are a page long."""
    return note.split(". ")[0].splitlines()[0]
