"""The template: a process that has torch loaded and forks groups of workers.

Loading torch and its compiler takes seconds of a core, and a forked worker has both at once. It takes the place of
`suite.launch` in a pool that asks for it, and talks to the controller in the same messages: which group to start, and
how each group ended, with the exit code or signal of every rank that failed in the order they failed. What is timed
gets a new template for every session (docs/adr/0005), everything else keeps one.

A fork copies one thread and all locks, so the template stays single-threaded: it runs no operation of torch, touches
neither CUDA nor autograd, and imports no code of a user's. Every fork checks that it has one thread. Linux only.
docs/adr/0005 says what is left to torch's agent.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import os
import random
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from suite import worker
from suite.processes.channel import (
    LOOPBACK,
    Channel,
    ChannelClosed,
    Ended,
    Exit,
    Launcher,
    Start,
    listen_on_loopback,
    read,
)
from suite.room import quiet

# What takes long to load. Both sides of a comparison share it, whatever code they run.
TORCH = ("torch._dynamo", "torch.distributed.fsdp")
# What a worker would load in its first correctness case.
TRAINERS = (
    *TORCH,
    "suite.rank.commands",
    "reference.trainers.data_parallel",
    "reference.trainers.ddp",
    "reference.trainers.fsdp",
    "reference.trainers.gluon",
    "reference.trainers.scratch_overlap",
    "reference.trainers.single",
    "reference.trainers.weighted",
)


@dataclass
class ForkedGroup:
    """The living workers of one group, and how those that ended badly did."""

    running: dict[int, int] = field(default_factory=dict)  # rank by process id
    failures: list[Exit] = field(default_factory=list)  # of the ranks that failed, the first one first
    cause: str = ""  # why it was given up before all its workers were there

    def end(self, pid: int, exitcode: int) -> None:
        """Record that a rank has ended; the first failure ends the ranks that are left, as torch's agent does."""
        rank = self.running.pop(pid)
        if exitcode == 0 or self.cause:
            return
        if not self.failures:
            self.kill()
        self.failures.append(Exit(rank, exitcode))

    def kill(self) -> None:
        """End the ranks that are left, with what they started; none of them has been waited for."""
        for pid in self.running:
            for kill in (os.killpg, os.kill):  # it may not lead a process group yet
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    kill(pid, signal.SIGKILL)


class Template:
    """Forks the groups that the controller asks for, and reports how they ended."""

    def __init__(self, channel: Channel, *, timed: bool) -> None:
        self._channel, self._timed = channel, timed
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ)
        self._groups: dict[str, ForkedGroup] = {}

    def serve(self) -> None:
        """Serve until the controller closes the connection."""
        while True:
            for key, _ in self._selector.select():  # the controller's end closes the channel, which wakes this
                if key.fileobj is self._channel:
                    try:
                        messages = self._channel.pump()
                    except ChannelClosed:
                        return
                    for message in messages:
                        self._start(read(Start, message))
                else:
                    self._reap(key)

    def _start(self, start: Start) -> None:
        name = start.group
        if (threads := count_threads()) > 1:
            cause = f"the template has {threads} threads and cannot fork"
            self._channel.send(Ended(name, cause=f"{cause}: look for a sitecustomize or .pth file that starts one"))
            return
        if not self._timed:
            quiet.share_cores()
        group = self._groups[name] = ForkedGroup()
        try:
            with listen_on_loopback() as listener:
                for rank in range(start.size):
                    pid = os.fork()
                    if pid == 0:
                        _work(start, rank, listener, (self._selector, self._channel))
                    group.running[pid] = rank
                    self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (name, pid))
        except OSError as error:  # a limit on processes or descriptors, which other groups may keep
            group.cause = f"the template cannot start {start.size} workers: {error}"
            group.kill()
            watched = {key.data for key in self._selector.get_map().values()}
            for pid in [pid for pid in group.running if (name, pid) not in watched]:
                self._wait_for(name, pid)
            if not group.running:
                self._note_end(name)

    def _reap(self, key: selectors.SelectorKey) -> None:
        name, pid = key.data
        self._selector.unregister(key.fileobj)
        os.close(key.fd)
        self._wait_for(name, pid)  # its descriptor said that it has ended
        if not self._groups[name].running:
            self._note_end(name)

    def _wait_for(self, name: str, pid: int) -> None:
        _, status = os.waitpid(pid, 0)
        self._groups[name].end(pid, os.waitstatus_to_exitcode(status))

    def _note_end(self, name: str) -> None:
        group = self._groups.pop(name)
        self._channel.send(Ended(name, tuple(group.failures), group.cause))


def count_threads() -> int:
    """Return the number of this process's threads, including those that Python does not know."""
    return len(os.listdir("/proc/self/task"))


def _work(
    start: Start, rank: int, listener: socket.socket, parents: Sequence[selectors.BaseSelector | Channel]
) -> NoReturn:
    """Become a rank of the group, as torch's agent would have started it, and serve; `parents` is closed."""
    code = 1
    try:
        for opened in parents:
            opened.close()
        os.setsid()  # the controller ends a rank with its children by its process group
        quiet.die_with_parent()
        folder = Path(start.log_dir) / str(rank)
        folder.mkdir(parents=True)
        _redirect(folder)
        port = listener.getsockname()[1]
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(start.size),
            "LOCAL_WORLD_SIZE": str(start.size),
            "MASTER_ADDR": LOOPBACK,
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RUN_ID": start.group,
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # every rank is a client of the store that rank 0 keeps here
        }
        random.seed()
        store = _store(listener, port) if rank == 0 else None
        listener.close()
        worker.main(start.args)
        del store
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _redirect(folder: Path) -> None:
    targets = [(0, os.devnull, os.O_RDONLY)]
    targets += [
        (fd, str(folder / name), os.O_WRONLY | os.O_CREAT) for fd, name in ((1, "stdout.log"), (2, "stderr.log"))
    ]
    for fd, path, flags in targets:
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, fd)
        os.close(opened)


def _store(listener: socket.socket, port: int) -> Any:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, and documented

    return TCPStore(LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=os.dup(listener.fileno()))


def main() -> None:
    """Load torch, then serve the controller until it closes the connection."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", required=True)
    parser.add_argument("--preload", choices=("torch", "trainers"), required=True)
    arguments = parser.parse_args()
    quiet.die_with_parent()
    begun = time.monotonic()
    with quiet.fast_imports():
        for module in TORCH if arguments.preload == "torch" else TRAINERS:
            importlib.import_module(module)
    gc.freeze()  # what every worker shares is not looked through, and so not copied, by their collectors
    channel = Channel.connect(arguments.socket)
    channel.send(Launcher(load_s=time.monotonic() - begun))
    Template(channel, timed=arguments.preload == "torch").serve()


if __name__ == "__main__":
    main()
