"""What there is room for: processes and minibatches in a container's memory, and sessions in a budget."""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from suite.plan.cells import Arm
from suite.processes.jobs import LOADERS, READ_AHEAD, Job
from suite.room import limits
from suite.room.check import SHARED_MEMORY
from suite.room.errors import MORE_SHARED_MEMORY
from suite.run.observations import Observations, Session
from suite.verdict import FIRST_LOOK

SLOW_START_S = 60.0  # of a script until its first updates


def lines(run: Observations, arms: Sequence[Arm], *, forked: bool, shared: Path = SHARED_MEMORY) -> list[str]:
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
