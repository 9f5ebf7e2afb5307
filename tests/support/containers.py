"""Containers for tests: control groups as files in the kernel's form, and real ones where root may make them.

The real ones are of version 1, whose controllers are mounted one by one, and of the kernel of this machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from suite.room import limits
from tests.support.project import REPOSITORY

CONTROLLERS = ("cpu", "cpuset", "devices", "memory")
TOOLS = ("mount", "setpriv", "unshare")
UNKNOWN_USER = 54321  # without an entry in /etc/passwd, as some clusters draw them
END_S = 10.0

needs_root = [
    pytest.mark.skipif(os.geteuid() != 0, reason="control groups and mounts need root"),
    pytest.mark.skipif(
        any(not os.access(limits.GROUPS / name, os.W_OK) for name in CONTROLLERS),
        reason=f"no control groups of version 1 for {', '.join(CONTROLLERS)}",
    ),
    pytest.mark.skipif(any(shutil.which(tool) is None for tool in TOOLS), reason=f"needs {', '.join(TOOLS)}"),
]

# Move this process into control groups, and begin the command.
ENTER = 'while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs" || exit 99; shift; done; shift; exec "$@"'
# In mounts of its own: a small /dev/shm, a home that cannot be written, and a user without rights. The one capability
# lets it read an interpreter that only root may: files stay as little writable as they are for that user.
POD = """\
mount -t tmpfs -o size="$1" tmpfs /dev/shm && mount --bind "$2" "$2" && mount -o remount,bind,ro "$2" || exit 99
export HOME="$2" && shift 2
exec setpriv --reuid USER --regid 0 --clear-groups --inh-caps=-all,+dac_read_search \\
    --ambient-caps=-all,+dac_read_search --bounding-set=-all,+dac_read_search "$@"
""".replace("USER", str(UNKNOWN_USER))


class Files:
    """Control groups as files, which `suite.room.limits` reads in place of the kernel's."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._own = folder, folder / "own"
        monkeypatch.setattr(limits, "GROUPS", folder)
        monkeypatch.setattr(limits, "OWN", self._own)
        self.own("0::/\n")

    def own(self, text: str) -> Files:
        self._own.write_text(text)
        return self

    def group(self, path: str = "", **files: object) -> Files:
        """Write the files of a group: `cpu_max` is cpu.max, `memory_oom_group` memory.oom.group."""
        folder = self.folder / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name.replace("_", ".", 1).replace("oom_group", "oom.group")).write_text(f"{text}\n")
        return self


class ControlGroup:
    """A real control group in some controllers, with these files.

    Args:
        files: by controller, what to write to which file.
    """

    def __init__(self, **files: Mapping[str, object]) -> None:
        self._name, self._files = f"scaling-{os.getpid()}-{time.monotonic_ns()}", files
        self.folders = [limits.GROUPS / controller / self._name for controller in files]

    def __enter__(self) -> ControlGroup:
        try:
            for folder, files in zip(self.folders, self._files.values(), strict=True):
                folder.mkdir()
                for name, text in files.items():
                    (folder / name).write_text(str(text))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        deadline = time.monotonic() + END_S
        for folder in self.folders:
            while folder.is_dir() and time.monotonic() < deadline:
                for pid in (folder / "cgroup.procs").read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
                with contextlib.suppress(OSError):  # busy until the last one has ended
                    folder.rmdir()
                    break
                time.sleep(0.05)
        assert not any(folder.is_dir() for folder in self.folders)

    def command(self, *command: str) -> list[str]:
        return ["sh", "-c", ENTER, "sh", *map(str, self.folders), "--", *command]

    def python(self, code: str, *, timeout_s: float = 60.0) -> str:
        return output(self.command(sys.executable, "-c", code), timeout_s=timeout_s)


def pod(shared: str, home: Path, *command: str) -> list[str]:
    """Return a command that runs with so much of /dev/shm, a read-only home, and as a user whom nobody knows."""
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", POD, "sh", shared, str(home), *command]


def output(command: Sequence[str], *, timeout_s: float, cwd: Path = REPOSITORY) -> str:
    """Return what a command prints to stdout and stderr; its processes have ended then."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "GITHUB"))}
    environment |= {"PYTHONPATH": str(REPOSITORY)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, cwd=cwd, env=environment, **pipes, text=True, start_new_session=True) as running:
        try:
            return running.communicate(timeout=timeout_s)[0]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)


@contextlib.contextmanager
def on_cores(cores: set[int]) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
