"""A launcher or template that is killed is started again, once, and costs the session that it had."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from suite.checks.bench import Bench
from suite.processes.failure import WorkerFailure
from suite.processes.group import Group
from suite.processes.pool import Pool
from suite.room import quiet
from tests.support.processes import all_end, kill_launcher
from tests.support.project import REPOSITORY

RESTARTED = (
    r"the launcher has ended: signal 9 \(SIGKILL\); dmesg may tell what ended it; "
    r"it is started again, once in a run, and what it did is repeated"
)
ENDED_AGAIN = r"the launcher has ended again: signal 9 \(SIGKILL\); dmesg may tell what ended it"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes end with their parent on Linux only")


def pid_of_rank(group: Group) -> int:
    [answer] = group.request(dict, "call", function="os:getpid", arguments={})
    return int(answer["returned"])


@pytest.fixture
def forks() -> bool:
    return True


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def pool(forks: bool, said: list[str]) -> Iterator[Pool]:
    with Pool(kind="cpu", import_paths=[REPOSITORY], templates="one" if forks else "none") as made:
        made.restarted = said.append
        yield made


def test_a_template_that_had_nothing_to_do_or_still_loads_costs_nothing(pool: Pool, said: list[str]) -> None:
    """The kernel may end it at any time."""
    kill_launcher(pool)
    group = pool.launch("first", 1)
    pid_of_rank(group)
    group.close()
    assert re.fullmatch(RESTARTED, "".join(said))
    kill_launcher(pool)
    assert all_end([pool._process.pid])
    with pytest.raises(WorkerFailure, match=ENDED_AGAIN):
        pool.launch("second", 1)


def test_a_template_that_waited_for_a_later_session_takes_its_place_at_once(said: list[str]) -> None:
    with Pool(kind="cpu", import_paths=[REPOSITORY], templates="renewed") as pool:
        pool.restarted = said.append
        pool.wait_for_templates()
        waits = pool.launchers.all[-1]
        kill_launcher(pool)
        assert all_end([pool._process.pid])
        pid_of_rank(pool.launch("first", 1))
        assert pool._process is waits or len(quiet.available_cores()) == 1, "on one core none waits"
    assert re.fullmatch(RESTARTED, "".join(said))


def test_the_kernel_ends_a_worker_before_its_template_where_memory_is_short(bench: Bench) -> None:
    own, of_worker = (
        int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in ("self", pid_of_rank(bench.group(1)))
    )
    assert of_worker == min(quiet.MOST_OOM_SCORE, own + quiet.OOM_SCORE)
