"""All worker processes of one run and one interpreter: the launcher, its groups, and their sockets and logs.

A pool owns its groups. Code that needs workers calls `Pool.group` with a name each time, and gets a new group after a
failure. `dismiss` ends the groups of several pools together.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import psutil

import reference
import suite
from suite.processes import failure
from suite.processes.channel import Channel, ChannelClosed, ChannelGarbled, Message, short
from suite.processes.folder import TemporaryFolder
from suite.processes.group import END_TIMEOUT_S, START_TIMEOUT_S, Group
from suite.processes.messages import Ended, Hello, Start, read
from suite.room import quiet

TAIL_BYTES = 4000


class Pool:
    """All worker processes of one run and one interpreter, and the folder with their sockets and logs.

    Use it as a context manager: leaving it, however that comes about, leaves no process and no folder behind.
    """

    def __init__(
        self,
        *,
        kind: str,
        preload: Literal["torch", "trainers"] = "torch",
        python: str = sys.executable,
        import_paths: Sequence[Path] = (),
        forks: bool = True,
    ) -> None:
        """Start the launcher.

        Args:
            kind: "cpu" or "cuda".
            preload: what the template has loaded when it forks workers: "torch" for what is timed, the trainers of the
                table too for everything else, which is computed exactly (`suite.room.quiet.EXACT`).
            python: the interpreter of the launcher and its workers; it needs torch.
            import_paths: folders the workers may import a user's trainer or model from.
            forks: whether workers may be forked from a template (`suite.template`). CUDA, and systems other than Linux,
                have them executed by torch's agent in any case.
        """
        self.forks = forks and kind == "cpu" and hasattr(os, "pidfd_open")
        self._temporary = TemporaryFolder()
        self.folder = self._temporary.path
        self.groups: dict[str, Group] = {}
        self._kept: dict[tuple[str, tuple[str, ...]], Group] = {}
        self._started = 0
        self._selector = selectors.DefaultSelector()
        self._launcher: Channel | None = None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with short(str(self.folder / "controller")) as address:
            self._listener.bind(address)
        self._listener.listen(256)
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._launcher_log = self.folder / "launcher.stderr"
        launcher = ["suite.template", "--preload", preload] if self.forks else ["suite.launch"]
        launcher += ["--socket", str(self.folder / "controller")]
        self._reaped = sys.platform == "linux"
        if self._reaped:
            launcher = ["suite.processes.reaper", str(self.folder), *launcher]
        self._command = [python, "-m", *launcher]
        self._environment = {
            **quiet.environment(os.environ, kind, exact=preload == "trainers"),
            "PYTHONPATH": os.pathsep.join(self.paths(import_paths)),
            "PYTHONSAFEPATH": "1",
            # Its own place has a name that others can foresee, and outlives the run.
            "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(self.folder / "inductor")),
        }
        self._process = self._start()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def renew(self) -> None:
        """Replace the template, once all groups have ended, so that the next ones draw another memory layout.

        It changes nothing where workers are executed, each with a layout of its own.
        """
        if self.forks:
            self._end_launcher()
            if self._launcher is not None:
                self.forget(self._launcher)
                self._launcher = None
            self._process = self._start()

    def paths(
        self,
        import_paths: Sequence[Path],
        reference_path: Path | None = None,
        python_path: str | None = None,
    ) -> tuple[str, ...]:
        """Return what a worker's PYTHONPATH is made of: this code, and a user's.

        Args:
            import_paths: folders of a user's trainer or model.
            reference_path: the package `reference`, if not the one that is loaded here.
            python_path: a user's PYTHONPATH, if not the one inherited.
        """
        # Links to the two packages alone: their own parent may be a site-packages with a torch of another interpreter.
        code = Path(tempfile.mkdtemp(prefix="code-", dir=self.folder))
        (code / "suite").symlink_to(Path(suite.__path__[0]).resolve())
        (code / "reference").symlink_to((reference_path or Path(reference.__path__[0])).resolve())
        beyond = os.environ.get("PYTHONPATH", "") if python_path is None else python_path
        return tuple(filter(None, [str(code), *map(str, import_paths), *beyond.split(os.pathsep)]))

    def group(self, name: str, size: int, paths: tuple[str, ...] = ()) -> Group:
        """Return the group that was started under a name, or start one where there is none or it has failed.

        Args:
            name: groups with other `paths` may have the same.
            size, paths: as `launch` has them.

        Raises:
            WorkerFailure: as `launch`.
        """
        group = self._kept.get((name, paths))
        if group is None or not group.alive:
            self._started += 1
            group = self._kept[name, paths] = self.launch(f"{name}-{self._started}", size, paths)
        return group

    def launch(self, name: str, size: int, paths: Sequence[str] = ()) -> Group:
        """Start one group, without waiting for it.

        Args:
            name: unique within the pool while the group lives.
            size: how many processes, one a rank.
            paths: from `paths`, where they are not those that the pool was made with.

        Raises:
            WorkerFailure: the launcher itself has ended, for instance because its interpreter has no torch.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while self._launcher is None and self._process.poll() is None and self.wait(deadline, 0.2):
            pass
        if self._launcher is None:
            tail = self._launcher_log.read_text(errors="replace")[-TAIL_BYTES:]
            last = (tail.strip().splitlines() or ["no output"])[-1]
            status = self._process.poll()
            if self._was_up:
                last = "its connection was closed" if status is None else failure.describe_exit(status)
            what = "the launcher has ended" if self._was_up else "the launcher did not start"
            raise failure.WorkerFailure(name, f"{what}: {last}", [tail])
        self._drop_logs()
        group = self.groups[name] = Group(self, name, size)
        arguments = ["--socket", str(self.folder / "controller"), "--group", name]
        arguments += [f"--path={path}" for path in paths]
        try:
            self._launcher.send(Start(name, size, str(self._log_dir(name)), tuple(arguments)))
        except ChannelClosed as error:
            del self.groups[name]
            raise failure.WorkerFailure(name, "the launcher has ended") from error
        return group

    def wait(self, deadline: float, slice_s: float | None = None) -> bool:
        """Sleep until something arrives, and hand it to whom it belongs.

        Args:
            deadline: of `time.monotonic()`.
            slice_s: return after this long in any case.

        Returns:
            False when the deadline has passed.
        """
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        for key, _ in self._selector.select(left if slice_s is None else min(left, slice_s)):
            if key.fileobj is self._listener:
                connection, _ = self._listener.accept()
                self._selector.register(Channel(connection), selectors.EVENT_READ, None)
            else:
                assert isinstance(key.fileobj, Channel)
                self._read(key.fileobj, key.data)
        return True

    def forget(self, channel: Channel) -> None:
        """Close a channel and stop waiting on it."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(channel)
        channel.close()

    def stderr_size(self, name: str, rank: int) -> int:
        """Bytes that a rank has written to stderr so far."""
        return sum(path.stat().st_size for path in self._stderr(name, rank))

    def stderr_tail(self, name: str, rank: int, after: int = 0, most: int = TAIL_BYTES) -> str:
        """The end of what a rank wrote to stderr, however much that is; of what came after so many bytes."""
        for path in self._stderr(name, rank):
            with path.open("rb") as file:
                file.seek(max(after, path.stat().st_size - most))
                return file.read(most).decode(errors="replace")
        return ""

    def strays(self, name: str) -> list[int]:
        """Return the processes of a group that torch's agent has started, by their command lines, connected or not."""
        pids = []
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(self._process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if ("--group", name) in itertools.pairwise(process.cmdline()):
                        pids.append(process.pid)
        return pids

    def end_orphans(self) -> None:
        """End the processes that workers started and did not end, once no group is left that may need them."""
        if self._reaped and self._was_up and not self.groups:
            self._process.send_signal(signal.SIGUSR1)

    def close(self) -> None:
        """End every process and remove the folder."""
        try:
            for group in list(self.groups.values()):
                group.kill()
        finally:  # however impatient the user is: workers end with the launcher, and the folder goes
            try:
                self._end_launcher()
            finally:
                self._temporary.close()
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, Channel):
                self.forget(key.fileobj)
        self._selector.close()
        self._listener.close()

    def _start(self) -> subprocess.Popen[bytes]:
        self._was_up = False
        with self._launcher_log.open("wb") as log:
            return subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches the controller, and the controller ends the rest in order
            )

    def _end_launcher(self) -> None:
        """End it with every process of its own; the reaper does, where there is one."""
        try:
            if self._reaped:
                self._process.terminate()
            else:
                self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel may hold one in a driver
                self._process.wait(2 * END_TIMEOUT_S)
        finally:
            self._process.kill()

    def _read(self, channel: Channel, owner: tuple[Group, int] | None) -> None:
        try:
            messages = channel.pump()
        except (ChannelClosed, ChannelGarbled):
            if owner is not None:
                # Open until its group is killed: a worker that lives would end when it answers, and be called dead.
                self._selector.unregister(channel)
                owner[0].lost.append(owner[1])
                return
            self.forget(channel)
            if channel is self._launcher:
                self._launcher = None
                for group in self.groups.values():
                    group.ended = Ended(group.name, cause="the launcher has ended")
            return
        for message in messages:
            if owner is not None:
                owner[0].hear(owner[1], message)
            elif channel is not self._launcher:
                owner = self._greet(channel, message)
                if owner is None and channel is not self._launcher:
                    return
            elif (ended := read(Ended, message)).group in self.groups:
                self.groups[ended.group].ended = ended

    def _greet(self, channel: Channel, message: Message) -> tuple[Group, int] | None:
        """Take note of who has connected, and return the group and rank of a worker; cut off whoever else it is."""
        if message == {"event": "launcher"} and self._launcher is None:
            self._launcher, self._was_up = channel, True
            return None
        try:
            hello = read(Hello, message)
            group = self.groups[hello.group]
            if hello.rank in group.channels or hello.rank not in range(group.size):
                raise KeyError(hello.rank)
            if channel.peer() not in (hello.pid, None):  # `Group.kill` ends the process of this number
                raise KeyError(hello.pid)
        except (TypeError, KeyError):  # also a worker that came up after its group was given up
            self.forget(channel)
            return None
        group.channels[hello.rank] = channel
        group.pids[hello.rank] = hello.pid
        with contextlib.suppress(psutil.Error):  # it has ended already
            group.processes[hello.rank] = psutil.Process(hello.pid)
        self._selector.modify(channel, selectors.EVENT_READ, (group, hello.rank))
        return group, hello.rank

    def _drop_logs(self) -> None:
        """Remove the outputs of groups that are gone; what was worth telling is in their failures."""
        for folder in (self.folder / "logs").glob("*"):
            if folder.name not in self.groups:
                shutil.rmtree(folder, ignore_errors=True)

    def _stderr(self, name: str, rank: int) -> list[Path]:
        return list(self._log_dir(name).glob(f"**/{rank}/stderr.log"))

    def _log_dir(self, name: str) -> Path:
        return self.folder / "logs" / name


def dismiss(pools: Iterable[Pool]) -> None:
    """Ask all workers of these pools to leave at the same time, and end those that do not."""
    groups = [group for pool in dict.fromkeys(pools) for group in pool.groups.values()]
    for group in groups:
        group.leave()
    for group in groups:
        group.close()
