"""The hosts of a run: who has which ranks, what the environment must say, which hosts are refused, and for what."""

from __future__ import annotations

import os
import re
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from suite import worker
from suite.processes import hosts
from suite.processes.channel import (
    Channel,
    ChannelClosed,
    Launcher,
    Start,
    Welcome,
    listen_on_loopback,
    read,
)
from suite.processes.failure import WorkerFailure
from suite.processes.hosts import Hosts, Listener, OtherHosts
from suite.processes.pool import Pool
from tests.support.processes import arrives
from tests.support.project import REPOSITORY

ENVIRONMENT = {
    "PET_RDZV_ENDPOINT": "127.0.0.1:29400",
    "PET_RDZV_ID": "7",
    "SCALING_SECRET": "a secret of sixteen characters or more",
}
COMMIT, FILES = "c" * 40, {"suite/launch.py": "1", "mine.py": "2"}
LIKE_US = Launcher(host="b", torch="2.15.0", commit=COMMIT, files=FILES, cores=2, gpus=8, node=1)


def known(count: int = 3, per_host: int = 2, **changed: Any) -> Hosts:
    made = hosts.from_environment(count, per_host, torch="2.15.0", commit=COMMIT, files=FILES, environment=ENVIRONMENT)
    return replace(made, **changed)


# This host's launcher, without torchrun, once a file is there.
LATE = """\
while [ ! -e {go} ]; do sleep .02; done
while [ "$1" != --socket ]; do shift; done
exec {python} -m suite.launch --socket "$2"
"""

# This host's launcher, if it started nothing.
IDLE = """\
import signal, socket, sys
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
controller = socket.socket(socket.AF_UNIX)
controller.connect(sys.argv[sys.argv.index("--socket") + 1])
controller.sendall(b'{"event": "launcher"}\\n')
while controller.recv(1000):
    pass
"""


def program(folder: Path, *lines: str) -> str:
    python = folder / "python"
    python.write_text("\n".join(("#!/bin/sh", *lines, "")))
    python.chmod(0o755)
    return str(python)


@pytest.fixture
def idle(tmp_path: Path) -> str:
    """Return an interpreter that runs such a launcher, whatever it is asked to run."""
    (tmp_path / "idle.py").write_text(IDLE)
    return program(tmp_path, f'exec {sys.executable} {tmp_path}/idle.py "$@"')


@pytest.fixture
def elsewhere() -> Iterator[OtherHosts]:
    made = OtherHosts(known())
    yield made
    made.listener.close()


def channel() -> Any:
    return SimpleNamespace(peer="10.0.0.2")


def others(pool: Pool) -> OtherHosts:
    assert pool._other_hosts is not None
    return pool._other_hosts


def connect(listener: Listener) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(listener.address.rpartition(":")[2])), 5)


def joined(pool: Pool, *names: str) -> list[Channel]:
    """Have hosts of these names take part, and return their ends of the connections."""
    ends: list[Channel] = []

    def take_part() -> None:
        for node, name in enumerate(names, 1):
            end = hosts.dial(others(pool).listener.address, ENVIRONMENT["SCALING_SECRET"].encode())
            end.send(replace(LIKE_US, host=name, node=node))
            assert read(Welcome, end.receive(10)).refused == ""
            ends.append(end)

    thread = threading.Thread(target=take_part, daemon=True)
    thread.start()
    deadline = time.monotonic() + 10
    while thread.is_alive():
        assert pool.wait(deadline, 0.02)
    assert others(pool).complete
    return ends


@pytest.mark.parametrize(
    ("size", "spread", "parts"),
    [
        (1, False, [(0,)]),
        (2, False, [(0, 1)]),
        (3, False, [(0, 1), (2,)]),
        (6, False, [(0, 1), (2, 3), (4, 5)]),
        (2, True, [(0,), (1,)]),
        (4, True, [(0, 3), (1,), (2,)]),
    ],
)
def test_ranks_fill_one_host_after_the_other_or_go_to_them_in_turn(
    size: int, spread: bool, parts: list[tuple[int, ...]]
) -> None:
    assert known().layout(size, spread=spread) == parts


@pytest.mark.parametrize("endpoint", ["", "node0", ":29400", "node0:port"])
def test_an_endpoint_has_a_host_and_a_port(endpoint: str) -> None:
    with pytest.raises(ValueError, match=r"PET_RDZV_ENDPOINT is .*: several hosts need the HOST:PORT of torch"):
        hosts.from_environment(2, 1, environment=ENVIRONMENT | {"PET_RDZV_ENDPOINT": endpoint})


def test_an_endpoint_elsewhere_is_refused() -> None:
    with pytest.raises(ValueError, match=r"192\.0\.2\.1 is no address of this host .* pytest runs on the host"):
        OtherHosts(known(endpoint="192.0.2.1:29400"))


def test_a_port_that_another_process_has_is_named_before_any_host_is_waited_for() -> None:
    with listen_on_loopback() as listener:
        endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
        match = r"cannot listen on port \d+ of this host \(.*Address already in use\); choose another port on all hosts"
        with pytest.raises(ValueError, match=match):
            OtherHosts(known(endpoint=endpoint))
    OtherHosts(known(endpoint=endpoint)).listener.close()
    with pytest.raises(ValueError, match=r"cannot listen on port 99999 of this host .*0-65535"):
        OtherHosts(known(endpoint="127.0.0.1:99999"))


def test_hosts_are_in_the_order_of_torch(elsewhere: OtherHosts) -> None:
    for node, host in ((2, "c"), (0, "a")):
        welcome = elsewhere.welcome(channel(), replace(LIKE_US, host=host, node=node), "cuda", exact=False)
        assert welcome.refused == ""
    assert [str(host) for host in elsewhere.hosts] == ["a (10.0.0.2)", "c (10.0.0.2)"]
    assert elsewhere.complete
    assert not elsewhere.waiting
    assert "all 3 hosts are there already" in elsewhere.welcome(channel(), LIKE_US, "cpu", exact=False).refused


@pytest.mark.parametrize(
    ("changed", "kind", "refused"),
    [
        ({"torch": "2.9.0"}, "cpu", "it has torch 2.9.0, and the controller's host has 2.15.0"),
        ({"commit": "d" * 40}, "cpu", f"it has commit {'d' * 40}, and the controller's host has {COMMIT}"),
        ({"files": FILES | {"mine.py": "3"}}, "cpu", f"at commit {COMMIT} it has another mine.py"),
        ({"files": FILES | {"new.py": "4"}}, "cpu", f"at commit {COMMIT} it has another new.py"),
        ({"files": {}}, "cpu", f"at commit {COMMIT} it has another mine.py, suite/launch.py"),
        ({"cores": 1}, "cpu", "it has 1 core(s), and 2 are asked for"),
        ({"gpus": 0}, "cuda", "it has 0 GPU(s), and 2 are asked for"),
    ],
)
def test_a_host_that_differs_is_refused_and_both_are_named(
    elsewhere: OtherHosts, changed: dict[str, Any], kind: str, refused: str
) -> None:
    assert elsewhere.welcome(channel(), replace(LIKE_US, **changed), kind, exact=False).refused == refused
    assert elsewhere.missing() == f"host b (10.0.0.2) is refused: {refused}"
    assert not elsewhere.waiting


def test_a_host_that_leaves_is_named_and_cannot_be_waited_for(elsewhere: OtherHosts) -> None:
    its = channel()
    elsewhere.welcome(its, LIKE_US, "cpu", exact=False)
    assert elsewhere.waiting
    assert elsewhere.left(channel()) == "", "a worker's"
    assert elsewhere.left(its) == elsewhere.missing()
    assert elsewhere.missing() == "host b (10.0.0.2) has left the run: its launcher or its network has ended"
    assert not elsewhere.waiting


def test_a_host_that_is_there_before_the_controllers_own_launcher_takes_part(tmp_path: Path) -> None:
    go, asked = tmp_path / "go", list[Start]()
    python = program(tmp_path, LATE.format(go=go, python=sys.executable))
    with Pool(kind="cpu", python=python, hosts=known(count=2, per_host=1, join_s=60.0)) as pool:

        def take_part() -> None:
            other = hosts.dial(str(pool._other_hosts.listener.address), ENVIRONMENT["SCALING_SECRET"].encode())
            other.send(LIKE_US)
            assert read(Welcome, other.receive(30)).refused == ""
            go.touch()
            asked.append(read(Start, other.receive(60)))

        thread = threading.Thread(target=take_part, daemon=True)
        thread.start()
        pool.launch("both", 2)
        thread.join(60)
    assert [(start.group, start.ranks) for start in asked] == [("both", (1,))]


def test_all_ranks_of_a_large_cell_are_let_in_however_late_they_answer() -> None:
    """Three times as many connections as may be unproved, and strangers that never answer among the first of them."""
    secret = ENVIRONMENT["SCALING_SECRET"].encode()
    with Pool(kind="cpu", python="/bin/true", hosts=known(count=2, per_host=1)) as pool:
        listener = others(pool).listener
        connections = [connect(listener) for _ in range(3 * hosts.MOST_HANDSHAKES)]
        proved: list[hosts.Channel] = []

        def answer() -> None:
            for connection in connections[5:]:
                channel = hosts.Channel(connection)
                theirs = channel.receive(30)["challenge"]
                channel.send({"challenge": "own", "proof": hosts.proof(secret, "host", theirs, "own")})
                assert channel.receive(30)["proof"] == hosts.proof(secret, "controller", "own", theirs)
                proved.append(channel)

        thread = threading.Thread(target=answer, daemon=True)
        while not listener.full:
            assert pool.wait(time.monotonic() + 30)
        assert not pool.wait(time.monotonic() - 1)
        thread.start()
        deadline = time.monotonic() + 60
        while thread.is_alive():
            assert pool.wait(deadline, 0.05)
        assert len(proved) == len(connections) - 5
        assert (len(listener.handshakes), listener.refused) == (5, {})
        for handshake in listener.handshakes:
            handshake.deadline = 0.0
        pool.wait(time.monotonic() + 30, 0.0)
        assert listener.refused == {"127.0.0.1": "it has not proved in time that it knows the secret"}
        for connection in connections:
            connection.close()


def test_strangers_cannot_end_a_run() -> None:
    with Pool(kind="cpu", python="/bin/true", hosts=known(count=2, per_host=1)) as pool:
        listener, deadline = others(pool).listener, time.monotonic() + 30
        for nonsense in (b"[" * 1000, b'{"challenge": "\\ud800", "proof": "b"}', b"[]"):
            listener.refused.clear()
            with connect(listener) as stranger:
                stranger.sendall(nonsense + b"\n")
                while not listener.refused:
                    assert pool.wait(deadline)
                assert not listener.handshakes


def test_a_host_that_talks_nonsense_has_left() -> None:
    with Pool(kind="cpu", python="/bin/true", hosts=known(count=2, per_host=1)) as pool:
        [other] = joined(pool, "b")
        other.send({"event": "ended"})
        deadline = time.monotonic() + 30
        while not others(pool).problem:
            assert pool.wait(deadline)
        assert others(pool).problem.startswith("host b (127.0.0.1) has left the run")
        other.close()


def test_where_one_host_has_left_the_ranks_of_the_others_are_still_ended(idle: str) -> None:
    with Pool(kind="cpu", python=idle, hosts=known(count=3, per_host=1)) as pool:
        leaves, stays = joined(pool, "b", "c")
        group = pool.launch("g", 3)
        assert read(Start, stays.receive(10)).ranks == (2,)
        leaves.close()
        deadline = time.monotonic() + 10
        while group.ended is None:
            assert pool.wait(deadline)
        assert group.ended.cause.startswith("host b (127.0.0.1) has left the run")
        group.kill()
        assert stays.receive(1) == {"group": "g", "action": "kill"}
        stays.close()


def test_a_host_that_left_while_nobody_listened_is_named_instead_of_waited_for(idle: str) -> None:
    with Pool(kind="cpu", python=idle, hosts=known(count=2, per_host=1)) as pool:
        [leaves] = joined(pool, "b")
        leaves.close()
        assert arrives(others(pool).hosts[0].channel)
        with pytest.raises(WorkerFailure, match=r"^both: host b \(127\.0\.0\.1\) has left the run"):
            pool.launch("both", 2)


def test_a_proof_that_arrived_before_the_controller_looked_counts_although_its_time_is_over() -> None:
    with Pool(kind="cpu", python="/bin/true", hosts=known(count=2, per_host=1)) as pool:
        listener, deadline = others(pool).listener, time.monotonic() + 10
        proves, silent = (Channel(connect(listener)) for _ in range(2))
        while len(listener.handshakes) < 2:
            assert pool.wait(deadline)
        challenge, _ = proves.receive(5)["challenge"], silent.receive(5)
        proof = hosts.proof(ENVIRONMENT["SCALING_SECRET"].encode(), "host", challenge, "own")
        proves.send({"challenge": "own", "proof": proof})
        assert select.select([each.channel for each in listener.handshakes], [], [], 10)[0]
        for handshake in listener.handshakes:
            handshake.deadline = 0.0
        assert pool.wait(deadline, 0.0)
        assert not listener.handshakes
        assert "proof" in proves.receive(5)
        with pytest.raises(ChannelClosed):
            silent.receive(5)
        assert listener.refused == {"127.0.0.1": "it has not proved in time that it knows the secret"}
        for end in (proves, silent):
            end.close()


def test_a_launcher_that_ends_by_itself_is_the_cause_and_not_the_hosts_that_have_not_come(tmp_path: Path) -> None:
    python = program(tmp_path, "echo 'torchrun: error: argument --rdzv-conf' >&2", "exit 2")
    with Pool(kind="cpu", python=python, hosts=known(count=2, per_host=1)) as pool:
        for _ in range(2):
            with pytest.raises(WorkerFailure, match="the launcher did not start: torchrun: error: argument --rdzv"):
                pool.launch("both", 2)


def test_hosts_that_are_missing_are_counted_with_the_command_to_start_there(elsewhere: OtherHosts) -> None:
    elsewhere.welcome(channel(), LIKE_US, "cpu", exact=False)
    elsewhere.listener.refused["10.0.0.9"] = "its SCALING_SECRET differs"
    said = elsewhere.missing()
    assert said.startswith(
        "3 hosts should join at 127.0.0.1:29400 within 120 s, and 1 of the other 2 did: start `while torchr"
    )
    assert "--rdzv-conf=read_timeout=600,keep_alive_max_attempt=1000000 -m suite.worker; do :; done` on each" in said
    assert said.endswith("(a connection from 10.0.0.9 was closed: its SCALING_SECRET differs)")


def test_gloo_and_nccl_use_the_interface_of_the_endpoint_unless_the_user_says_otherwise() -> None:
    assert hosts.network("127.0.0.1", {}) == {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
    assert hosts.network("127.0.0.1", {"GLOO_SOCKET_IFNAME": "ib0"}) == {"NCCL_SOCKET_IFNAME": "=lo"}
    assert hosts.network("192.0.2.1", {}) == {}


def test_a_host_without_the_environment_of_the_run_says_what_is_missing() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ENVIRONMENT}
    command = [sys.executable, "-m", "suite.worker"]
    ended = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "PET_RDZV_ENDPOINT, SCALING_SECRET must be set as where pytest runs" in ended.stderr


def test_a_host_whose_folder_cannot_be_made_names_tmpdir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="2"):
        worker.main([])
    assert re.fullmatch(r"TMPDIR: \S+/file/\S+: Not a directory; choose another TMPDIR\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("name", "redirected", "left"), [("torchelastic_a", False, 0), ("torchelastic_a", True, 1), ("named", False, 1)]
)
def test_a_host_removes_the_folder_that_torchrun_made_for_logs_unless_it_has_any(
    tmp_path: Path, name: str, redirected: bool, left: int
) -> None:
    of_rank = tmp_path / name / "7_b" / "attempt_0" / "0"
    of_rank.mkdir(parents=True)
    if redirected:
        (of_rank / "stdout.log").touch()
    environment = os.environ | {"TORCHELASTIC_ERROR_FILE": str(of_rank / "error.json"), "SCALING_SECRET": ""}
    subprocess.run([sys.executable, "-m", "suite.worker"], cwd=REPOSITORY, env=environment, timeout=60, check=False)
    assert len(list(tmp_path.iterdir())) == left
