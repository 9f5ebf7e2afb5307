"""The process that starts a pool's workers on this host, as the controller sees it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from suite.processes import outputs
from suite.processes.channel import Channel
from suite.processes.group import END_TIMEOUT_S


class LauncherProcess:
    """`suite.launch`, torchrun around it, or `suite.template`; on Linux below a reaper, whose process this is then.

    Attributes:
        channel: its connection; None before it is up, and once that is gone.
        was_up: whether it ever was.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path, *, reaped: bool) -> None:
        """Start it.

        Args:
            command: that starts it.
            environment: of it and its workers.
            log: the file that gets its stderr.
            reaped: whether `command` is that of `suite.processes.reaper`.
        """
        self.channel: Channel | None = None
        self.was_up = False
        self._log, self._reaped = log, reaped
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,  # Ctrl-C reaches the controller, and the controller ends the rest in order
            )

    @property
    def pid(self) -> int:
        """Of the reaper, where there is one."""
        return self._process.pid

    def has(self, pid: int | None) -> bool:
        """Return whether a process of this host is its own or was started by it; None where that cannot be known."""
        if pid is None:
            return True
        with contextlib.suppress(psutil.Error):  # it has ended
            while pid > 1 and pid != self.pid:
                pid = psutil.Process(pid).ppid()
        return pid == self.pid

    @property
    def loading(self) -> bool:
        """Whether it lives and has not come up yet."""
        return not self.was_up and self.status is None

    @property
    def status(self) -> int | None:
        """How it ended, as `subprocess.Popen.returncode`; None while it lives."""
        return self._process.poll()

    def wait(self, timeout_s: float) -> None:
        """Wait until it has ended, or until the time is over."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)

    def end(self) -> None:
        """End it with every process of its own; the reaper does, where there is one."""
        try:
            if self._reaped:
                self._process.terminate()
            else:
                self._process.kill()
            self.wait(2 * END_TIMEOUT_S)  # the kernel may hold one in a driver
        finally:
            self._process.kill()

    def end_orphans(self) -> None:
        """End the processes that its workers started and did not end."""
        if self._reaped and self.was_up:
            self._process.send_signal(signal.SIGUSR1)

    def said(self) -> str:
        """Return the end of what it wrote to stderr."""
        return self._log.read_text(errors="replace")[-outputs.TAIL_BYTES :]
