"""Worker processes as the controller sees them: start a group, ask all its ranks one thing, end it.

The controller only ever sleeps on sockets here, so it costs nothing while a window is measured. Three things can go
wrong with a group, and each becomes a `WorkerFailure`: a rank's process ends (the launcher says with which code or
signal), a rank's command raises (the worker sends its traceback), or a rank is silent past its deadline (every live
rank is asked for its stack). In all three the group is ended and no process of it is left.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import reference
import suite
from suite.processes import failure
from suite.processes.channel import Channel, ChannelClosed, ChannelGarbled, Message, encode
from suite.room import quiet

START_TIMEOUT_S = 120.0  # the first answer of a worker includes the import of torch, on a machine that may be busy
END_TIMEOUT_S = 10.0
SEND_TIMEOUT_S = 30.0  # a rank that hangs reads nothing, and the socket takes only so much
ECHO_S = 2.0  # a rank that raised leaves the others waiting for it in a collective: they are given so long
TAIL_BYTES = 4000
STACKS_BYTES = 64 * 1024  # all of them: the thread that holds the others up may be the first or the last


class Group:
    """The ranks of one world, each with its channel; made by `Pool.launch`."""

    def __init__(self, pool: Pool, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self.channels: dict[int, Channel] = {}
        self.pids: dict[int, int] = {}
        self.lost: list[int] = []
        self.answers: dict[int, Message] = {}
        self.ended: Message | None = None
        self._pool = pool
        self._asked: Sequence[int] = ()

    def request(self, command: str, timeout_s: float = START_TIMEOUT_S, **arguments: object) -> list[Message]:
        """Ask every rank the same and wait for all answers.

        Returns:
            The answers, by rank.

        Raises:
            WorkerFailure: a rank died, raised or stayed silent; the group is gone then.
        """
        self.post(command, **arguments)
        return self.collect(command, timeout_s)

    def request_first(self, command: str, timeout_s: float = START_TIMEOUT_S, **arguments: object) -> Message:
        """Ask rank 0 alone, and wait for its answer; raises as `request`."""
        self._post([0], command, arguments)
        return self.collect(command, timeout_s)[0]

    def post(self, command: str, **arguments: object) -> None:
        """Ask without waiting; `collect` waits. So many groups can work on something at the same time."""
        self._post(range(self.size), command, arguments)

    def collect(self, command: str, timeout_s: float = START_TIMEOUT_S) -> list[Message]:
        """Wait for the answer of every rank that was asked; as `request`.

        An answer with a "raised" that is not empty tells of an exception which the command itself has caught.
        """
        deadline = time.monotonic() + timeout_s
        raised: tuple[int, Message] | None = None
        while len(self.answers) < len(self._asked):
            self._raise_if_broken()
            if raised is None:
                raised = next(((rank, answer) for rank, answer in self.answers.items() if answer.get("raised")), None)
                deadline = min(deadline, time.monotonic() + ECHO_S) if raised else deadline
            if not self._pool.wait(deadline):
                if raised is not None:
                    self.kill()
                    rank, answer = raised
                    what = "{where}: {error}; the other ranks wait for it".format_map(answer["raised"])
                    raise failure.raised(self.name, rank, what, answer["raised"]["traceback"], refused=True)
                missing = sorted(set(self._asked) - set(self.answers))
                stacks = self._stacks()
                self.kill()
                raise failure.silent(self.name, missing, command, timeout_s, stacks)
        self._raise_if_broken()
        return [self.answers[rank] for rank in self._asked]

    @property
    def alive(self) -> bool:
        """Whether it can still be asked."""
        return self._pool.groups.get(self.name) is self

    def wait_connected(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until every rank's process is up.

        Raises:
            WorkerFailure: as `request`.
        """
        deadline = time.monotonic() + timeout_s
        while len(self.channels) < self.size:
            self._raise_if_broken()
            if not self._pool.wait(deadline):
                missing = sorted(set(range(self.size)) - set(self.channels))
                self.kill()
                raise failure.silent(self.name, missing, "start", timeout_s, {})

    def close(self) -> None:
        """Ask the ranks to leave, and end those that do not."""
        self.post("exit")
        self._wait_for(lambda: self.ended is not None, END_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        """End every process of the group now, whatever state it is in."""
        for pid in self.pids.values():
            # Each worker leads a process group of its own, so this takes its data-loading children along.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        self._wait_for(lambda: self.ended is not None, END_TIMEOUT_S)
        for channel in self.channels.values():
            self._pool.forget(channel)
        self.channels.clear()
        self._pool.groups.pop(self.name, None)

    def _post(self, ranks: Sequence[int], command: str, arguments: Mapping[str, object]) -> None:
        self.answers.clear()
        self._asked = ranks
        encoded = encode({"command": command, **arguments})
        for rank in ranks:
            # What could not be sent is noticed when the answers are collected: the rank is lost, or silent.
            with contextlib.suppress(ChannelClosed, KeyError):
                self.channels[rank].send_line(encoded, SEND_TIMEOUT_S)

    def _raise_if_broken(self) -> None:
        if not self.alive:
            raise failure.WorkerFailure(self.name, "it was ended before it was asked")
        error = next(((rank, answer) for rank, answer in self.answers.items() if "error" in answer), None)
        if error is not None:
            self._wait_for(lambda: bool(self.lost), 0.3)  # an exception is often the echo of another rank's death
        if self.lost or self.ended is not None:
            raise self._death()
        if error is not None:
            self.kill()
            rank, answer = error
            raise failure.raised(self.name, rank, str(answer["error"]), str(answer.get("traceback", "")))

    def _death(self) -> failure.WorkerFailure:
        """Who died, and how: the launcher notices a little later than the socket, and only it knows the exit code."""
        self._wait_for(lambda: self.ended is not None, 2.0)
        lost = list(self.lost)
        self.kill()
        ended = self.ended or {}
        exits = {int(end["rank"]): int(end["exitcode"]) for end in ended.get("failures", [])}
        # The rank whose connection broke first; where none had one yet, the first that the launcher saw fail.
        rank = (lost or list(exits) or [0])[0]
        if ended.get("cause") and not exits:
            return failure.WorkerFailure(self.name, ended["cause"])
        # The launcher lists failures only: a rank that is not among them left with exit code 0.
        return failure.died(self.name, rank, exits.get(rank, 0), self._pool.stderr_tail(self.name, rank))

    def _wait_for(self, condition: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition() and self._pool.wait(deadline):
            pass

    def _stacks(self) -> dict[int, str]:
        before = {rank: self._pool.stderr_size(self.name, rank) for rank in self.pids}
        for pid in self.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)  # the worker has faulthandler registered on it
        time.sleep(0.5)
        return {
            rank: self._pool.stderr_tail(self.name, rank, after=size, most=STACKS_BYTES)
            for rank, size in before.items()
        }


class Pool:
    """All worker processes of one run and one interpreter, and the folder with their sockets and logs.

    Use it as a context manager: leaving it, however that comes about, leaves no process and no folder behind.
    """

    def __init__(
        self,
        *,
        kind: str,
        python: str = sys.executable,
        import_paths: Sequence[Path] = (),
        reference_path: Path | None = None,
        python_path: str | None = None,
        warm: bool = False,
    ) -> None:
        """Start the launcher.

        Args:
            kind: "cpu" or "cuda".
            warm: whether workers may be forked from a process that has torch loaded (`suite.template`), which starts
                them in milliseconds: for what is not timed. CUDA, and systems other than Linux, keep torch's agent.
            python: the interpreter of the launcher and its workers; it needs torch.
            import_paths: folders the workers may import a user's trainer or model from.
            reference_path: the package `reference` of these workers, if not the one that is loaded here.
            python_path: their PYTHONPATH, if not the one inherited.
        """
        self.folder = Path(tempfile.mkdtemp(prefix="scaling-"))
        self.groups: dict[str, Group] = {}
        self._selector = selectors.DefaultSelector()
        self._launcher: Channel | None = None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.folder / "controller"))
        self._listener.listen(256)
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._launcher_log = self.folder / "launcher.stderr"
        forks = warm and kind == "cpu" and hasattr(os, "pidfd_open")
        module = "suite.template" if forks else "suite.launch"
        with self._launcher_log.open("wb") as log:
            self._process = subprocess.Popen(
                [python, "-m", module, "--socket", str(self.folder / "controller")],
                env=self._environment(kind, import_paths, reference_path, python_path),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches the controller, and the controller ends the rest in order
            )

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def launch(self, name: str, size: int) -> Group:
        """Start one group, without waiting for it.

        Args:
            name: unique within the pool while the group lives.
            size: how many processes, one a rank.

        Raises:
            WorkerFailure: the launcher itself has ended, for instance because its interpreter has no torch.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while self._launcher is None and self._process.poll() is None and self.wait(deadline, 0.2):
            pass
        if self._launcher is None:
            tail = self._launcher_log.read_text(errors="replace")[-TAIL_BYTES:]
            last = (tail.strip().splitlines() or ["no output"])[-1]
            raise failure.WorkerFailure(name, f"the launcher did not start: {last}", [tail])
        group = self.groups[name] = Group(self, name, size)
        order: Message = {
            "group": name,
            "nproc": group.size,
            "log_dir": str(self._log_dir(name)),
            "args": ["--socket", str(self.folder / "controller"), "--group", name],
        }
        try:
            self._launcher.send(order)
        except ChannelClosed as error:
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

    def close(self) -> None:
        """End every process and remove the folder."""
        try:
            for group in list(self.groups.values()):
                group.kill()
        finally:  # however impatient the user is: workers end with the launcher, and the folder goes
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel may hold it, in a driver or a file system
                self._process.wait(END_TIMEOUT_S)
            shutil.rmtree(self.folder, ignore_errors=True)
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, Channel):
                self.forget(key.fileobj)
        self._selector.close()
        self._listener.close()

    def _read(self, channel: Channel, owner: tuple[Group, int] | None) -> None:
        try:
            messages = channel.pump()
        except (ChannelClosed, ChannelGarbled):
            self.forget(channel)
            if owner is not None:
                owner[0].lost.append(owner[1])
            elif channel is self._launcher:
                self._launcher = None
                for group in self.groups.values():
                    group.ended = {"failures": [], "cause": "the launcher has ended"}
            return
        for message in messages:
            if owner is not None:
                owner[0].answers[owner[1]] = message
            elif message.get("event") == "hello":
                owner = self._greet(channel, message)
            elif message.get("event") == "launcher":
                self._launcher = channel
            elif message.get("event") == "ended" and message["group"] in self.groups:
                self.groups[message["group"]].ended = message

    def _greet(self, channel: Channel, hello: Message) -> tuple[Group, int] | None:
        group, rank = self.groups.get(hello["group"]), int(hello["rank"])
        if group is None:  # it came up after its group was given up; the closed channel ends it
            self.forget(channel)
            return None
        group.channels[rank] = channel
        group.pids[rank] = int(hello["pid"])
        self._selector.modify(channel, selectors.EVENT_READ, (group, rank))
        return group, rank

    def _stderr(self, name: str, rank: int) -> list[Path]:
        return list(self._log_dir(name).glob(f"**/{rank}/stderr.log"))

    def _log_dir(self, name: str) -> Path:
        return self.folder / "logs" / name

    def _environment(
        self, kind: str, import_paths: Sequence[Path], reference_path: Path | None, python_path: str | None
    ) -> dict[str, str]:
        # Links to the two packages alone: their own parent may be a site-packages with a torch of another interpreter.
        code = self.folder / "code"
        code.mkdir()
        (code / "suite").symlink_to(Path(suite.__path__[0]).resolve())
        (code / "reference").symlink_to((reference_path or Path(reference.__path__[0])).resolve())
        inherited: Mapping[str, str] = os.environ
        beyond = inherited.get("PYTHONPATH", "") if python_path is None else python_path
        paths = [str(code), *map(str, import_paths), *filter(None, [beyond])]
        return {
            **quiet.environment(inherited, kind),
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONSAFEPATH": "1",
        }
