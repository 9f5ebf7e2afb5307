"""TCP connections between hosts, on which both ends have proved that they know one secret. Standard library only.

Each end sends a challenge, and answers the other's with its HMAC-SHA256. Until then a line may have `HANDSHAKE_BYTES`,
and the proof may take `HANDSHAKE_S`. What follows is neither encrypted nor signed: SECURITY.md says what is exposed.
"""

from __future__ import annotations

import hmac
import math
import os
import secrets
import selectors
import socket
import time
from collections.abc import Mapping

from suite.processes.channel import MAX_LINE_BYTES, Channel, ChannelClosed, ChannelGarbled, Message

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


class WrongSecret(ConnectionError):
    """The other end did not prove that it knows the secret, or did not accept that this one does."""


def secret_here(environment: Mapping[str, str] = os.environ) -> bytes:
    """Return the secret that all hosts of a run share.

    Raises:
        ValueError: it is missing, or short enough to be guessed.
    """
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
        """Return whether a message is the proof, and answer it with our own.

        Raises:
            ChannelClosed: the other end has gone meanwhile.
        """
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
        """Listen.

        Args:
            host: a name or an address of this machine.
            secret: that the other ends must know.

        Raises:
            OSError: it is none of this machine.
        """
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
