"""A run on several hosts: how torchrun joins them, which ranks each has, and which hosts are let in.

torch's rendezvous tells when all hosts are there (docs/adr/0014). Each then has a launcher, and the launchers of other
hosts connect to the controller's listener (`suite.processes.remote`).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from suite.processes.channel import Channel
from suite.processes.messages import Launcher, Welcome
from suite.processes.remote import Listener, secret_here

# torchrun's own names for its --rdzv-endpoint, --rdzv-id and --rdzv-conf.
ENDPOINT, RUN_ID, CONF = "PET_RDZV_ENDPOINT", "PET_RDZV_ID", "PET_RDZV_CONF"
STORE = "SCALING_STORE"  # in a worker's environment: where the store is that its group's ranks meet in
JOIN_S = 120.0
ON_CONTROLLER = "is_host=1"  # torch compares names to find out, which fails where a host has several
# torch tells dead hosts by comparing their clocks with its own; TCP tells us of them.
CLOCKS = "keep_alive_max_attempt=1000000"
# How other hosts join. They wait ten minutes for the next rendezvous; torch's default is one, and a run takes longer.
JOINING = f"read_timeout=600,{CLOCKS}"


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """What the controller knows of a run's hosts beforehand.

    Attributes:
        count: of the hosts, the controller's own among them.
        per_host: devices on each.
        endpoint: HOST:PORT of torch's rendezvous, on the controller's host.
        run_id: of the rendezvous.
        secret: that all hosts have.
        torch, commit, files: of the code here, as `suite.processes.messages.Launcher` has them.
        join_s: until all hosts must be there.
    """

    count: int
    per_host: int
    endpoint: str
    run_id: str
    secret: bytes
    torch: str = ""
    commit: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    join_s: float = JOIN_S

    def layout(self, size: int, *, spread: bool = False) -> list[tuple[int, ...]]:
        """Return the ranks of each host, the controller's first, without hosts at the end that have none.

        Args:
            size: of the group.
            spread: deal the ranks to the hosts in turn; otherwise each host is filled before the next.
        """
        host_of = [rank % self.count if spread else rank // self.per_host for rank in range(size)]
        return [tuple(rank for rank in range(size) if host_of[rank] == host) for host in range(max(host_of) + 1)]


def from_environment(
    count: int,
    per_host: int,
    *,
    torch: str = "",
    commit: str = "",
    files: Mapping[str, str] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Hosts:
    """Return what the environment says of the hosts of a run.

    Raises:
        ValueError: a variable is missing or wrong.
    """
    endpoint = environment.get(ENDPOINT, "")
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(
            f"{ENDPOINT} is {endpoint!r}: several hosts need the HOST:PORT of torchrun's --rdzv-endpoint, HOST being "
            "the one where pytest runs (docs/several-machines.md)"
        )
    return Hosts(
        count=count,
        per_host=per_host,
        endpoint=endpoint,
        run_id=environment.get(RUN_ID, "none"),
        secret=secret_here(environment),
        torch=torch,
        commit=commit,
        files=files or {},
    )


@dataclass
class Host:
    """Another host that takes part, whose address is also known when its connection has ended."""

    about: Launcher
    channel: Channel
    address: str

    def __str__(self) -> str:
        return f"{self.about.host} ({self.address})"


class OtherHosts:
    """The other hosts of a run, in torch's order, as they come and go.

    Attributes:
        settings: of the run.
        listener: where they connect.
        hosts: those that take part.
        joined: whether all have been there at the same time.
        problem: why the run cannot have all its hosts; empty while it may.
    """

    def __init__(self, settings: Hosts) -> None:
        """Listen for other hosts.

        Raises:
            ValueError: the endpoint is no address of this host, or another process has its port.
        """
        host, _, port = settings.endpoint.rpartition(":")
        try:
            self.listener = Listener(host, settings.secret)
        except OSError as error:
            raise ValueError(
                f"{ENDPOINT} is {settings.endpoint!r}: {host} is no address of this host ({error.strerror}); pytest "
                "runs on the host that the endpoint names"
            ) from error
        try:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of an earlier run may remain
                probe.bind(("", int(port)))
        except (OSError, OverflowError) as error:
            self.listener.close()
            raise ValueError(
                f"{ENDPOINT} is {settings.endpoint!r}: torch's rendezvous cannot listen on port {port} of this host "
                f"({error}); choose another port on all hosts, and start torchrun on the others alone"
            ) from error
        self.settings = settings
        self.hosts: list[Host] = []
        self.joined = False
        self.problem = ""
        self._deadline = time.monotonic() + settings.join_s

    def command(self, module: Sequence[str], log_dir: Path) -> list[str]:
        """Return the arguments of `python -m` that run a module on this host when all hosts have joined.

        Args:
            module: its name and its arguments.
            log_dir: for torchrun's logs, whose own folder would be left in TMPDIR.
        """
        settings = self.settings
        conf = ",".join(filter(None, (os.environ.get(CONF, ""), ON_CONTROLLER, CLOCKS)))
        return [
            "torch.distributed.run",
            f"--nnodes={settings.count}",
            "--nproc-per-node=1",
            "--max-restarts=0",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={settings.endpoint}",
            f"--rdzv-id={settings.run_id}",
            f"--rdzv-conf={conf}",
            f"--local-addr={self.listener.host}",
            f"--log-dir={log_dir}",
            "-m",
            *module,
            f"--publish={self.listener.address}",
        ]

    def environment(self) -> dict[str, str]:
        """Return the variables of the controller's launcher and its workers."""
        return {
            ENDPOINT: self.settings.endpoint,
            RUN_ID: self.settings.run_id,
            # Without it the first host opens a further store for workers, which ours do not use.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }

    @property
    def complete(self) -> bool:
        """Whether every host takes part."""
        return len(self.hosts) == self.settings.count - 1

    @property
    def waiting(self) -> bool:
        """Whether hosts that have not come may still do so."""
        return not self.problem and not self.joined and time.monotonic() < self._deadline

    def welcome(self, channel: Channel, launcher: Launcher, kind: str, *, exact: bool) -> Welcome:
        """Let a host in, or refuse it."""
        host = Host(launcher, channel, channel.peer)
        if refused := self._unlike(launcher, kind):
            self.problem = self.problem or f"host {host} is refused: {refused}"
        else:
            self.hosts = sorted([*self.hosts, host], key=lambda known: known.about.node)
            self.joined = self.joined or self.complete
        return Welcome(kind, exact, refused)

    def left(self, channel: Channel) -> str:
        """Take note that a connection is gone; return what that means if a host had it, empty for a worker's."""
        for host in self.hosts:
            if host.channel is channel:
                self.hosts.remove(host)
                self.problem = f"host {host} has left the run: its launcher or its network has ended"
                return self.problem
        return ""

    def missing(self) -> str:
        """Return why not all hosts are there, in words."""
        if self.problem:
            return self.problem
        settings = self.settings
        away = "; ".join(f"a connection from {peer} was closed: {why}" for peer, why in self.listener.refused.items())
        command = (
            f"while torchrun --nnodes={settings.count} --rdzv-backend=c10d --rdzv-endpoint={settings.endpoint} "
            f"--rdzv-id={settings.run_id} --rdzv-conf={JOINING} -m suite.worker; do :; done"
        )
        return (
            f"{settings.count} hosts should join at {settings.endpoint} within {settings.join_s:.0f} s, and "
            f"{len(self.hosts)} of the other {settings.count - 1} did: start `{command}` on each of them"
        ) + (f" ({away})" if away else "")

    def _unlike(self, launcher: Launcher, kind: str) -> str:
        """Return in what another host differs from this one; empty where it may take part."""
        if self.complete:
            return f"all {self.settings.count} hosts are there already"
        if launcher.torch != self.settings.torch:
            return f"it has torch {launcher.torch}, and the controller's host has {self.settings.torch}"
        if launcher.commit != self.settings.commit:
            return f"it has commit {launcher.commit}, and the controller's host has {self.settings.commit}"
        ours = self.settings.files
        differing = sorted(path for path in {*ours, *launcher.files} if ours.get(path) != launcher.files.get(path))
        if differing:
            more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
            return f"at commit {launcher.commit} it has another {', '.join(differing[:3])}{more}"
        count = launcher.gpus if kind == "cuda" else launcher.cores
        if count < self.settings.per_host:
            what = "GPU(s)" if kind == "cuda" else "core(s)"
            return f"it has {count} {what}, and {self.settings.per_host} are asked for"
        return ""


def network(address: str, inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what gloo and NCCL are told of the interface that hosts reach each other on, where the user has not."""
    import psutil  # only here: a launcher may have an interpreter without it, unless its run has several hosts

    families, known = (socket.AF_INET, socket.AF_INET6), psutil.net_if_addrs().items()
    own = (name for name, all_of in known if any(one.address == address and one.family in families for one in all_of))
    name = next(own, "")
    told = {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"} if name else {}
    return {variable: value for variable, value in told.items() if variable not in inherited}
