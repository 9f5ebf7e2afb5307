"""The warm template and the launcher: what workers share, when a group cannot start, and what is started again."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest

from suite import template
from suite.checks.bench import Bench
from suite.processes.channel import Channel, ChannelClosed, Ended, Exit, Start
from suite.processes.failure import WorkerFailure
from suite.processes.pool import Pool
from suite.room import limits, quiet
from tests.support import on_ranks
from tests.support.processes import ENDED_AGAIN, RESTARTED, all_end, kill_launcher, launcher_of, pid_of_rank
from tests.support.project import REPOSITORY

HERE = "tests.processes.test_template"
forked = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="workers are forked on Linux only")
linux = pytest.mark.skipif(sys.platform != "linux", reason="processes end with their parent on Linux only")


def what_a_worker_starts_with() -> dict[str, Any]:
    import torch

    return {
        "compiler": "torch._dynamo" in sys.modules,
        "cuda": torch.cuda.is_initialized(),
        "draw": random.random(),
    }


def test_a_worker_has_torch_and_its_compiler_and_draws_of_its_own(bench: Bench) -> None:
    first, second = on_ranks.run(bench, f"{HERE}:what_a_worker_starts_with", [2])[2]
    assert first["compiler"]
    assert not first["cuda"]
    assert first["draw"] != second["draw"]


def test_a_template_with_a_second_thread_refuses_to_fork() -> None:
    """A fork would copy locks that the other thread holds, and nothing would release them."""
    sent: list[Ended] = []
    made = template.Template.__new__(template.Template)
    made._channel = type("Sent", (), {"send": staticmethod(sent.append)})()
    done = threading.Event()
    thread = threading.Thread(target=done.wait, args=(60,))
    thread.start()
    made._start(Start("g", 1, "", ()))
    done.set()
    thread.join(60)
    [answer] = sent
    assert answer.group == "g"
    assert "threads and cannot fork" in answer.cause


@pytest.fixture
def sleepers() -> Iterator[list[int]]:
    """Two children that sleep and lead no process group of their own."""
    pids = [os.posix_spawnp("sleep", ["sleep", "600"], os.environ) for _ in range(2)]
    yield pids
    for pid in pids:
        with contextlib.suppress(ChildProcessError):  # somebody has waited for it
            if not os.waitpid(pid, os.WNOHANG)[0]:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


@forked
@pytest.mark.parametrize(("forks", "watched"), [(0, 0), (1, 0), (1, 1), (2, 1)])
def test_a_limit_on_processes_or_descriptors_ends_the_group_with_the_cause_once_its_ranks_have_ended(
    sleepers: list[int], monkeypatch: pytest.MonkeyPatch, forks: int, watched: int
) -> None:
    """Of two ranks `forks` are there when the limit is reached, and `watched` of them have a descriptor."""
    left, opens = sleepers[:forks], os.pidfd_open
    cause = os.strerror(errno.EAGAIN)

    def fork() -> int:
        if not left:
            raise BlockingIOError(errno.EAGAIN, cause)
        return left.pop(0)

    def pidfd_open(pid: int) -> int:
        if pid not in sleepers[:watched]:
            raise BlockingIOError(errno.EAGAIN, cause)
        return opens(pid)

    monkeypatch.setattr(os, "fork", fork)
    monkeypatch.setattr(os, "pidfd_open", pidfd_open)
    monkeypatch.setattr(template, "count_threads", lambda: 1)
    own, controllers = map(Channel, socket.socketpair())
    made = template.Template(own, timed=True)
    made._start(Start("g", 2, "", ()))
    for _ in range(watched):
        with pytest.raises(TimeoutError):
            controllers.receive(0.01)
        [(key, _)] = made._selector.select(5)
        made._reap(key)
    cause = f"the template cannot start 2 workers: [Errno {errno.EAGAIN}] {cause}"
    assert controllers.receive(5) == {"event": "ended", "group": "g", "failures": [], "cause": cause}
    made._selector.close()
    own.close()
    with pytest.raises(ChannelClosed):
        controllers.receive(5)
    controllers.close()
    for pid in sleepers[:forks]:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    for pid in sleepers[forks:]:
        assert os.waitpid(pid, os.WNOHANG) == (0, 0), "a process that is no rank lives"


@forked
def test_the_first_failure_also_ends_a_rank_that_does_not_lead_a_process_group_yet(sleepers: list[int]) -> None:
    failed, late = sleepers
    group = template.ForkedGroup({failed: 0, late: 1})
    group.end(failed, 1)
    assert all_end([late], within_s=5)
    assert (group.running, group.failures) == ({late: 1}, [Exit(0, 1)])


@pytest.fixture
def renewed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    """A pool that loads three templates at once, and whose first one is up."""
    monkeypatch.setattr("suite.room.limits.available_cores", lambda: {0, 1, 2})
    with Pool(kind="cpu", import_paths=[REPOSITORY], templates="renewed") as made:
        parent_of_a_rank(made, "first")
        yield made


def parent_of_a_rank(pool: Pool, name: str) -> int:
    group = pool.launch(name, 1)
    [answer] = group.request(dict, "call", function="os:getppid", arguments={})
    group.close()
    return int(answer["returned"])


@pytest.mark.nightly
@forked
class TestSeveralAtOnce:
    """Templates for several sessions are loaded at the same time, one a core."""

    def test_each_session_has_one_that_no_other_session_had(self, renewed: Pool) -> None:
        first, parents, waited_for = renewed._process.pid, set[int](), list[float]()
        for number in range(3):
            waited_for.append(renewed.launchers.next_load_s)
            renewed.renew()
            renewed.wait_for_templates()
            parents.add(parent_of_a_rank(renewed, f"session {number}"))
        assert len(parents) == 3
        assert waited_for[:2] == [0.0, 0.0] < waited_for[2:]
        assert renewed.launchers.loading_s == renewed.launchers.load_s / 3 > 0.0
        assert all_end([first])

    def test_nothing_is_timed_beside_one_that_loads(self, renewed: Pool) -> None:
        renewed.wait_for_templates()
        assert [each.loading for each in renewed.launchers.all] == [False] * 3

    def test_one_that_ends_before_its_session_costs_nothing(self, renewed: Pool) -> None:
        renewed.wait_for_templates()
        killed = renewed.launchers.all[1].pid
        launcher_of(renewed.launchers.all[1]).kill()
        assert all_end([killed])
        renewed.wait(time.monotonic() + 1)
        renewed.renew()
        assert renewed._process.pid != killed
        assert renewed._launcher_deaths == 0, "another one that ends is started again"
        assert parent_of_a_rank(renewed, "second")

    def test_no_other_process_passes_for_one_that_loads_which_is_ended_if_it_is_late(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("suite.room.limits.available_cores", lambda: {0, 1})
        with Pool(kind="cpu", import_paths=[REPOSITORY], templates="renewed") as made:
            [_, late] = made.launchers.all
            launcher_of(late).suspend()
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
                stranger.connect(str(made.folder / "controller"))
                stranger.sendall(b'{"event": "launcher"}\n')
                parent_of_a_rank(made, "first")
                stranger.settimeout(2)
                assert stranger.recv(1) == b""
            assert late.loading
            made.wait_for_templates(timeout_s=0.5)
            assert made.launchers.all == (made.launchers.current,)
            assert all_end([late.pid])

    def test_all_end_with_the_pool(self) -> None:
        with Pool(kind="cpu", import_paths=[REPOSITORY], templates="renewed") as made:
            pids = [each.pid for each in made.launchers.all]
            assert len(pids) == limits.templates()
        assert all_end(pids)


def test_a_pool_that_is_not_renewed_has_one(bench: Bench) -> None:
    assert bench.pool.launchers.all == (bench.pool.launchers.current,)


@linux
def test_a_template_that_had_nothing_to_do_or_still_loads_costs_nothing() -> None:
    """The kernel may end it at any time."""
    said: list[str] = []
    with Pool(kind="cpu", import_paths=[REPOSITORY]) as pool:
        pool.restarted = said.append
        kill_launcher(pool)
        parent_of_a_rank(pool, "first")
        assert re.fullmatch(RESTARTED, "".join(said))
        kill_launcher(pool)
        assert all_end([pool._process.pid])
        with pytest.raises(WorkerFailure, match=ENDED_AGAIN):
            pool.launch("second", 1)


@linux
def test_a_template_that_waited_for_a_later_session_takes_its_place_at_once() -> None:
    said: list[str] = []
    with Pool(kind="cpu", import_paths=[REPOSITORY], templates="renewed") as pool:
        pool.restarted = said.append
        pool.wait_for_templates()
        waits = pool.launchers.all[-1]
        kill_launcher(pool)
        assert all_end([pool._process.pid])
        parent_of_a_rank(pool, "first")
        assert pool._process is waits or len(quiet.available_cores()) == 1, "on one core none waits"
    assert re.fullmatch(RESTARTED, "".join(said))


@linux
def test_the_kernel_ends_a_worker_before_its_template_where_memory_is_short(bench: Bench) -> None:
    pid = pid_of_rank(bench.group(1))
    own, of_worker = (int(Path(f"/proc/{each}/oom_score_adj").read_text()) for each in ("self", pid))
    assert of_worker == min(quiet.MOST_OOM_SCORE, own + quiet.OOM_SCORE)


def what_the_controller_hears(log_dir: str) -> dict[str, Any]:
    """Start a group as the launcher does, and return what arrives at the other end of its connection."""
    from suite import launch  # loads torch

    own, controllers = map(Channel, socket.socketpair())
    launch.run_group(own, Start("group", 1, log_dir, ()), threading.Lock(), {"group"})
    return controllers.receive(30)


def test_a_group_without_a_folder_for_its_outputs_ends_with_the_cause(bench: Bench, tmp_path: Path) -> None:
    """The disk may be full by then, or the folder of another user."""
    taken = tmp_path / "taken"
    taken.touch()
    [heard] = on_ranks.run(bench, f"{HERE}:what_the_controller_hears", [1], log_dir=str(taken))[1]
    cause = f"NotADirectoryError: log_dir: {taken} is a file"
    assert heard == {"event": "ended", "group": "group", "failures": [], "cause": cause}


def what_the_reaper_is_told(log_dir: str, away: bool) -> list[list[tuple[int, int]]]:
    """Run two groups that end one after the other, and return the signals that were sent by the end of each.

    Args:
        log_dir: an empty folder.
        away: whether the controller is on another host.
    """
    from suite import launch  # loads torch

    begun = {name: threading.Event() for name in ("first", "second")}
    over = {name: threading.Event() for name in begun}
    signals: list[tuple[int, int]] = []

    def agent(config: Any, _: str) -> Callable[..., None]:
        def waits(*_: str) -> None:
            begun[config.run_id].set()
            assert over[config.run_id].wait(30)

        return waits

    own, controllers = map(Channel, socket.socketpair())
    by_the_end_of_each = []
    with (
        mock.patch.object(launch, "elastic_launch", agent),
        mock.patch.object(os, "kill", lambda *sent: signals.append(sent)),
    ):
        serving = threading.Thread(target=launch.serve, args=(own, lambda start: start), kwargs={"away": away})
        serving.start()
        for name in begun:
            controllers.send(Start(name, 1, log_dir, ()))
        assert all(each.wait(30) for each in begun.values())
        for name in begun:
            over[name].set()
            assert controllers.receive(30)["group"] == name
            by_the_end_of_each.append(list(signals))
        controllers.close()
        serving.join(30)
    return by_the_end_of_each


def test_the_reaper_of_another_host_is_told_when_the_last_group_there_has_ended(bench: Bench, tmp_path: Path) -> None:
    """It ends what ranks have left then; a group that still runs may need that."""
    function = f"{HERE}:what_the_reaper_is_told"
    [elsewhere] = on_ranks.run(bench, function, [1], log_dir=str(tmp_path), away=True)[1]
    parent = psutil.Process(bench.group(1).pids[0]).ppid()
    assert elsewhere == [[], [[parent, signal.SIGUSR1]]]
    [here] = on_ranks.run(bench, function, [1], log_dir=str(tmp_path), away=False)[1]
    assert here == [[], []]
