"""The launcher: starts groups of worker processes with torch's own elastic agent, one agent a group.

One launcher lives as long as a run and belongs to one interpreter; importing torch is paid for once. Every group
consists of newly executed processes; this process forks none. The controller tells it what to start in JSON and hears
from it how each group ended: exit code or signal of every rank that failed, in the order they failed.

The agent is torchrun's (`torch.distributed.launcher`), `max_restarts=0`, with a static rendezvous whose store listens
on loopback only: torch's own static store listens on every interface. The socket is bound before the store gets it, so
no other process can take the port.

In a run on several hosts every host has a launcher, which torchrun starts when all hosts have joined (docs/adr/0014).
The controller's own publishes the controller's address in the rendezvous' store; the others connect there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # public, and documented
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousInfo,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from suite.processes import hosts
from suite.processes.channel import (
    LOOPBACK,
    Channel,
    ChannelClosed,
    Ended,
    Exit,
    Launcher,
    Stacks,
    Start,
    Tell,
    Welcome,
    listen_on_loopback,
    read,
)
from suite.processes.failure import stacks, stderr_tail, workers_of
from suite.processes.folder import FOLDER
from suite.room import quiet

STORE_TIMEOUT_S = 300


class LoopbackRendezvous(StaticTCPRendezvous):
    """torch's static rendezvous, of one node, with a store that listens on 127.0.0.1 alone."""

    def __init__(self, run_id: str) -> None:
        with listen_on_loopback() as listener:
            port: int = listener.getsockname()[1]
            super().__init__(LOOPBACK, port, rank=0, world_size=1, run_id=run_id, timeout=STORE_TIMEOUT_S)
            # The store owns the descriptor from here on.
            self._on_loopback = TCPStore(
                LOOPBACK,
                port,
                is_master=True,
                timeout=self.timeout,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )

    def get_backend(self) -> str:
        """Return the name that this handler is registered under."""
        return "loopback"

    def next_rendezvous(self) -> RendezvousInfo:
        """Complete at once."""
        store = PrefixStore(self.run_id, self._on_loopback)
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(LOOPBACK, self.master_port))


def run_group(channel: Channel, start: Start, lock: threading.Lock, running: set[str], *, away: bool = False) -> None:
    """Run one group, or this host's part of it, to its end and report how it ended.

    Args:
        channel: to the controller.
        start: what to start.
        lock: of the channel and of `running`.
        running: the names of all groups that run here, from which this one's is removed.
        away: whether the controller is on another host: it cannot read what a rank wrote to stderr, and its own reaper
            does not end what ranks have left here. This process's parent is the reaper that does.
    """
    ended, ranks = Ended(start.group), start.ranks or tuple(range(start.size))
    spanning = (f"--ranks={','.join(map(str, ranks))}", f"--world-size={start.world_size}") if start.ranks else ()
    try:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=start.size,
            run_id=start.group,
            rdzv_backend="loopback",
            rdzv_endpoint=LOOPBACK,
            max_restarts=0,
            monitor_interval=0.5,
            logs_specs=DefaultLogsSpecs(log_dir=start.log_dir, redirects=Std.ALL),
        )
        elastic_launch(config, sys.executable)("-m", "suite.worker", *start.args, *spanning)
    except ChildFailedError as error:
        in_time = sorted(error.failures.items(), key=lambda item: item[1].timestamp)
        tails = {local: stderr_tail(Path(start.log_dir), local) if away else "" for local, _ in in_time}
        exits = (Exit(ranks[local], end.exitcode, tails[local]) for local, end in in_time)
        ended = Ended(start.group, tuple(exits))
    except Exception as error:  # the controller must hear of it, whatever it is
        ended = Ended(start.group, cause=f"{type(error).__name__}: {error}")
    with lock, contextlib.suppress(ChannelClosed):
        running.discard(start.group)
        if away and not running:
            with contextlib.suppress(OSError):
                os.kill(os.getppid(), signal.SIGUSR1)
        channel.send(ended)


def main() -> None:
    """Start the groups that the controller asks for, until it closes the connection."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", help="the controller's on this host; otherwise it is on another")
    parser.add_argument("--publish", default="", help="tell other hosts that the controller listens there")
    parser.add_argument("--about", default="", help="a file with what the controller is told of this host")
    arguments = parser.parse_args()
    quiet.die_with_parent()
    rendezvous_handler_registry.register("loopback", lambda params: LoopbackRendezvous(params.run_id))
    if arguments.socket is None:
        serve_other_host(Path(arguments.about))
        return
    channel = Channel.connect(arguments.socket)
    if arguments.publish:
        os.environ[hosts.STORE] = os.environ[hosts.ENDPOINT]
        _store().set(_key(), arguments.publish)
    channel.send(Launcher())
    serve(channel, lambda start: start)


def serve_other_host(about: Path) -> None:
    """Connect to the controller of another host, then serve it; leave where that refuses this host.

    `about` is a file with a `suite.processes.channel.Launcher`; its folder is this host's.
    """
    try:
        os.environ[hosts.STORE] = os.environ[hosts.ENDPOINT]
        secret = hosts.secret_here()
        address = _store().get(_key()).decode()
        channel = hosts.dial(address, secret)
        channel.send(read(Launcher, json.loads(about.read_text(encoding="utf-8"))))
        welcome = read(Welcome, channel.receive(hosts.DIAL_S))
    except (KeyError, ValueError, OSError) as error:
        sys.exit(f"this host cannot take part: {type(error).__name__}: {error}")
    if welcome.refused:
        sys.exit(f"the controller refused this host: {welcome.refused}")
    own = {**os.environ, **hosts.network(channel.own_address)}
    os.environ |= quiet.environment(own, welcome.kind, exact=welcome.exact) | {FOLDER: str(about.parent)}
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(about.parent / "inductor"))
    serve(channel, lambda start: replace(start, log_dir=str(about.parent / "logs" / start.group)), away=True)


def serve(channel: Channel, adapt: Callable[[Start], Start], *, away: bool = False) -> None:
    """Start groups until the controller closes the connection; `adapt` makes what it says right on this host."""
    lock = threading.Lock()
    started: dict[str, Start] = {}
    running: set[str] = set()
    while True:
        try:
            message = channel.receive()  # no deadline: it ends when the controller goes
        except ChannelClosed:
            return
        if "action" in message:
            tell = read(Tell, message)
            if tell.group in started:
                threading.Thread(target=obey, args=(channel, started[tell.group], tell, lock), daemon=True).start()
            continue
        start = adapt(read(Start, message))
        started[start.group] = start
        with lock:
            running.add(start.group)
        # A thread each: an agent blocks until its group ends. Daemon, so that the launcher's own end is never held up.
        arguments = (channel, start, lock, running)
        threading.Thread(target=run_group, args=arguments, kwargs={"away": away}, daemon=True).start()


def obey(channel: Channel, start: Start, tell: Tell, lock: threading.Lock) -> None:
    """Kill this host's ranks of a group, or answer with their stacks."""
    pids = workers_of(os.getpid(), tell.group)
    if tell.action == "kill":
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # each worker leads a process group of its own
        return
    said = stacks(Path(start.log_dir), pids, range(start.size))
    with lock, contextlib.suppress(ChannelClosed):
        channel.send(Stacks(tell.group, {str(start.ranks[local]): text for local, text in said.items()}))


def _store() -> TCPStore:
    """Return the store of the rendezvous that torchrun has completed."""
    host, _, port = os.environ[hosts.ENDPOINT].rpartition(":")
    return TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=hosts.JOIN_S))


def _key() -> str:
    """Return under which key the controller's address is in the store."""
    return f"torch-scaling-suite/{os.environ.get(hosts.RUN_ID, 'none')}/controller"


if __name__ == "__main__":
    main()
