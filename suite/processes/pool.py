"""All worker processes of one run and one interpreter: the launcher, its groups, and their sockets and logs."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import psutil

import reference
import suite
from suite.processes import failure
from suite.processes.channel import (
    Channel,
    ChannelClosed,
    ChannelGarbled,
    Ended,
    Hello,
    Launcher,
    Message,
    Stacks,
    Start,
    read,
    short,
)
from suite.processes.folder import FOLDER, TemporaryFolder, unusable
from suite.processes.group import END_TIMEOUT_S, SEND_TIMEOUT_S, START_TIMEOUT_S, Group
from suite.processes.hosts import SECRET, Handshake, Hosts, OtherHosts, network
from suite.processes.launchers import LauncherProcess, Launchers
from suite.room import limits, quiet

CATCH_UP_S = 1.0  # with what has arrived by a deadline; a peer may send without end


class Pool:
    """The worker processes and the folder with their sockets and logs, in groups that it owns.

    Use it as a context manager: leaving it, however that comes about, leaves no process and no folder behind.
    Code that needs workers calls `group` with a name each time, and gets a new group after a failure.

    Attributes:
        start_timeout_s: for the launcher, and for the processes of a group, to come up.
        restarted: is told in a sentence that the launcher ended and will be started again. Its groups then raise
            `LauncherEnded` instead of `WorkerFailure`, and whoever has asked them repeats all of it.
    """

    def __init__(
        self,
        *,
        kind: str,
        preload: Literal["torch", "trainers"] = "torch",
        python: str = sys.executable,
        import_paths: Sequence[Path] = (),
        templates: Literal["none", "one", "renewed"] = "one",
        hosts: Hosts | None = None,
    ) -> None:
        """Start the launcher. One that ends by itself is started again, once, when the next group is.

        Args:
            kind: "cpu" or "cuda".
            preload: what the template has loaded when it forks workers: "torch" for what is timed, the trainers of the
                table too for everything else, which is computed exactly (`suite.room.quiet.EXACT`).
            python: the interpreter of the launcher and its workers; it needs torch.
            import_paths: folders the workers may import a user's trainer or model from.
            templates: what workers are forked from (`suite.template`): "one" template, or one that is "renewed" by
                `renew`, for which one a core is loaded at a time. With "none", on CUDA, and on systems other than
                Linux, torch's agent executes them.
            hosts: of a run on several; torch's agent executes the workers then, and no launcher is started again.

        Raises:
            ValueError: the endpoint of several hosts is no address of this one, the folder cannot be made in TMPDIR, or
                a container has no memory for a process that loads torch.
        """
        if lacking := limits.lacking(1):
            raise ValueError(lacking)
        self.forks = templates != "none" and kind == "cpu" and hasattr(os, "pidfd_open") and hosts is None
        self.hosts = hosts.count if hosts else 1
        self._other_hosts = OtherHosts(hosts) if hosts else None
        self._kind, self._exact = kind, preload == "trainers"
        self.start_timeout_s = START_TIMEOUT_S
        self.groups: dict[str, Group] = {}
        self._kept: dict[tuple[str, tuple[str, ...]], Group] = {}
        self._started = 0
        self.restarted: Callable[[str], None] | None = None
        self._launcher_deaths, self._restart_due = 0, False
        self._selector = selectors.DefaultSelector()
        try:
            self._temporary = TemporaryFolder()
            self.folder = self._temporary.path
            paths = self.paths(import_paths)
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            with short(str(self.folder / "controller")) as address:
                self._listener.bind(address)
        except OSError as error:
            raise ValueError(unusable(error)) from error
        self._listener.listen(256)
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        launcher = ["suite.template", "--preload", preload] if self.forks else ["suite.launch"]
        launcher += ["--socket", str(self.folder / "controller")]
        told: dict[str, str] = {}
        if self._other_hosts is not None:
            launcher = self._other_hosts.command(launcher, self.folder / "torchrun")
            told = {**self._other_hosts.environment(), **network(self._other_hosts.listener.host)}
        if reaped := sys.platform == "linux":
            launcher = ["suite.processes.reaper", str(self.folder), *launcher]
        environment = {
            **quiet.environment({**os.environ, **told}, kind, exact=self._exact),
            FOLDER: str(self.folder),
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONSAFEPATH": "1",
            # Its own place has a name that others can foresee, and outlives the run.
            "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(self.folder / "inductor")),
        }
        environment.pop(SECRET, None)  # nothing on this host needs it but the controller
        at_once = limits.templates() if self.forks and templates == "renewed" else 1
        command, forget = [python, "-m", *launcher], self.forget
        self.launchers = Launchers(command, environment, self.folder, reaped=reaped, at_once=at_once, forget=forget)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def renew(self) -> None:
        """Replace the template, once all groups have ended, so that the next ones draw another memory layout.

        It changes nothing where workers are executed, each with a layout of its own.
        """
        if self.forks:
            self.wait(time.monotonic() + START_TIMEOUT_S, 0)  # the end of one may have arrived while nobody listened
            self.launchers.renew()
            self._restart_due = False

    def wait_for_templates(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until no template loads any more, so that nothing is timed beside one; end those that are late."""
        deadline = time.monotonic() + timeout_s
        while any(each.loading for each in self.launchers.all) and self.wait(deadline, 0.2):
            pass
        self.launchers.end_waiting(None)

    def paths(
        self,
        import_paths: Sequence[Path],
        reference_path: Path | None = None,
        python_path: str | None = None,
    ) -> tuple[str, ...]:
        """Return what a worker's PYTHONPATH is made of: this code, and folders of a user's trainer or model.

        `reference` and the user's PYTHONPATH are those of this process, if no others are given.
        """
        # Links to the two packages alone: their own parent may be a site-packages with a torch of another interpreter.
        code = Path(tempfile.mkdtemp(prefix="code-", dir=self.folder))
        (code / "suite").symlink_to(Path(suite.__path__[0]).resolve())
        (code / "reference").symlink_to((reference_path or Path(reference.__path__[0])).resolve())
        beyond = os.environ.get("PYTHONPATH", "") if python_path is None else python_path
        return tuple(filter(None, [str(code), *map(str, import_paths), *beyond.split(os.pathsep)]))

    def group(self, name: str, size: int, paths: tuple[str, ...] = (), *, spread: bool = False) -> Group:
        """Return the group that was started under a name, or start one where there is none or it has failed.

        Groups with other `paths` may have the same name. Arguments and errors are those of `launch`.
        """
        group = self._kept.get((name, paths))
        if group is None or not group.alive:
            self._started += 1
            group = self._kept[name, paths] = self.launch(f"{name}-{self._started}", size, paths, spread=spread)
        return group

    def launch(self, name: str, size: int, paths: Sequence[str] = (), *, spread: bool = False) -> Group:
        """Start one group, without waiting for it.

        Args:
            name: unique within the pool while the group lives.
            size: how many processes, one a rank.
            paths: from `paths`, where they are not those that the pool was made with.
            spread: whether several hosts get the ranks in turn; otherwise each is filled before the next.

        Raises:
            WorkerFailure: the launcher did not start, for instance because its interpreter has no torch, or has ended
                more than once; not all hosts are there; or a container has no memory for the ranks on this host.
        """
        parts = [tuple(range(size))]
        if self._other_hosts is not None:
            parts = self._other_hosts.settings.layout(size, spread=spread)
            self._wait_for_hosts(name, needed=len(parts))
        self._wait_for_launcher(name)
        if lacking := limits.lacking(len(parts[0]), forked=self.forks):
            raise failure.WorkerFailure(name, lacking)
        self._drop_logs()
        launchers = self._channels()[: len(parts)]
        group = self.groups[name] = Group(self, name, size, parts, launchers[1:])
        group.start_timeout_s = self.start_timeout_s
        arguments = ["--group", name, *(f"--path={path}" for path in paths)]
        log_dir, several = str(self.log_dir(name)), self._other_hosts is not None
        with contextlib.suppress(ChannelClosed):  # the group is abandoned as soon as it is asked something
            for channel, address, ranks in zip(launchers, self._addresses(), parts, strict=False):
                told = ("--socket", address, *arguments)
                spanning = ranks if several else ()
                channel.send(Start(name, len(ranks), log_dir, told, spanning, size), SEND_TIMEOUT_S)
        return group

    def wait(self, deadline: float, slice_s: float | None = None) -> bool:
        """Sleep until something arrives, and hand it to whom it belongs; return after `slice_s` in any case.

        Returns:
            False when the deadline has passed. What has arrived is read all the same, for this process may have been
            stopped until now.
        """
        left = deadline - time.monotonic()
        if left > 0:
            self._look(left if slice_s is None else min(left, slice_s))
            return True
        until = time.monotonic() + CATCH_UP_S
        while self._look(0) and time.monotonic() < until:
            pass
        return False

    def _look(self, timeout_s: float) -> bool:
        """Sleep until something arrives, once, and hand it to whom it belongs; return whether something has."""
        other_hosts = self._other_hosts
        if other_hosts is not None:
            timeout_s = min(timeout_s, other_hosts.listener.watch(self._selector))
        ready = self._selector.select(timeout_s)
        for key, _ in ready:
            if key.fileobj is self._listener:
                connection, _ = self._listener.accept()
                self._selector.register(Channel(connection), selectors.EVENT_READ, None)
            elif other_hosts is not None and key.fileobj is other_hosts.listener:
                if (opened := other_hosts.listener.open()) is not None:
                    self._selector.register(opened.channel, selectors.EVENT_READ, opened)
            else:
                assert isinstance(key.fileobj, Channel)
                self._read(key.fileobj, key.data)
        for handshake in [] if other_hosts is None else other_hosts.listener.late():
            self._refuse(handshake, "it has not proved in time that it knows the secret")
        return bool(ready)

    def forget(self, channel: Channel) -> None:
        """Close a channel and stop waiting on it."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(channel)
        channel.close()

    def log_dir(self, name: str) -> Path:
        """Return the folder of what a group's ranks on this host write; torch's agent makes those below it."""
        return self.folder / "logs" / name

    def strays(self, name: str) -> list[int]:
        """Return the processes of a group that torch's agent has started, by their command lines, connected or not."""
        return failure.workers_of(self._process.pid, name)

    def end_orphans(self) -> None:
        """End the processes that workers started and did not end, once no group is left that may need them."""
        if not self.groups:
            self._process.end_orphans()

    def close(self) -> None:
        """End every process and remove the folder."""
        try:
            for group in list(self.groups.values()):
                group.kill()
        finally:  # also after a second Ctrl-C: workers end with the launcher, and the folder goes
            try:
                self._part()
                self.launchers.end()
            finally:
                self._temporary.close()
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, Channel):
                self.forget(key.fileobj)
        self._selector.close()
        self._listener.close()
        if self._other_hosts is not None:
            self._other_hosts.listener.close()

    def _part(self) -> None:
        """Let the launchers of a run on several hosts leave by themselves, so that torch's agents end in order."""
        if self._other_hosts is None:
            return
        for channel in [host.channel for host in self._other_hosts.hosts]:
            self.forget(channel)
        if self._process.channel is not None:
            self.forget(self._process.channel)
            self._process.wait(END_TIMEOUT_S)

    @property
    def _process(self) -> LauncherProcess:
        return self.launchers.current

    def _channels(self) -> list[Channel]:
        """Return the channels of all launchers that are up, this host's first."""
        others = [] if self._other_hosts is None else [host.channel for host in self._other_hosts.hosts]
        return others if self._process.channel is None else [self._process.channel, *others]

    def _addresses(self) -> Iterator[str]:
        """Yield where the workers of each host find this process."""
        yield str(self.folder / "controller")
        while self._other_hosts is not None:
            yield self._other_hosts.listener.address

    def _wait_for_hosts(self, name: str, needed: int) -> None:
        """Wait until all hosts of a run are there; later, require those that a group needs."""
        other_hosts = self._other_hosts
        assert other_hosts is not None
        self.wait(time.monotonic() + START_TIMEOUT_S, 0)  # one may have left while nobody listened
        while other_hosts.waiting and self._process.status is None:
            self.wait(time.monotonic() + 0.2)
        if not other_hosts.joined or len(other_hosts.hosts) < needed - 1:
            cause, tail = self._process.did_not_start()
            ended, turned_away = self._process.status is not None, other_hosts.problem or other_hosts.listener.refused
            other_hosts.problem = cause if ended and not turned_away else other_hosts.missing()
            raise failure.WorkerFailure(name, other_hosts.problem, [tail] if ended else [])

    def _wait_for_launcher(self, name: str) -> None:
        """Wait until the launcher is up; start it again where it has ended by itself, for the first time."""
        deadline = time.monotonic() + self.start_timeout_s
        self.wait(deadline, 0)  # its end may have arrived while nobody listened
        while self._process.channel is None:
            if self._restart_due:
                self.launchers.renew(at_once=1)  # others may be timed meanwhile
                self._restart_due = False
                continue  # one that waited for a later session is up already
            if self._process.loading:
                if self.wait(deadline, 0.2) or self._process.channel is not None:
                    continue
                self._process.give_up(self.start_timeout_s)
            killed = (self._process.status or 0) < 0 and not self._process.hung_s
            if killed and not self._process.was_up:  # while it loaded torch
                self._note_end()
            if not self._restart_due:
                cause, tail = self._process.did_not_start()
                raise failure.WorkerFailure(
                    name, self._why_ended() if self._process.was_up or killed else cause, [tail]
                )

    def _note_end(self) -> None:
        """Record that the launcher has ended by itself, and all groups with it."""
        self._process.wait(END_TIMEOUT_S)  # the reaper ends workers first
        self._launcher_deaths += 1
        self._restart_due = self._launcher_deaths == 1 and self._other_hosts is None
        tell = self.restarted if self._restart_due else None
        for group in self.groups.values():
            group.abandon(self._why_ended(), repeated=tell is not None)
        if tell is not None:
            tell(f"{self._why_ended()}; it is started again, once in a run, and what it did is repeated")

    def _why_ended(self) -> str:
        """Return how the launcher ended by itself, in words."""
        status = self._process.status
        again = " again" * (self._launcher_deaths > 1)
        how = "its connection was closed" if status is None else failure.describe_exit(status)
        return f"the launcher has ended{again}: {how}; dmesg may tell what ended it"

    def _read(self, channel: Channel, owner: tuple[Group, int] | Handshake | None) -> None:
        try:
            messages = channel.pump()
        except (ChannelClosed, ChannelGarbled) as error:
            self._lose(channel, owner, str(error))
            return
        for message in messages:
            if isinstance(owner, Handshake):
                if not self._prove(owner, message):
                    return
                owner = None
            elif owner is not None:
                owner[0].hear(owner[1], message)
            elif channel in self._channels():
                try:
                    self._hear(message)
                except (TypeError, KeyError) as error:
                    self._lose(channel, None, str(error))
                    return
            else:
                owner = self._greet(channel, message)
                if owner is None and channel not in self._channels():
                    return

    def _lose(self, channel: Channel, owner: tuple[Group, int] | Handshake | None, why: str) -> None:
        """Record that a connection has ended, or has nonsense on it."""
        if isinstance(owner, Handshake):
            self._refuse(owner, why)
            return
        if owner is not None:
            # Open until its group is killed: a worker that lives would end when it answers, and be called dead.
            self._selector.unregister(channel)
            owner[0].lost.append(owner[1])
            return
        self.forget(channel)
        left = "" if self._other_hosts is None else self._other_hosts.left(channel)
        if left:
            for group in [group for group in self.groups.values() if channel in group.other_launchers]:
                group.abandon(left)
        elif channel is self._process.channel:
            self._process.channel = None
            self._note_end()
        else:
            self.launchers.end_waiting(channel)

    def _hear(self, message: Message) -> None:
        """Record what a launcher tells of a group."""
        if (group := self.groups.get(message["group"])) is None:
            return
        if message.get("event") == "stacks":
            group.stacks.append(read(Stacks, message).stacks)
        else:
            group.end(read(Ended, message))

    def _prove(self, handshake: Handshake, message: Message) -> bool:
        """Let a connection in that knows the secret; otherwise close it and return False."""
        assert self._other_hosts is not None
        with contextlib.suppress(ChannelClosed):
            if handshake.accept(message):
                self._other_hosts.listener.handshakes.remove(handshake)
                self._selector.modify(handshake.channel, selectors.EVENT_READ, None)
                return True
        self._refuse(handshake, f"its {SECRET} differs")
        return False

    def _refuse(self, handshake: Handshake, why: str) -> None:
        assert self._other_hosts is not None
        self._other_hosts.listener.refuse(handshake, why)
        self.forget(handshake.channel)

    def _greet(self, channel: Channel, message: Message) -> tuple[Group, int] | None:
        """Record who has connected, and return the group and rank of a worker; cut off whoever else it is."""
        try:
            if message.get("event") == "launcher":
                self._introduce(channel, read(Launcher, message))
                return None
            hello = read(Hello, message)
            group = self.groups[hello.group]
            if hello.rank in group.channels or hello.rank not in range(group.size):
                raise KeyError(hello.rank)
            here = hello.rank in group.parts[0]
            if here and channel.peer_pid() not in (hello.pid, None):  # `Group.kill` ends the process of this number
                raise KeyError(hello.pid)
        except (TypeError, KeyError):  # also a worker that came up after its group was given up
            self.forget(channel)
            return None
        group.came_up(hello.rank, channel)
        if here:
            group.pids[hello.rank] = hello.pid
            with contextlib.suppress(psutil.Error):  # it has ended already
                group.processes[hello.rank] = psutil.Process(hello.pid)
        self._selector.modify(channel, selectors.EVENT_READ, (group, hello.rank))
        return group, hello.rank

    def _introduce(self, channel: Channel, launcher: Launcher) -> None:
        """Record that a launcher is up: this host's own, or that of another host, which may be refused.

        A KeyError says that it is neither.
        """
        if not launcher.host:
            if not self.launchers.came_up(channel, launcher):
                raise KeyError(launcher.host)
        elif self._other_hosts is not None:
            welcome = self._other_hosts.welcome(channel, launcher, self._kind, exact=self._exact)
            with contextlib.suppress(ChannelClosed):
                channel.send(welcome, SEND_TIMEOUT_S)
            if welcome.refused:
                self.forget(channel)
        else:
            raise KeyError(launcher.host)

    def _drop_logs(self) -> None:
        """Remove the outputs of groups that are gone; what was worth telling is in their failures."""
        for folder in (self.folder / "logs").glob("*"):
            if folder.name not in self.groups:
                shutil.rmtree(folder, ignore_errors=True)
