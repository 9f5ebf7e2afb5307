"""One group of worker processes as the controller sees it: ask all its ranks one thing, end it.

The controller only ever sleeps on sockets here, so it costs nothing while a window is measured. A group fails where a
rank's process ends (the launcher says with which code or signal), its connection breaks, its command raises (the worker
sends its traceback), it is silent past its deadline (every live rank is asked for its stack), an answer is not what the
command returns, or a host has left. Then the group is ended, no process of it is left, and a `WorkerFailure` says why.
Where the launcher itself has ended, that is a `LauncherEnded`, after which the pool starts another one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import psutil

from suite.processes import failure
from suite.processes.channel import Answer, Channel, ChannelClosed, Ended, Message, Tell, Value, encode, read
from suite.room import limits

if TYPE_CHECKING:
    from suite.processes.pool import Pool

START_TIMEOUT_S = 120.0  # the first answer of a worker includes the import of torch, on a machine that may be busy
END_TIMEOUT_S = 10.0
SEND_TIMEOUT_S = 30.0  # a rank that hangs reads nothing, and the socket takes only so much
ECHO_TIMEOUT_S = 2.0
RAISED_TIMEOUT_S = 1.0  # a rank that raised leaves the others waiting for it in a collective: they are given so long


class Group:
    """The ranks of one world, each with its channel; made by `Pool.launch`.

    Attributes:
        parts: the ranks of each host, the controller's first.
        other_launchers: those of the other hosts that have ranks.
        pids, processes: of the ranks on the controller's host.
        ended: how it ended, as soon as its ranks on one host have.
        stacks: of the ranks on other hosts, as these have answered.
    """

    def __init__(
        self,
        pool: Pool,
        name: str,
        size: int,
        parts: Sequence[tuple[int, ...]] = (),
        other_launchers: Sequence[Channel] = (),
    ) -> None:
        self.name = name
        self.size = size
        self.parts = parts or [tuple(range(size))]
        self.other_launchers = other_launchers
        self.stacks: list[dict[str, str]] = []
        self._running = len(self.parts)
        self._abandoned = False
        self._asked_again = False  # what was asked, where the launcher has ended
        self._leaving = False
        self.channels: dict[int, Channel] = {}
        self.pids: dict[int, int] = {}
        self.processes: dict[int, psutil.Process] = {}
        self.lost: list[int] = []
        self.answers: dict[int, Message] = {}
        self.ended: Ended | None = None
        self._pool = pool
        self._asked: Sequence[int] = ()
        self._number = 0  # of the last command
        self._answered, self._launched = False, time.monotonic()
        self._ended_for_memory = limits.ended_for_memory()
        self.start_timeout_s = START_TIMEOUT_S  # for every process to be up, from now on; several groups start at once

    def request(
        self, kind: type[Value], command: str, timeout_s: float = START_TIMEOUT_S, **arguments: object
    ) -> list[Value]:
        """Ask every rank the same, wait for all answers, and return them by rank.

        Args:
            kind: the dataclass of an answer, or dict for one that is kept as the JSON object that arrives.
            command: a name in `suite.rank.commands.COMMANDS`.
            timeout_s: for the answers, once every process is up; `START_TIMEOUT_S` or more for the first command.
            arguments: of the command; JSON or dataclasses.

        Raises:
            WorkerFailure: a rank died, raised, stayed silent or answered something else; the group is gone then.
            LauncherEnded: the launcher has, and another one will be there for whoever asks again.
        """
        self.post(command, **arguments)
        return self.collect(kind, command, timeout_s)

    def request_first(
        self, kind: type[Value], command: str, timeout_s: float = START_TIMEOUT_S, **arguments: object
    ) -> Value:
        """Ask rank 0 alone, and wait for its answer; raises as `request`."""
        self._post([0], command, arguments)
        return self.collect(kind, command, timeout_s)[0]

    def post(self, command: str, **arguments: object) -> None:
        """Ask without waiting for answers, so that many groups can work at the same time; raises as `request`."""
        self._post(range(self.size), command, arguments)

    def collect(self, kind: type[Value], command: str, timeout_s: float = START_TIMEOUT_S) -> list[Value]:
        """Wait for the answer of every rank that was asked; as `request`.

        An answer with a "raised" that is not empty tells of an exception which the command itself has caught. Where the
        wait is interrupted, as by a test's deadline, the group is ended: its late answers would be those of another
        question.
        """
        try:
            return self._collect(kind, command, timeout_s)
        except BaseException:
            if self.alive:
                self.kill()
            raise

    def _collect(self, kind: type[Value], command: str, timeout_s: float) -> list[Value]:
        if not self._answered:
            timeout_s = max(timeout_s, self.start_timeout_s)
        deadline = time.monotonic() + timeout_s
        raised: tuple[int, Message] | None = None
        while len(self.answers) < len(self._asked):
            self._raise_if_broken()
            if raised is None and (raised := self._raised()) is not None:
                deadline = min(deadline, time.monotonic() + RAISED_TIMEOUT_S)
            if not self._pool.wait(deadline) and len(self.answers) < len(self._asked):
                if (raised := raised or self._raised()) is not None:
                    rank, answer = raised
                    what = "{where}: {error}; the other ranks wait for it".format_map(answer["raised"])
                    raise failure.raised(self.name, rank, what, answer["raised"]["traceback"], refused=True)
                missing = sorted(set(self._asked) - set(self.answers))
                # A child that such a rank has started holds its connection open.
                self.lost += [rank for rank in missing if rank in self.processes and not self._lives(rank)]
                self._raise_if_broken()
                raise failure.silent(self.name, missing, command, timeout_s, self._stacks())
        self._raise_if_broken()
        self._answered = True
        try:
            return [read(kind, self.answers[rank]) for rank in self._asked]
        except TypeError as error:
            raise failure.WorkerFailure(self.name, f"an answer to '{command}' cannot be read: {error}") from error

    def hear(self, rank: int, message: Message) -> None:
        """Keep what a rank sent. Where it is no answer to the last command, something else writes to its connection."""
        answer = None
        with contextlib.suppress(TypeError):
            answer = read(Answer, message)
        if answer is None or answer.number != self._number:
            self.lost.append(rank)
        else:
            self.answers[rank] = answer.content

    @property
    def alive(self) -> bool:
        """Whether it can still be asked."""
        return self._pool.groups.get(self.name) is self

    def wait_connected(self) -> None:
        """Wait until every rank's process is up, until `start_timeout_s` after the launch; raises as `request`."""
        deadline = self._launched + self.start_timeout_s
        while len(self.channels) < self.size:
            self._raise_if_broken()
            if not self._pool.wait(deadline) and (missing := sorted(set(range(self.size)) - set(self.channels))):
                self._raise_if_broken()
                self.kill()
                raise failure.silent(self.name, missing, "start", self.start_timeout_s, {})

    def end(self, ended: Ended) -> None:
        """Record how the ranks on one host have ended."""
        before = self.ended or Ended(self.name)
        self.ended = Ended(self.name, before.failures + ended.failures, before.cause or ended.cause)
        self._running -= 1

    def abandon(self, cause: str, *, repeated: bool = False) -> None:
        """Record that nothing more will be heard of how the group ends, and why.

        With `repeated`, what the group was asked is asked again (`LauncherEnded`).
        """
        self._abandoned, self._asked_again = True, repeated
        self.ended = Ended(self.name, self.ended.failures if self.ended else (), cause)
        self._running = 0

    def came_up(self, rank: int, channel: Channel) -> None:
        """Take the connection of a rank, and ask it to leave where the others have been asked to before it came up."""
        self.channels[rank] = channel
        if self._leaving:
            self._send([rank], "exit", {})

    def leave(self) -> None:
        """Ask the ranks to leave, without waiting."""
        self._leaving = True
        self._send(range(self.size), "exit", {})

    def close(self) -> None:
        """Ask the ranks to leave, and end those that do not."""
        self.leave()
        self._wait_for(lambda: self._running <= 0, END_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        """End every process of the group now, whatever state it is in."""
        gone = self._running <= 0 and not self._abandoned  # where one host has left, ranks of the others may live
        strays = self._pool.strays(self.name) if len(self.pids) < len(self.parts[0]) and not gone else []
        if not gone:
            self._tell("kill")
        for pid in {*self._own_pids().values(), *strays}:
            # Each worker leads a process group of its own, so this takes its data-loading children along.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        self._wait_for(lambda: self._running <= 0, END_TIMEOUT_S)
        for channel in self.channels.values():
            self._pool.forget(channel)
        self.channels.clear()
        self._pool.groups.pop(self.name, None)
        self._pool.end_orphans()

    def _own_pids(self) -> dict[int, int]:
        """Return the pids that are still these ranks' own, by rank: the kernel gives a free number to any process."""
        return {
            rank: pid
            for rank, pid in self.pids.items()
            if rank in self.processes and (self.processes[rank].is_running() or not psutil.pid_exists(pid))
        }

    def _post(self, ranks: Sequence[int], command: str, arguments: Mapping[str, object]) -> None:
        self.wait_connected()
        try:
            self._send(ranks, command, arguments)
        except BaseException:
            self.kill()  # some ranks have been asked, and would answer the next question
            raise

    def _send(self, ranks: Sequence[int], command: str, arguments: Mapping[str, object]) -> None:
        self.answers.clear()
        self._asked, self._number = ranks, self._number + 1
        line = encode({"command": command, "number": self._number, **arguments})  # once: a job names every device
        for rank in ranks:
            # What could not be sent is noticed when the answers are collected: the rank is lost, or silent.
            with contextlib.suppress(ChannelClosed, KeyError):
                self.channels[rank].send(line, SEND_TIMEOUT_S)

    def _raise_if_broken(self) -> None:
        if not self.alive:
            raise failure.WorkerFailure(self.name, "the group had already ended: an earlier failure says why")
        error = next(((rank, answer) for rank, answer in self.answers.items() if "error" in answer), None)
        if error is not None:
            # It is often the echo of another rank's death, whose connections close one after the other.
            self._wait_for(lambda: bool(self.lost) or len(self.answers) == len(self._asked), ECHO_TIMEOUT_S)
        if self.lost or self.ended is not None:
            raise self._death()
        if error is not None:
            self.kill()
            rank, answer = error
            raise failure.raised(self.name, rank, str(answer["error"]), str(answer.get("traceback", "")))

    def _raised(self) -> tuple[int, Message] | None:
        """Return the first answer that tells of an exception which the command has caught, and its rank."""
        return next(((rank, answer) for rank, answer in self.answers.items() if answer.get("raised")), None)

    def _death(self) -> failure.WorkerFailure | failure.LauncherEnded:
        """Return how the group ended, as the exception to raise.

        The launcher notices a little later than the socket, and only it knows the exit code.
        """
        self._wait_for(lambda: self.ended is not None, 2.0)
        lost = list(self.lost)
        cut = [rank for rank in lost if self._lives(rank)]  # before `kill`, after which all of them have ended
        self.kill()
        if cut:
            rank = cut[0]
            cause = (
                f"rank {rank}: its connection to the controller broke and its process went on; "
                "a trainer must close and write only what it opened itself"
            )
            return failure.WorkerFailure(self.name, cause, [self._stderr_tail(rank)])
        ended = self.ended or Ended(self.name)
        exits = {end.rank: end.exitcode for end in ended.failures}
        said = {end.rank: end.stderr for end in ended.failures}
        # The rank whose connection broke first; where none had one yet, the first that the launcher saw fail.
        rank = (lost or list(exits) or [0])[0]
        if rank in exits and len(self.parts) == 1:  # connections that break together are noticed in any order
            rank = next(failed for failed in exits if failed in lost or not lost)
        if self._asked_again and not exits:  # a rank that had failed before is no fault of the launcher's
            return failure.LauncherEnded(ended.cause)
        if ended.cause and (not exits or len(self.parts) > 1):
            return failure.WorkerFailure(self.name, ended.cause)
        # The launcher lists failures only: a rank that is not among them left with exit code 0.
        tail = said.get(rank) or self._stderr_tail(rank)
        short = rank in self.parts[0] and limits.ended_for_memory() > self._ended_for_memory
        return failure.died(self.name, rank, exits.get(rank, 0), tail, out_of_memory=short)

    def _stderr_tail(self, rank: int) -> str:
        """Return the end of what a rank on this host wrote to stderr; "" for one elsewhere."""
        here = self.parts[0]
        return failure.stderr_tail(self._pool.log_dir(self.name), here.index(rank)) if rank in here else ""

    def _tell(self, action: Literal["kill", "stacks"]) -> None:
        """Tell the other hosts what to do with their ranks."""
        for channel in self.other_launchers:
            with contextlib.suppress(ChannelClosed):  # then it is noticed that the host has left
                channel.send(Tell(self.name, action), SEND_TIMEOUT_S)

    def _lives(self, rank: int) -> bool:
        try:
            return self.ended is None and self.processes[rank].status() != psutil.STATUS_ZOMBIE
        except (KeyError, psutil.Error):
            return False

    def _wait_for(self, condition: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition() and self._pool.wait(deadline):
            pass

    def _stacks(self) -> dict[int, str]:
        self._tell("stacks")
        by_local = {self.parts[0].index(rank): rank for rank in self.pids}
        said = failure.stacks(self._pool.log_dir(self.name), self._own_pids().values(), by_local)
        here = {by_local[local]: text for local, text in said.items()}
        if self.other_launchers:
            self._wait_for(lambda: len(self.stacks) >= len(self.other_launchers), END_TIMEOUT_S)
        return here | {int(rank): text for stacks in self.stacks for rank, text in stacks.items() if rank.isdecimal()}


def dismiss(pools: Iterable[Pool]) -> None:
    """Ask all workers of these pools to leave at the same time, and end those that do not."""
    groups = [group for pool in dict.fromkeys(pools) for group in pool.groups.values()]
    for group in groups:
        group.leave()
    for group in groups:
        group.close()
