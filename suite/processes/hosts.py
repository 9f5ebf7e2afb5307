"""A run on several hosts: how torchrun joins them, which ranks each has, and which hosts are let in.

torch's rendezvous tells when all hosts are there (docs/adr/0014). Each then has a launcher, and the launchers and
workers of other hosts connect to the controller's listener by TCP. Both ends of a connection prove that they know one
secret: each sends a challenge, and answers the other's with its HMAC-SHA256. Until then a line may have
`HANDSHAKE_BYTES`, and the proof may take `HANDSHAKE_S`. What follows is neither encrypted nor signed: SECURITY.md says
what is exposed. Standard library only, but for psutil where a run has several hosts.
"""

from __future__ import annotations

import hmac
import math
import os
import secrets
import selectors
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from suite.processes.channel import MAX_LINE_BYTES, Channel, ChannelClosed, ChannelGarbled, Launcher, Message, Welcome

# torchrun's own names for its --rdzv-endpoint, --rdzv-id and --rdzv-conf.
ENDPOINT, RUN_ID, CONF = "PET_RDZV_ENDPOINT", "PET_RDZV_ID", "PET_RDZV_CONF"
STORE = "SCALING_STORE"  # in a worker's environment: where the store is that its group's ranks meet in
JOIN_S = 120.0
ON_CONTROLLER = "is_host=1"  # torch compares names to find out, which fails where a host has several
# torch tells dead hosts by comparing their clocks with its own; TCP tells us of them.
CLOCKS = "keep_alive_max_attempt=1000000"
# How other hosts join. They wait ten minutes for the next rendezvous; torch's default is one, and a run takes longer.
JOINING = f"read_timeout=600,{CLOCKS}"
SECRET = "SCALING_SECRET"  # noqa: S105 - the name of the variable
LEAST_CHARACTERS = 16
SCHEME = "tcp://"
HANDSHAKE_BYTES = 1024
HANDSHAKE_S = 10.0
DIAL_S = 60.0  # the controller may be busy, or let others in, before it answers
MOST_HANDSHAKES = 64  # connections that have not proved anything yet; further ones wait until one of them has
# A host that vanished without a word is noticed after IDLE + INTERVAL * PROBES seconds. While something that was sent
# is not acknowledged, TCP sends no probes, and it is noticed after USER_TIMEOUT milliseconds.
KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30_000}


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """What the controller knows of a run's hosts beforehand."""

    count: int  # of the hosts, the controller's own among them
    per_host: int  # devices on each
    endpoint: str  # HOST:PORT of torch's rendezvous, on the controller's host
    run_id: str  # of the rendezvous
    secret: bytes  # that all hosts have
    torch: str = ""  # this and the next two are of the code here, as `Launcher` has them
    commit: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    join_s: float = JOIN_S  # until all hosts must be there

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
    """Return what the environment says of the hosts of a run; a ValueError where a variable is missing or wrong."""
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
        """Listen for other hosts; a ValueError where the endpoint is none of this host, or its port is taken."""
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

        torchrun's logs go to `log_dir`, because its own folder would be left in TMPDIR.
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


class WrongSecret(ConnectionError):
    """The other end did not prove that it knows the secret, or did not accept that this one does."""


def secret_here(environment: Mapping[str, str] = os.environ) -> bytes:
    """Return the secret that all hosts of a run share; a ValueError where it is missing, or short enough to guess."""
    secret = environment.get(SECRET, "")
    if len(secret) < LEAST_CHARACTERS:
        raise ValueError(
            f"{SECRET} has {len(secret)} characters: several hosts need one of at least {LEAST_CHARACTERS} that is the "
            "same on each, such as `openssl rand -hex 32` prints"
        )
    return secret.encode()


def proof(secret: bytes, who: str, theirs: str, own: str) -> str:
    """Return the proof of `who` ("host" or "controller") for the other end's challenge and its own."""
    return hmac.new(secret, f"torch-scaling-suite:{who}:{theirs}:{own}".encode(), "sha256").hexdigest()


def dial(address: str, secret: bytes, *, handshake_s: float = DIAL_S) -> Channel:
    """Connect to the controller at "tcp://HOST:PORT", and return the channel when both ends have proved themselves.

    Raises:
        OSError: nothing listens there.
        WrongSecret: the secrets differ, or what listens is no controller.
    """
    host, _, port = address.removeprefix(SCHEME).rpartition(":")
    sock = socket.create_connection((host, int(port)), timeout=handshake_s)
    _keep_alive(sock)
    channel = Channel(sock, HANDSHAKE_BYTES)
    own, deadline = secrets.token_hex(16), time.monotonic() + handshake_s
    try:
        theirs = _text(channel.receive(handshake_s), "challenge")
        channel.send({"challenge": own, "proof": proof(secret, "host", theirs, own)}, handshake_s)
        answer = _text(channel.receive(max(0.0, deadline - time.monotonic())), "proof")
    except (TimeoutError, ChannelClosed, ChannelGarbled) as error:
        channel.close()
        raise WrongSecret(f"{address} refused the proof of this host: is {SECRET} the same there? ({error})") from error
    if not hmac.compare_digest(answer, proof(secret, "controller", own, theirs)):
        channel.close()
        raise WrongSecret(
            f"{address} did not prove that it knows {SECRET}: is the controller there, with the same one?"
        )
    channel.longest = MAX_LINE_BYTES
    return channel


class Handshake:
    """A connection from another host that has not proved yet that it knows the secret."""

    def __init__(self, channel: Channel, secret: bytes) -> None:
        """Send the challenge."""
        self.channel, self._secret = channel, secret
        self._own = secrets.token_hex(16)
        self.deadline = time.monotonic() + HANDSHAKE_S
        channel.send({"challenge": self._own}, 1.0)

    def accept(self, message: Message) -> bool:
        """Return whether a message is the proof, and answer it; a `ChannelClosed` where the other end has gone."""
        try:
            theirs, given = _text(message, "challenge"), _text(message, "proof")
        except ChannelGarbled:
            return False
        if not hmac.compare_digest(given, proof(self._secret, "host", self._own, theirs)):
            return False
        self.channel.send({"proof": proof(self._secret, "controller", theirs, self._own)}, 1.0)
        self.channel.longest = MAX_LINE_BYTES
        return True


class Listener:
    """Listens for the launchers and workers of other hosts on a free port of one address.

    Attributes:
        address: as `dial` takes it.
        handshakes: connections that have not proved themselves.
        refused: why connections were closed, by the address that they came from.
    """

    def __init__(self, host: str, secret: bytes) -> None:
        """Listen on a name or an address of this machine; an OSError where it is none."""
        self._secret = secret
        family, _, _, _, name = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.bind(name)
        self._socket.listen(socket.SOMAXCONN)  # all ranks of a cell may come at once
        self.host, port = self._socket.getsockname()[:2]
        self.address = f"{SCHEME}{self.host}:{port}"
        self.handshakes: list[Handshake] = []
        self.refused: dict[str, str] = {}

    def fileno(self) -> int:
        """The descriptor of the socket that listens."""
        return self._socket.fileno()

    @property
    def full(self) -> bool:
        """Whether so many connections have not proved anything that further ones must wait."""
        return len(self.handshakes) >= MOST_HANDSHAKES

    def watch(self, selector: selectors.BaseSelector) -> float:
        """Have a selector report connections while there is room for one; return seconds until one may be late."""
        watched = self in selector.get_map()
        if self.full and watched:
            selector.unregister(self)
        elif not self.full and not watched:
            selector.register(self, selectors.EVENT_READ)
        first = min((handshake.deadline for handshake in self.handshakes), default=math.inf)
        return max(0.0, first - time.monotonic())

    def open(self) -> Handshake | None:
        """Accept a connection and challenge it; None where that is impossible."""
        try:
            sock, _ = self._socket.accept()
        except OSError:  # it has gone already
            return None
        _keep_alive(sock)
        channel = Channel(sock, HANDSHAKE_BYTES)
        try:
            handshake = Handshake(channel, self._secret)
        except ChannelClosed:
            channel.close()
            return None
        self.handshakes.append(handshake)
        return handshake

    def late(self) -> list[Handshake]:
        """Return the connections whose time is over."""
        now = time.monotonic()
        return [handshake for handshake in self.handshakes if handshake.deadline < now]

    def refuse(self, handshake: Handshake, why: str) -> None:
        """Record that a connection is closed without having proved itself; of the first 64 addresses."""
        if len(self.refused) < MOST_HANDSHAKES:
            self.refused[handshake.channel.peer] = why
        self.handshakes.remove(handshake)

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


def _keep_alive(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):  # Linux
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _text(message: Message, field: str) -> str:
    value = message.get(field)
    if not (isinstance(value, str) and value.isascii()):
        raise ChannelGarbled(f"no {field} in it")
    return value
