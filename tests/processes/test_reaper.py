"""Every process that a run started ends, and what workers write, close or answer costs no more than their group."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from suite.processes.failure import WorkerFailure
from suite.processes.group import Group
from suite.processes.pool import Pool
from tests.support import mischief
from tests.support.processes import all_end
from tests.support.project import REPOSITORY

NO_PROCESS = (1 << 22) + 1  # above the highest number that the kernel gives
DOES = f"{mischief.__name__}:"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="subreapers and /proc are Linux's")


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)  # torch sets it in a process that compiles
        made = Pool(kind="cpu", import_paths=[REPOSITORY])
    with made:
        yield made


@pytest.fixture
def group(pool: Pool, request: pytest.FixtureRequest) -> Iterator[Group]:
    made = pool.launch(request.node.name, 1)
    made.wait_connected()
    yield made
    made.kill()


def does(group: Group, what: str, **arguments: object) -> object:
    [answer] = group.request(dict, "call", function=DOES + what, arguments=arguments)
    return answer["returned"]


def ignore_children() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def test_a_daemon_of_a_worker_ends_with_the_last_group(pool: Pool, group: Group) -> None:
    other = pool.launch("other", 1)
    other.wait_connected()
    daemon = int(str(does(group, "leave_a_daemon")))
    assert os.getpgid(daemon) not in group.pids.values()
    group.close()
    assert not all_end([daemon], within_s=0.5), "another group may need it"
    other.close()
    assert all_end([daemon])


@pytest.mark.parametrize(("module", "code"), [("this", 0), ("no_such_module", 1)])
def test_a_reaper_ends_as_its_launcher_does_also_where_the_end_of_children_is_ignored(
    tmp_path: Path, module: str, code: int
) -> None:
    command = [sys.executable, "-m", "suite.processes.reaper", str(tmp_path), module]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=ignore_children
    ) as reaper:
        try:
            assert reaper.wait(20) == code
        finally:
            reaper.kill()


@pytest.mark.parametrize("what", ["forge_an_answer", "write_garbage"])
def test_what_other_code_writes_to_our_connection_is_told_from_answers_and_from_deaths(group: Group, what: str) -> None:
    with pytest.raises(WorkerFailure, match="its connection to the controller broke and its process went on"):
        does(group, what)


def test_a_rank_that_closes_our_connection_is_not_called_killed(group: Group) -> None:
    with pytest.raises(WorkerFailure, match="its connection to the controller broke and its process went on"):
        does(group, "close_local_sockets")


def test_compiled_kernels_go_with_the_run(pool: Pool, group: Group) -> None:
    """Their usual folder has a name that others on the machine can foresee, and stays."""
    [answer] = group.request(dict, "call", function="os:getenv", arguments={"key": "TORCHINDUCTOR_CACHE_DIR"})
    assert Path(answer["returned"]).parent == pool.folder


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("explain_at_length", r"rank 0: RuntimeError: x+ \[\d+ characters left out\] x+"),
        ("answer_at_length", "rank 0: ValueError: the answer to 'call' has 20971.* bytes, above the 16777216"),
    ],
)
def test_more_text_than_a_message_holds_is_cut_and_not_a_broken_pipe(group: Group, what: str, message: str) -> None:
    with pytest.raises(WorkerFailure, match=message):
        does(group, what, megabytes=20)


@pytest.mark.parametrize(
    "said",
    [
        [1, 2],
        {"event": "hello"},
        {"event": "hello", "rank": "first"},
        {"event": "hello", "rank": 0},
        {"event": "hello", "rank": 7},
        {"event": "ended", "cause": "forged"},
        {"event": "launcher"},
    ],
    ids=["no object", "no rank", "a word for a rank", "a rank that is taken", "no such rank", "an end", "a launcher"],
)
def test_a_stranger_on_the_control_socket_is_cut_off_and_changes_nothing(pool: Pool, group: Group, said: Any) -> None:
    if isinstance(said, dict) and len(said) > 1:
        said = {**said, "group": group.name, "pid": NO_PROCESS}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.connect(str(pool.folder / "controller"))
        stranger.sendall(json.dumps(said).encode() + b"\n")
        [answer] = group.request(dict, "call", function="os:getpid", arguments={})
        assert answer["returned"] == group.pids[0]
        pool.wait(time.monotonic() + 0.1)
        stranger.settimeout(2)
        assert stranger.recv(1) == b""


def test_a_connection_cannot_name_another_process_as_the_one_to_end(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks of a group are killed by the numbers that they tell."""
    monkeypatch.setattr("suite.processes.group.END_TIMEOUT_S", 0.2)  # no launcher tells that it has ended
    group = Group(pool, "not started", 1)
    pool.groups[group.name] = group
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as bystander:
        try:
            stranger = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            stranger.connect(str(pool.folder / "controller"))
            hello = {"event": "hello", "group": group.name, "rank": 0, "pid": bystander.pid}
            stranger.sendall(json.dumps(hello).encode() + b"\n")
            for _ in range(2):  # it connects, and it speaks
                pool.wait(time.monotonic() + 1)
            group.kill()
            with pytest.raises(subprocess.TimeoutExpired):
                bystander.wait(0.2)
            stranger.close()
        finally:
            bystander.kill()


def test_a_process_that_got_a_ranks_number_later_is_left_alone(group: Group) -> None:
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        worker = group.pids[0]
        group.processes[0] = psutil.Process(stranger.pid)
        group.processes[0]._ident = (stranger.pid, 1.0)  # started before the stranger was
        group.pids[0] = stranger.pid
        group._stacks()
        os.killpg(worker, signal.SIGKILL)
        group.kill()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
