"""The launcher: starts groups of worker processes with torch's own elastic agent, one agent a group.

One launcher lives as long as a run and belongs to one interpreter; importing torch is paid for once. Every group it
starts is made of freshly executed processes (nothing is forked from here with torch warm). The controller tells it what
to start in JSON and hears from it how each group ended: exit code or signal of every rank that failed, in the order
they failed.

The agent is torchrun's (`torch.distributed.launcher`), `max_restarts=0`, with a static rendezvous whose store listens
on loopback only: torch's own static store listens on every interface. The port is taken by binding it, so it cannot be
taken by somebody else in between.
"""

from __future__ import annotations

import argparse
import sys
import threading
from datetime import timedelta

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # public, and documented
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from suite.processes import loopback
from suite.processes.channel import Channel, ChannelClosed
from suite.processes.messages import Ended, Exit, Start, read
from suite.room.quiet import die_with_parent

STORE_TIMEOUT = timedelta(seconds=300)


class LoopbackRendezvous(RendezvousHandler):
    """A static rendezvous of one node whose TCPStore is bound to 127.0.0.1."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        with loopback.listen() as listener:
            self._port: int = listener.getsockname()[1]
            # The store owns the descriptor from here on.
            self._store = TCPStore(
                loopback.ADDRESS,
                self._port,
                is_master=True,
                timeout=STORE_TIMEOUT,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )

    def get_backend(self) -> str:
        """The name this handler is registered under."""
        return "loopback"

    @property
    def use_agent_store(self) -> bool:
        """Workers join the agent's store instead of opening one of their own."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Complete at once: one node, rank 0."""
        return RendezvousInfo(
            PrefixStore(self._run_id, self._store), 0, 1, RendezvousStoreInfo(loopback.ADDRESS, self._port)
        )

    def is_closed(self) -> bool:
        """Never: the run ends it."""
        return False

    def set_closed(self) -> None:
        """Nothing to close."""

    def num_nodes_waiting(self) -> int:
        """Return 0: there is one node."""
        return 0

    def get_run_id(self) -> str:
        """The group's name."""
        return self._run_id

    def shutdown(self) -> bool:
        """Nothing of its own to shut down."""
        return True


def _rendezvous(params: RendezvousParameters) -> RendezvousHandler:
    return LoopbackRendezvous(params.run_id)


def run_group(channel: Channel, start: Start, lock: threading.Lock) -> None:
    """Run one group to its end and report how it ended."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=start.size,
        run_id=start.group,
        rdzv_backend="loopback",
        rdzv_endpoint=loopback.ADDRESS,
        max_restarts=0,
        monitor_interval=0.5,
        logs_specs=DefaultLogsSpecs(log_dir=start.log_dir, redirects=Std.ALL),
    )
    ended = Ended(start.group)
    try:
        elastic_launch(config, sys.executable)("-m", "suite.worker", *start.args)
    except ChildFailedError as error:
        in_time = sorted(error.failures.items(), key=lambda item: item[1].timestamp)
        ended = Ended(start.group, tuple(Exit(rank, failure.exitcode, failure.pid) for rank, failure in in_time))
    except Exception as error:  # the controller must hear of it, whatever it is
        ended = Ended(start.group, cause=f"{type(error).__name__}: {error}")
    with lock:
        channel.send(ended)


def main() -> None:
    """Start the groups that the controller asks for, until it closes the connection."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", required=True)
    arguments = parser.parse_args()
    die_with_parent()
    rendezvous_handler_registry.register("loopback", _rendezvous)
    channel = Channel.connect(arguments.socket)
    lock = threading.Lock()
    channel.send({"event": "launcher"})
    while True:
        try:
            start = read(Start, channel.receive())  # no deadline: it ends when the controller goes
        except ChannelClosed:
            return
        # A thread each: an agent blocks until its group ends. Daemon, so that the launcher's own end is never held up.
        threading.Thread(target=run_group, args=(channel, start, lock), daemon=True).start()


if __name__ == "__main__":
    main()
