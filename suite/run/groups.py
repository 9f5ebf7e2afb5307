"""The live groups of workers of a session: how one that fails is taken out, and what there is room for."""

from __future__ import annotations

import contextlib
import math
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import methodcaller
from pathlib import Path

from suite.plan.cells import Arm
from suite.processes.channel import Value
from suite.processes.failure import WorkerFailure
from suite.processes.group import Group
from suite.processes.jobs import LOADERS, READ_AHEAD, Job, Timed
from suite.room import limits
from suite.room.check import SHARED_MEMORY
from suite.room.errors import MORE_SHARED_MEMORY
from suite.run.observations import Observations, Session
from suite.verdict import FIRST_LOOK

CACHES_SHARE = 0.9  # of what is free: an allocator may need more than before, where it finds its memory in other pieces
SLOW_START_S = 60.0  # of a script until its first updates


@dataclass
class Groups:
    """The live groups of a session, by arm. A trainer's modes at one world size share their processes."""

    session: Session
    by_arm: dict[Arm, Group] = field(default_factory=dict)

    def attempt(self, arm: Arm, act: Callable[[Group], Value]) -> Value | None:
        """Return what `act` returns for an arm's group; None where the group is gone, or fails now.

        The arms that share a failed group are without processes for this session; only `arm` is lost for the run.
        """
        if arm not in self.by_arm:
            return None
        try:
            return act(self.by_arm[arm])
        except WorkerFailure as failure:
            self.session.failures[arm] = failure
            self.drop(self.by_arm[arm])
            return None

    def drop(self, failed: Group) -> None:
        """Remove a failed group, and with it all arms that share it."""
        self.by_arm = {arm: group for arm, group in self.by_arm.items() if group is not failed}

    def request_at_once(
        self,
        arms: Sequence[Arm],
        kind: type[Value],
        command: str,
        timeout_s: Callable[[Arm], float],
        **arguments: Callable[[Arm], object],
    ) -> dict[Arm, list[Value]]:
        """Ask the groups of these arms, all of them different, at the same time; return the answers of those that work.

        Args:
            arms: of which each is named to its group.
            kind, command: as `suite.processes.group.Group.request` has them.
            timeout_s: returns an arm's when it is waited for.
            arguments: return an arm's own.
        """
        for arm in arms:
            told = {name: of(arm) for name, of in arguments.items()}
            self.attempt(arm, methodcaller("post", command, name=arm.id, **told))
        answers = {arm: self.attempt(arm, methodcaller("collect", kind, command, timeout_s(arm))) for arm in arms}
        return {arm: answered for arm, answered in answers.items() if answered is not None}

    def request(
        self, arm: Arm, kind: type[Value], command: str, timeout_s: float, /, **arguments: object
    ) -> list[Value] | None:
        """Return the answers of an arm's ranks; None where the group is gone, or fails now."""
        return self.attempt(arm, lambda group: group.request(kind, command, timeout_s, **arguments))


class Caches:
    """Whether the processes of a session may keep, between their windows, memory of accelerators that no tensor uses.

    To give it back costs calls of the driver after each window, and as many before the next one. So it is given back
    only where the card could not hold what all processes of the session would keep at once: what they gave back after
    their first windows, and what the cards had free then.

    Hosts of one run are taken for one, so that on several of them memory is given back where it need not be.
    """

    def __init__(self) -> None:
        self._returned: dict[str, dict[tuple[int, int], int]] = defaultdict(dict)  # by device, then by group and rank
        self._free: dict[str, int] = {}

    def note(self, group: Group, names: Sequence[str], answers: Sequence[Timed]) -> None:
        """Add the answers of a group's processes to a window after which each gave back what it could.

        Args:
            group: of one process, or of one for each of its devices.
            names: of these devices, by rank.
            answers: of the processes.
        """
        for rank, answer in enumerate(answers):
            own = dict.fromkeys(names if len(answers) == 1 else [names[rank]])
            held = answer.memory
            for name, returned, free in zip(own, held.returned_bytes, held.free_bytes, strict=False) if held else ():
                process = (id(group), rank)
                self._returned[name][process] = max(returned, self._returned[name].get(process, 0))
                self._free[name] = min(free, self._free.get(name, free))

    @property
    def fit(self) -> bool:
        """Whether every card can hold them all; not where nothing is known, as on CPUs."""
        needed = {name: sum(processes.values()) for name, processes in self._returned.items()}
        return bool(needed) and all(needed[name] <= CACHES_SHARE * self._free[name] for name in needed)


def capacity_lines(run: Observations, arms: Sequence[Arm], *, forked: bool, shared: Path = SHARED_MEMORY) -> list[str]:
    """Return what may get short on this host, in lines of the plan.

    Args:
        run: has the jobs of the arms.
        arms: that are started at the same time.
        forked: whether their processes are forked from a template.
        shared: the folder of shared memory.

    Raises:
        ValueError: a container has no memory for the processes.
    """
    hosts = run.plan.config.devices.hosts
    workers = run.processes(arms) // hosts
    if lacking := limits.lacking(workers, forked=forked):
        raise ValueError(lacking)
    found = [limits.tight(workers, forked=forked)]
    if hosts == 1:  # on several the files of the data are elsewhere
        found.append(_short_of_shared(map(run.jobs.__getitem__, arms), shared))
    return [f"plan: {each}" for each in found if each]


def slow_start(run: Observations, session: Session, arms: Iterable[Arm]) -> list[str]:
    """Return what the starts of scripts leave of the budget, in a line after the first session's, if they take long."""
    if session.number or session.starting_s < SLOW_START_S or not any(arm.runs_script for arm in arms):
        return []
    budget_s, start_s = run.plan.config.budget.seconds, session.starting_s
    return [
        f"the scripts took {start_s:.0f} s until their first updates, and every session starts them again: the budget "
        f"of {budget_s:.0f} s has time for {math.floor(budget_s / start_s)} session(s) at most, and a verdict takes "
        f"{FIRST_LOOK} or more; choose a larger --scaling-budget, or let the script load less"
    ]


def _short_of_shared(jobs: Iterable[Job], shared: Path) -> str:
    """Return a sentence where the processes of loaders hand over more than fits into shared memory; "" where it fits.

    Every process has the minibatches there that it has read ahead, and a rank the one that it trains on.
    """
    needed_bytes = sum(_handed_over_bytes(job) for job in jobs)
    with contextlib.suppress(OSError):
        free_bytes = shutil.disk_usage(shared).free
        if needed_bytes > free_bytes:
            return (
                f"the loaders keep {needed_bytes / 1e6:.0f} MB of minibatches in {shared}, where {free_bytes / 1e6:.0f}"
                f' MB are free: {MORE_SHARED_MEMORY}, or use loader = "resident"'
            )
    return ""


def _handed_over_bytes(job: Job) -> int:
    """Return what the loaders of all ranks of a job keep in shared memory; 0 where data are in memory."""
    if not (loaders := LOADERS[job.workload.loader]):
        return 0
    data_bytes = sum(path.stat().st_size for path in Path(job.dataset.folder).glob("train_*"))
    return (READ_AHEAD * loaders + 1) * job.global_batch * data_bytes // job.dataset.train_samples
