"""Puts generated cases to a trainer in worker processes and shrinks what fails to the smallest (controller's side).

Groups of ranks are started once for each world size and reused by all cases, checks and trainers. A rank that dies or
hangs ends its check at once, unshrunk, with every live rank's stack; the next case gets a fresh group.
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
from suite.processes.pool import Pool
from suite.properties.case import MAY_REFUSE, Case
from suite.room.devices import Devices

MOST_REPLICAS = 8  # virtual devices of one process
MOST_RANKS = 4  # processes
HANG_S = 30.0  # a case takes milliseconds, or what it takes to load FSDP where it is the first of its kind
SHARE = 0.25  # of hypothesis's examples, for each check


@dataclass(frozen=True)
class Outcome:
    """What a check made of a trainer.

    Attributes:
        failure: what is wrong in the smallest case found, ready to be shown; empty when nothing is.
        notes: what a reader should know although it is right, each once.
        examples: cases that were judged.
        crashed: whether the failure is that the trainer raised, died or hung, and not what it computed.
    """

    failure: str
    notes: list[str]
    examples: int
    crashed: bool = False


class _Wrong(Exception):
    """A case that a trainer gets wrong: hypothesis looks for a smaller one."""


class _Ended(BaseException):
    """Ranks died or hung: passes through hypothesis, which would otherwise repeat it to shrink it."""


@dataclass
class Bench:
    """All worker processes that cases are put to.

    Args:
        pool: where they are started.
        devices: CPU workers stand for any number of devices; CUDA devices are used in turn, several times if need be.
    """

    pool: Pool
    devices: Devices
    _groups: dict[int, Group] = field(default_factory=dict)
    _about: dict[str, dict[str, Any]] = field(default_factory=dict)
    _bound: set[str] = field(default_factory=set)
    _started: int = 0

    def group(self, size: int) -> Group:
        """The ranks of one world size, started when there are none alive."""
        group = self._groups.get(size)
        if group is None or not group.alive:
            self._started += 1
            group = self._groups[size] = self.pool.launch(f"bench-{size}-{self._started}", size)
            group.wait_connected()
        return group

    def about(self, trainer: str) -> dict[str, Any]:
        """What a worker says of a trainer: {"processes", "oracle", "unsynced"}.

        Raises:
            WorkerFailure: it cannot be loaded, or breaks the protocol.
        """
        if trainer not in self._about:
            [answer] = self.group(1).request("describe", trainer=trainer)
            self._about[trainer] = answer["about"]
        return self._about[trainer]

    def judge(self, trainer: str, check: str, case: Case) -> dict[str, Any]:
        """Put one case to a trainer and apply one check.

        Returns:
            `suite.properties.seen.Judgement` as a dict.

        Raises:
            WorkerFailure: a rank died, hung, refused while others waited for it, or breaks the protocol; or the check
                itself raised.
        """
        about = self.about(trainer)
        alone = self._observe(trainer, about, case.alone(), check)[1][0] if about["oracle"] == "self" else None
        group, ranks = self._observe(trainer, about, case, check)
        # What rank 0 says may quote the trainer's exception.
        try:
            found = group.request_first("judge", check=check, case=case.as_json(), ranks=ranks, alone=alone)
        except WorkerFailure as failure:
            if failure.details:  # a broken contract needs none, and is not the check's own
                failure.cause = f"the check could not be applied: {failure.cause}"
            raise
        found["suspects"] = list(map(harmless, found["suspects"]))
        return found | {name: harmless(found[name]) for name in ("finding", "note", "details")}

    def search(
        self, trainer: str, check: str, *, examples: int | None = None, fresh: bool = False, shrink: bool = True
    ) -> Outcome:
        """Look for a case that a trainer gets wrong.

        Args:
            trainer: a table name, `module:Class` or `path.py:Class`.
            check: a name in `suite.properties.trainer.CHECKS`.
            examples: how many cases; by default a share of the hypothesis profile's.
            fresh: other cases in every run; otherwise always the same.
            shrink: look for the smallest case; otherwise the first one will do.

        Raises:
            WorkerFailure: the trainer cannot be loaded, or breaks the protocol.
        """
        about = self.about(trainer)
        most = MOST_REPLICAS if about["processes"] == "one" else MOST_RANKS
        looking = _Search(self, trainer, check)
        # A trainer that refuses may cost a fresh group each time, and to shrink is to try many cases.
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
        def look(case: Case) -> None:
            looking.look(case)

        try:
            look()
        except _Wrong:
            looking.tell_apart()
        except _Ended:
            pass
        except errors.Flaky:
            looking.failure += "\n  not every time: the same case was right when it was put to the trainer again"
        return Outcome(looking.failure, list(looking.notes), looking.judged, looking.crashed)

    def close(self) -> None:
        """Let all workers go."""
        for group in self._groups.values():
            group.close()
        self._groups.clear()

    def _observe(
        self, trainer: str, about: dict[str, Any], case: Case, check: str
    ) -> tuple[Group, list[dict[str, Any]]]:
        one = about["processes"] == "one"
        names = [self.devices.names[rank % len(self.devices.names)] for rank in range(case.world_size)]
        group = self.group(1 if one else case.world_size)
        arm = {
            "trainer": trainer,
            "processes": about["processes"],
            "compiler": about["processes"] == "per-device",
            "devices": names,
            "pinned": [],
            "backend": self.devices.backend(names),
        }
        if group.name not in self._bound:
            group.request("bind", arm=arm)
            self._bound.add(group.name)
        answers = group.request("observe", HANG_S, arm=arm, case=case.as_json(), evaluates=check == "evaluation")
        return group, answers


@dataclass
class _Search:
    """What one search has seen so far."""

    bench: Bench
    trainer: str
    check: str
    failure: str = ""
    crashed: bool = False
    smallest: Case | None = None  # the last case that was wrong: at the end of a search, the smallest one
    notes: dict[str, None] = field(default_factory=dict)
    judged: int = 0
    suspects: list[str] | None = None  # bugs that fit every case that was wrong
    refused: set[tuple[str, str]] = field(default_factory=set)

    def look(self, case: Case) -> None:
        """Judge a case.

        Raises:
            _Wrong, _Ended: the trainer gets it wrong; does not survive it.
        """
        kind = (case.net.unused, case.net.norm)
        if kind in self.refused:
            return
        self.judged += 1
        try:
            found = self.bench.judge(self.trainer, self.check, case)
        except WorkerFailure as failure:
            if self.check in MAY_REFUSE and failure.refused:
                self.notes[_first_sentence(f"refused: {failure.cause}")] = None
                self.refused.add(kind)  # once is enough: the group is gone
                return
            self.failure = explain(self.trainer, self.check, case, {"finding": failure.cause}, failure.details)
            self.crashed = True
            raise _Ended from failure
        if found["note"]:
            self.notes[_first_sentence(found["note"])] = None
        if found["finding"]:
            self._suspect(found)
            self.crashed = found["crashed"]
            self.smallest, self.failure = case, explain(self.trainer, self.check, case, found, [found["details"]])
            raise _Wrong

    def tell_apart(self) -> None:
        """Where several bugs fit the smallest case, ask for one more, with samples for all devices and one to spare."""
        if self.smallest is None or len(self.suspects or ()) < 2:
            return  # one that raised leaves nothing to tell apart
        batches = tuple(2 * self.smallest.world_size + 1 for _ in self.smallest.batches)
        with suppress(WorkerFailure):
            self._suspect(self.bench.judge(self.trainer, self.check, replace(self.smallest, batches=batches)))
            found = self.bench.judge(self.trainer, self.check, self.smallest)
            found["suspects"] = self.suspects
            self.failure = explain(self.trainer, self.check, self.smallest, found, [found["details"]])

    def _suspect(self, found: dict[str, Any]) -> None:
        fitting = [line for line in found["suspects"] if self.suspects is None or line in self.suspects]
        self.suspects = found["suspects"] = fitting or self.suspects or found["suspects"]


def explain(trainer: str, check: str, case: Case, found: dict[str, Any], details: Sequence[str] = ()) -> str:
    """A failure as it is shown: what is wrong, which known bug it looks like, the case, and how to see it again."""
    lines = [f"{trainer}, check {check!r}: {found['finding']}"]
    lines += [f"  looks like: {suspect}" for suspect in found.get("suspects", ())]
    lines.append(
        f"  smallest case found: {case.world_size} device(s), minibatches of {list(case.batches)}, {case.dtype}, "
        f"lr {case.lr}, seed {case.seed}, net {case.as_json()['net']}"
    )
    command = ["python", "-m", "suite.checks", trainer, check, str(case)]
    lines.append(f"  see it again: {shlex.join(command)}")
    return "\n".join([*lines, *filter(None, details)])


def _first_sentence(note: str) -> str:
    """Torch's refusals go on for a page."""
    return note.split(". ")[0].splitlines()[0]
