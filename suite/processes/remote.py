"""TCP connections between hosts, on which both ends have proved that they know one secret. Standard library only.

Each end sends a challenge, and answers the other's with its HMAC-SHA256. Until then a line may have `GREETING_BYTES`,
and the proof may take `GREETING_S`. What follows is neither encrypted nor signed: SECURITY.md says what is exposed.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import time
from collections.abc import Mapping

from suite.processes.channel import MAX_LINE_BYTES, Channel, ChannelClosed, ChannelGarbled, Message

SECRET = "SCALING_SECRET"  # noqa: S105 - the name of the variable
LEAST_CHARACTERS = 16
SCHEME = "tcp://"
GREETING_BYTES = 1024
GREETING_S = 10.0
MOST_GREETINGS = 64  # connections that have not proved anything yet; a further one is closed
# A host that vanished without a word is noticed after IDLE + INTERVAL * PROBES seconds.
KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}


class WrongSecret(ConnectionError):
    """The other end did not prove that it knows the secret, or would not believe that this one does."""


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


def dial(address: str, secret: bytes, *, greeting_s: float = GREETING_S) -> Channel:
    """Connect to the controller at "tcp://HOST:PORT", and return the channel when both ends have proved themselves.

    Raises:
        OSError: nothing listens there.
        WrongSecret: the secrets differ, or what listens is no controller.
    """
    host, _, port = address.removeprefix(SCHEME).rpartition(":")
    sock = socket.create_connection((host, int(port)), timeout=greeting_s)
    _keep_alive(sock)
    channel = Channel(sock, GREETING_BYTES)
    own, deadline = secrets.token_hex(16), time.monotonic() + greeting_s
    try:
        theirs = _text(channel.receive(greeting_s), "challenge")
        channel.send({"challenge": own, "proof": proof(secret, "host", theirs, own)}, greeting_s)
        answer = _text(channel.receive(max(0.0, deadline - time.monotonic())), "proof")
    except (TimeoutError, ChannelClosed, ChannelGarbled) as error:
        channel.close()
        raise WrongSecret(f"{address} did not believe this host: is {SECRET} the same there? ({error})") from error
    if not hmac.compare_digest(answer, proof(secret, "controller", own, theirs)):
        channel.close()
        raise WrongSecret(f"{address} does not know the {SECRET} of this host, and is not obeyed")
    channel.longest = MAX_LINE_BYTES
    return channel


class Greeting:
    """A connection from elsewhere that has not proved yet that it knows the secret."""

    def __init__(self, channel: Channel, secret: bytes) -> None:
        """Send the challenge."""
        self.channel, self._secret = channel, secret
        self._own = secrets.token_hex(16)
        self.deadline = time.monotonic() + GREETING_S
        channel.send({"challenge": self._own}, 1.0)

    def accept(self, message: Message) -> bool:
        """Return whether a message is the proof, and answer it with our own.

        Raises:
            ChannelClosed: the other end has gone meanwhile.
        """
        theirs, given = message.get("challenge"), message.get("proof")
        if not (isinstance(theirs, str) and isinstance(given, str) and given.isascii()):
            return False
        if not hmac.compare_digest(given, proof(self._secret, "host", self._own, theirs)):
            return False
        self.channel.send({"proof": proof(self._secret, "controller", theirs, self._own)}, 1.0)
        self.channel.longest = MAX_LINE_BYTES
        return True


class Door:
    """Where the launchers and workers of other hosts connect: a free port of one address.

    Attributes:
        address: as `dial` takes it.
        greetings: connections that have not proved themselves.
        turned_away: why connections were closed, by the address they came from.
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
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        self._listener.bind(name)
        self._listener.listen(256)
        self.host, port = self._listener.getsockname()[:2]
        self.address = f"{SCHEME}{self.host}:{port}"
        self.greetings: list[Greeting] = []
        self.turned_away: dict[str, str] = {}

    def fileno(self) -> int:
        """The descriptor of the socket that listens."""
        return self._listener.fileno()

    def open(self) -> Greeting | None:
        """Accept a connection and challenge it; None where that is impossible, or too many have not answered yet."""
        try:
            sock, _ = self._listener.accept()
        except OSError:  # it has gone already
            return None
        _keep_alive(sock)
        channel = Channel(sock, GREETING_BYTES)
        try:
            if len(self.greetings) >= MOST_GREETINGS:
                raise ChannelClosed("too many connections that say nothing")
            greeting = Greeting(channel, self._secret)
        except ChannelClosed:
            channel.close()
            return None
        self.greetings.append(greeting)
        return greeting

    def late(self) -> list[Greeting]:
        """Return the connections whose time is over."""
        now = time.monotonic()
        return [greeting for greeting in self.greetings if greeting.deadline < now]

    def turn_away(self, greeting: Greeting, why: str) -> None:
        """Take note that a connection is closed without having proved itself; of the first 64 addresses."""
        if len(self.turned_away) < MOST_GREETINGS:
            self.turned_away[greeting.channel.peer] = why
        self.greetings.remove(greeting)

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()


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
