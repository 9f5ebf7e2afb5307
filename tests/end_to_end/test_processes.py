"""Workers that torch's agent executes do what forked ones do, and no process is left whatever ends."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from suite.base.sides import hosts_of
from suite.processes import channel, reaper
from suite.processes.failure import WorkerFailure
from suite.processes.pool import Pool
from suite.room import devices
from tests.processes.test_pool import (  # noqa: F401
    dataset,
    test_a_killed_rank_is_named_with_its_signal,
    test_one_worker_times_any_precision_and_layout_and_ends,
    test_the_first_command_has_time_to_load_torch,
    test_two_ranks_time_windows_and_a_hang_ends_with_every_ranks_stack,
)
from tests.processes.test_reaper import (  # noqa: F401
    DOES,
    does,
    group,
    test_a_daemon_of_a_worker_ends_with_the_last_group,
    test_a_rank_that_closes_our_connection_is_not_called_killed,
    test_what_other_code_writes_to_our_connection_is_told_from_answers_and_from_deaths,
)
from tests.support.processes import all_end
from tests.support.project import REPOSITORY
from tests.support.several_hosts import SECRET

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="subreapers and /proc are Linux's")


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(kind="cpu", import_paths=[REPOSITORY], templates="none") as made:
        yield made


def test_output_is_bounded_and_its_end_is_shown(pool: Pool) -> None:
    loud = pool.launch("loud", 1)
    does(loud, "shout", megabytes=40)
    [log] = (pool.folder / "logs" / loud.name).glob("**/0/stderr.log")
    deadline = time.monotonic() + 75  # something else may give back space at the same time
    while log.stat().st_blocks * 512 > reaper.MOST_BYTES and time.monotonic() < deadline:
        time.sleep(0.1)
    assert log.stat().st_blocks * 512 <= reaper.MOST_BYTES
    with pytest.raises(WorkerFailure, match="rank 0: its process ended with exit code 3") as caught:
        does(loud, "leave", code=3)
    assert "these are my last words" in str(caught.value)
    pool.launch("next", 1).kill()
    assert not log.exists(), "the outputs of groups that are gone are dropped"


def test_a_worker_that_hangs_before_it_connects_is_ended(tmp_path: Path) -> None:
    """A file that the interpreter loads at its start never returns, so the controller does not know the pid."""
    hangs = "import sys, time\nif '--group' in sys.orig_argv:\n    time.sleep(600)\n"
    (tmp_path / "sitecustomize.py").write_text(hangs)
    with Pool(kind="cpu", import_paths=[tmp_path], templates="none") as pool:
        group = pool.launch("hangs", 2)
        with pytest.raises(WorkerFailure, match="ranks 0, 1: no answer to 'start' within 12 s"):
            group.start_timeout_s = 12.0
            group.wait_connected()
        assert group.ended is not None, "the launcher has seen its workers end"
        assert not [p for p in psutil.Process(pool._process.pid).children(recursive=True) if "--group" in p.cmdline()]


@pytest.mark.parametrize("templates", ["one", "none"])
def test_nothing_is_left_when_the_controller_is_killed(templates: str, tmp_path: Path) -> None:
    """SIGKILL leaves the controller no time to clean up: reaper, launcher, workers and their daemons end even so."""
    code = (
        "from suite.processes.pool import Pool\n"
        f"pool = Pool(kind='cpu', templates={templates!r}); group = pool.launch('g', 2); group.wait_connected()\n"
        f"[one, two] = group.request(dict, 'call', function='{DOES}leave_a_daemon', arguments={{}})\n"
        "import psutil\n"
        "ours = [process.pid for process in psutil.Process().children(recursive=True)]\n"
        "print(one['returned'], two['returned'], *ours, flush=True)\n"
        "import time; time.sleep(600)\n"
    )
    controller = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(REPOSITORY)},
    )
    assert controller.stdout is not None
    pids = {int(pid) for pid in controller.stdout.readline().split()}
    assert len(pids) == 6, "two daemons, which are the reaper's children, the reaper, the launcher and two workers"
    assert all(psutil.pid_exists(pid) for pid in pids)
    controller.kill()
    controller.wait()
    assert all_end(pids)


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return where two hosts meet, of which this process is one; both have its environment and an empty TMPDIR."""
    importlib.import_module("torch._dynamo")  # makes a folder in TMPDIR when this process first imports it
    with channel.listen_on_loopback() as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    environment = {"PET_RDZV_ENDPOINT": address, "PET_RDZV_ID": "7", "SCALING_SECRET": SECRET, "TMPDIR": str(tmp_path)}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.setattr("tempfile.tempdir", None)  # Python has noted another TMPDIR
    monkeypatch.chdir(REPOSITORY)
    return address


def test_two_hosts_leave_nothing_in_tmpdir(tmp_path: Path, endpoint: str) -> None:
    """On every host torchrun makes a folder for logs, which it leaves."""
    ours = hosts_of(devices.parse("2xcpu:1"))
    with Pool(kind="cpu", hosts=ours) as pool:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--rdzv-backend=c10d"]
        torchrun += [f"--rdzv-endpoint={endpoint}", "--rdzv-id=7", "--rdzv-conf=is_host=0", "-m", "suite.worker"]
        other = subprocess.Popen(torchrun, stderr=subprocess.PIPE, text=True)
        pool.group("both", 2).wait_connected()
        assert (tmp_path / pool.folder.name).is_dir()
    assert "served the controller until the run was over" in other.communicate(timeout=60)[1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("endpoint")
def test_a_host_joins_one_pool_after_the_other_by_the_loop_of_the_page() -> None:
    """A session of pytest with cells and checks has two pools. The other host takes itself to be another machine."""
    page = (REPOSITORY / "docs" / "several-machines.md").read_text(encoding="utf-8")
    [loop] = re.findall(r"^while torchrun .*?done$", page, re.MULTILINE | re.DOTALL)
    command = ["bash", "-c", loop.replace("--rdzv-conf=", "--rdzv-conf=is_host=0,")]
    with subprocess.Popen(command, start_new_session=True) as other:
        try:
            for _ in range(2):
                with Pool(kind="cpu", hosts=hosts_of(devices.parse("2xcpu:1"))) as pool:
                    pool.group("both", 2).wait_connected()
        finally:
            os.killpg(other.pid, signal.SIGTERM)
