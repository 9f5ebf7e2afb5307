"""A run whose launcher or template is killed, and a launcher that is started again, as the template is."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import psutil
import pytest

from suite.base.sides import Sides
from suite.plan.cells import Cell
from suite.plan.workloads import Recipe, Workload
from suite.processes.failure import LauncherEnded, WorkerFailure
from suite.processes.pool import Pool
from suite.run import campaign, results
from suite.run.observations import Observations
from suite.verdict import Outcome
from tests.support import learners, mischief
from tests.support.measurements import run_of, settings
from tests.support.processes import ENDED_AGAIN, RESTARTED, all_end, kill_launcher, pid_of_rank
from tests.support.project import REPOSITORY

BLOBS = f"{learners.__name__}:overlapping_blobs"
TINY = Workload(
    name="tiny", model="toy", dataset=BLOBS, batch=32, accuracy=Recipe(dataset=BLOBS, init="default", epochs=3)
)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes end with their parent on Linux only")


def measure(cell: Cell, *moments: str, sessions: int, forks: bool = True) -> tuple[Observations, list[str]]:
    """Run a small campaign, and kill the launcher when progress says the first of `moments`, and then the next."""
    made, lines, left = list[Sides](), list[str](), list(moments)

    def sides(kind: str, root: Path, paths: tuple[Path, ...], hosts: None, note: Callable[[str], None]) -> Sides:
        with pytest.MonkeyPatch.context() as patch:
            if not forks:
                patch.delattr("os.pidfd_open")
            made.append(Sides(kind, root, paths, hosts, note))
        return made[0]

    def say(line: str) -> None:
        lines.append(line)
        if left and left[0] in line:
            left.pop(0)
            kill_launcher(made[0].pools["candidate"].pool)

    def clock() -> float:
        """The budget is spent as soon as there are so many sessions."""
        return 1000.0 if len(run.sessions) >= sessions else time.monotonic() - begun

    begun = time.monotonic()
    config = settings(root=REPOSITORY, workloads=(TINY,), fixed=True, counters="off", explain=False)
    told = {"config": config, "versions": {}, "datasets": {}, "clock": clock, "begun_s": 0.0}
    run = run_of(cell, **told)
    campaign.measure(run, say, campaign.Collaborators(sides=sides))
    assert left == []
    return run, lines


def test_a_run_goes_on_when_its_launcher_is_killed() -> None:
    one = Cell("single", TINY.name, "strong", 1)
    run, lines = measure(one, "loading the dataset", sessions=1, forks=False)
    [cell] = results.to_record(run).cells
    assert cell.outcome is Outcome.NO_BASELINE
    assert (len(run.sessions), run.discarded, run.lost) == (1, [], {})
    [line] = [line for line in results.to_record(run).plan if "launcher" in line]
    assert re.fullmatch(RESTARTED, line)
    assert lines.count(line) == 1


def test_a_session_whose_template_is_killed_is_discarded_once_and_then_an_error() -> None:
    two = Cell("ddp", TINY.name, "strong", 2)
    run, lines = measure(two, "training ddp on 2 device(s)", "session 2: block 1", sessions=9)
    [line] = [line for line in results.to_record(run).plan if "launcher" in line]
    assert re.fullmatch(RESTARTED, line)
    assert sum("session 1: starting" in line for line in lines) == 2
    [discarded], [counts, failed] = run.discarded, run.sessions
    assert (discarded.number, counts.number, failed.number) == (0, 0, 1)
    assert discarded.windows
    assert [net.world_size for net in run.accuracies] == [1, 2], "the net on one device was trained in both"
    [cell] = results.to_record(run).cells
    assert cell.outcome is Outcome.ERROR
    assert re.fullmatch(ENDED_AGAIN, cell.reason)


@pytest.mark.parametrize("templates", ["one", "none"], ids=["forked", "executed"])
def test_what_was_asked_is_repeated_once_and_then_fails(templates: Literal["one", "none"]) -> None:
    said: list[str] = []
    with Pool(kind="cpu", import_paths=[REPOSITORY], templates=templates) as pool:
        pool.restarted = said.append
        group = pool.group("helper", 1)
        before = pid_of_rank(group)
        kill_launcher(pool)
        assert all_end([before]), "workers end with it"
        with pytest.raises(LauncherEnded):
            pid_of_rank(group)
        again = pool.group("helper", 1)
        after = pid_of_rank(again)
        assert re.fullmatch(RESTARTED, "".join(said))
        kill_launcher(pool)
        assert all_end([after])
        with pytest.raises(WorkerFailure, match=ENDED_AGAIN):
            pid_of_rank(again)
        with pytest.raises(WorkerFailure, match=f"late: {ENDED_AGAIN}"):
            pool.launch("late", 1)
        assert (len(said), pool.groups) == (1, {})


def test_where_nobody_repeats_it_fails_what_was_asked_and_the_next_group_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a correctness check, or a call of `on_ranks`. A rank that had failed before is not the template's fault."""
    monkeypatch.setattr("suite.processes.pool.END_TIMEOUT_S", 2.0)
    with Pool(kind="cpu", import_paths=[REPOSITORY]) as own:
        fails, works = own.launch("fails", 1), own.launch("works", 1)
        fails.post("call", function=f"{mischief.__name__}:leave", arguments={"code": 3})
        before, deadline = pid_of_rank(works), time.monotonic() + 60
        while fails.ended is None and own.wait(deadline):
            pass
        kill_launcher(own)
        assert all_end([before])
        with pytest.raises(WorkerFailure, match=r"the launcher has ended: signal 9 \(SIGKILL\)"):
            pid_of_rank(works)
        with pytest.raises(WorkerFailure, match="rank 0: its process ended with exit code 3"):
            fails.collect(dict, "call")
        after = pid_of_rank(works := own.launch("next", 1))
        reaper = psutil.Process(own._process.pid)
        reaper.suspend()  # and cannot tell how the launcher ended
        kill_launcher(own)
        assert all_end([after])
        with pytest.raises(WorkerFailure, match="the launcher has ended again: its connection was closed"):
            pid_of_rank(works)
        reaper.resume()
