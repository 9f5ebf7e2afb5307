"""The processes that start a pool's workers on this host, as the controller sees them."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import psutil

from suite.processes import failure
from suite.processes.channel import Channel, Launcher
from suite.processes.group import END_TIMEOUT_S


class LauncherProcess:
    """`suite.launch`, torchrun around it, or `suite.template`; on Linux below a reaper, whose process this is then.

    Attributes:
        channel: its connection; None before it is up, and once that is gone.
        hung_s: after how many seconds it was ended because it still loaded; 0 where it was not.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path, *, reaped: bool) -> None:
        """Start `command`, with its stderr in the file `log`; `reaped` where it is that of `suite.processes.reaper`."""
        self.channel: Channel | None = None
        self.was_up, self.hung_s = False, 0.0
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
        """Return whether a process is its own or was started by it; also where the system does not tell the process."""
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

    def give_up(self, after_s: float) -> None:
        """End it because it does not come up: it hangs, and everybody who needs it would wait as long."""
        self.hung_s = after_s
        self.end()

    def end_orphans(self) -> None:
        """End the processes that its workers started and did not end."""
        if self._reaped and self.was_up:
            self._process.send_signal(signal.SIGUSR1)

    def did_not_start(self) -> tuple[str, str]:
        """Return that it did not start, with its last line, and the end of all that it wrote to stderr."""
        tail = self._log.read_text(errors="replace")[-failure.TAIL_BYTES :]
        said = (tail.strip().splitlines() or ["no output"])[-1]
        if not self.hung_s:
            return f"the launcher did not start: {said}", tail
        cause = f"the launcher did not start: it still loaded torch after {self.hung_s:.0f} s, and said last: {said}"
        return f"{cause}; run again where an image or a disk is slow, and otherwise try: python -c 'import torch'", tail


class Launchers:
    """The launcher of a pool, and the templates that were loaded with it for later sessions.

    Attributes:
        current: starts the groups.
        load_s: seconds that loading torch took the last one to come up; 0 where each worker loads it.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        *,
        reaped: bool,
        at_once: int,
        forget: Callable[[Channel], None],
    ) -> None:
        """Start `at_once` of them at the same time, for as many sessions, with their logs in `folder`.

        `forget` closes a channel, and stops waiting on it.
        """
        self._start = partial(LauncherProcess, command, environment, reaped=reaped)
        self._folder, self._started, self._at_once, self._forget = folder, 0, at_once, forget
        self._waiting: list[LauncherProcess] = []
        self.load_s = 0.0
        self.current = self._next(at_once)

    @property
    def all(self) -> tuple[LauncherProcess, ...]:
        """The current one, and those that wait for their sessions in order."""
        return (self.current, *self._waiting)

    @property
    def loading_s(self) -> float:
        """What loading takes of every session."""
        return self.load_s / self._at_once

    @property
    def next_load_s(self) -> float:
        """What the next session will wait for: all of a load, or nothing where one waits for it already."""
        return 0.0 if self._waiting else self.load_s

    def renew(self, at_once: int | None = None) -> None:
        """End the current one, and take the next; where none waits, start so many, or as many as at first."""
        self._end(self.current)
        self.current = self._next(at_once or self._at_once)

    def came_up(self, channel: Channel, told: Launcher) -> bool:
        """Record which of them a connection belongs to; return False if to none."""
        own = [each for each in self.all if each.channel is None and each.has(channel.peer_pid())]
        if own:
            own[0].channel, own[0].was_up, self.load_s = channel, True, told.load_s
        return bool(own)

    def end_waiting(self, channel: Channel | None) -> None:
        """End those that wait and had this connection, which is gone; with None, those that have not come up."""
        for each in [each for each in self._waiting if each.channel is channel]:
            self._waiting.remove(each)
            each.end()

    def end(self) -> None:
        """End all, also after a second Ctrl-C."""
        with contextlib.ExitStack() as each_of_them:
            for each in self.all:
                each_of_them.callback(self._end, each)

    def _next(self, at_once: int) -> LauncherProcess:
        self._waiting = [each for each in self._waiting if each.status is None]
        for _ in range(0 if self._waiting else at_once):
            self._waiting.append(self._start(self._folder / f"launcher-{self._started}.stderr"))
            self._started += 1
        return self._waiting.pop(0)

    def _end(self, launcher: LauncherProcess) -> None:
        if launcher.channel is not None:
            self._forget(launcher.channel)
            launcher.channel = None
        launcher.end()
