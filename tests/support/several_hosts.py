"""Hosts for tests: network namespaces with a cable between them, each with its own core, folder and clock.

A host has its own network and a private folder for temporary files; of the other hosts' it sees nothing. Its clock may
be wrong: a library that is loaded before libc moves CLOCK_REALTIME.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from suite.processes.hosts import CLOCKS
from suite.room.quiet import available_cores
from tests.support.project import REPOSITORY

SECRET = "a secret of sixteen characters or more"
ENDPOINT = "10.215.0.1:29400"
TOOLS = ("ip", "tc", "unshare", "taskset", "cc")
OFF_BY_S = 3600 * 24 * 30

needs_namespaces = [
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.skipif(
        bool(missing := [tool for tool in TOOLS if shutil.which(tool) is None]),
        reason=f"not installed: {', '.join(missing)}",
    ),
    pytest.mark.skipif(len(available_cores()) < 2, reason="two hosts need a core each"),
]

WRONG_CLOCK = """\
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
static const long off = OFF;
int clock_gettime(clockid_t id, struct timespec *out) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, out);
    if (id == CLOCK_REALTIME) out->tv_sec -= off;
    return result;
}
time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
int gettimeofday(struct timeval *out, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""


class Hosts:
    """So many hosts on one bridge; the first has the endpoint.

    Attributes:
        count: of the hosts.
    """

    def __init__(self, folder: Path, count: int = 2, *, share_cores: bool = False) -> None:
        self.count, self._folder, self._share_cores = count, folder, share_cores
        self._names = [f"scaling-{os.getpid()}-{number}" for number in range(count)]
        self._started: list[subprocess.Popen[str]] = []

    def set_up(self) -> None:
        """Make the namespaces, with a bridge in the first."""
        for name in self._names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        first = self._names[0]
        ip("-n", first, "link", "add", "net", "type", "bridge")
        ip("-n", first, "address", "add", self.address(0) + "/24", "dev", "net")
        ip("-n", first, "link", "set", "net", "up")
        for number, name in enumerate(self._names[1:], 1):
            ip("link", "add", f"to{number}", "netns", first, "type", "veth", "peer", "name", "cable", "netns", name)
            ip("-n", first, "link", "set", f"to{number}", "master", "net")
            ip("-n", first, "link", "set", f"to{number}", "up")
            ip("-n", name, "address", "add", self.address(number) + "/24", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")

    def tear_down(self) -> None:
        """End what was started, and remove the namespaces."""
        for process in self._started:
            self.end(process)
        for name in self._names:
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)

    def address(self, number: int) -> str:
        return f"10.215.0.{number + 1}"

    def limit(self, rate: str) -> None:
        """Let every cable send no more than `rate` in both directions."""
        for number, name in enumerate(self._names[1:], 1):
            for where, device in ((self._names[0], f"to{number}"), (name, "cable")):
                tbf = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms"]
                subprocess.run(["tc", "-n", where, "qdisc", "add", "dev", device, *tbf], check=True)

    def cut(self, number: int) -> None:
        """Pull out the cable of a host: nothing arrives any more, and nobody is told."""
        ip("-n", self._names[number], "link", "set", "cable", "down")

    def start(
        self, number: int, *command: str, cwd: Path, clock: Path | None = None, **variables: str
    ) -> subprocess.Popen[str]:
        """Start a command on a host, in a process group of its own."""
        own = self._folder / f"host-{number}"
        own.mkdir(exist_ok=True)
        others = [self._folder / f"host-{other}" for other in range(self.count) if other != number]
        hidden = "".join(f"mkdir -p {other} && mount -t tmpfs none {other} && " for other in others)
        cores = available_cores()
        own_cores = cores if self._share_cores else [cores[number % len(cores)]]
        environment = {
            **os.environ,
            "PYTHONPATH": str(cwd if (cwd / "suite").is_dir() else REPOSITORY),
            "TMPDIR": str(own),
            "SCALING_SECRET": SECRET,
            "PET_RDZV_ENDPOINT": ENDPOINT,
            "PET_RDZV_ID": "test",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # hosts in namespaces have names that no resolver knows
            **({"LD_PRELOAD": str(clock)} if clock else {}),
            **variables,
        }
        pinned = ["ip", "netns", "exec", self._names[number], "taskset", "-c", ",".join(map(str, own_cores))]
        process = subprocess.Popen(
            [*pinned, "unshare", "--mount", "sh", "-c", f'{hidden}exec "$@"', "sh", *command],
            cwd=cwd,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def join(self, number: int, *, cwd: Path, clock: Path | None = None, **variables: str) -> subprocess.Popen[str]:
        """Let a host take part, as docs/several-machines.md has it."""
        torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={self.count}", "--rdzv-backend=c10d"]
        torchrun += [f"--rdzv-endpoint={ENDPOINT}", "--rdzv-id=test", f"--rdzv-conf={CLOCKS}"]
        torchrun += [f"--local-addr={self.address(number)}", "-m", "suite.worker"]
        return self.start(number, *torchrun, cwd=cwd, clock=clock, **variables)

    def end(self, process: subprocess.Popen[str]) -> None:
        """End a command with all its processes, as a host ends that loses its power."""
        for pid in (process.pid, *_children(process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(30)


@contextlib.contextmanager
def hosts(folder: Path, count: int = 2, *, share_cores: bool = False) -> Iterator[Hosts]:
    made = Hosts(folder, count, share_cores=share_cores)
    try:
        made.set_up()
        yield made
    finally:
        made.tear_down()


def wrong_clock(folder: Path) -> Path:
    """Return a library that lets the processes which load it live `OFF_BY_S` in the past."""
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(WRONG_CLOCK.replace("OFF;", f"{OFF_BY_S};"))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def _children(pid: int) -> list[int]:
    import psutil

    with contextlib.suppress(psutil.Error):
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return []
