"""Both ends of a connection prove the secret, and what does not is closed within limits of size and time."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from suite.processes import hosts
from suite.processes.channel import (
    MAX_LINE_BYTES,
    Channel,
    ChannelGarbled,
)
from suite.processes.hosts import Handshake, Listener, WrongSecret, dial

SECRET = b"sixteen characters, or more"
OTHER = b"another secret, as long as that"


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener("127.0.0.1", SECRET)
    yield made
    for handshake in made.handshakes:
        handshake.channel.close()
    made.close()


def dialled(listener: Listener, secret: bytes) -> tuple[Future[Channel], Handshake]:
    """Dial in another thread, and return the result to come, and the connection as the controller has it."""
    executor = ThreadPoolExecutor(1)
    result = executor.submit(dial, listener.address, secret)
    executor.shutdown(wait=False)
    handshake = listener.open()
    assert handshake is not None
    return result, handshake


def connected(listener: Listener) -> tuple[socket.socket, Handshake | None]:
    host, _, port = listener.address.removeprefix("tcp://").rpartition(":")
    there = socket.create_connection((host, int(port)), 5)
    return there, listener.open()


def test_two_ends_that_know_the_secret_talk(listener: Listener) -> None:
    result, handshake = dialled(listener, SECRET)
    assert handshake.accept(handshake.channel.receive(5))
    there = result.result(5)
    there.send({"size": "x" * 2 * hosts.HANDSHAKE_BYTES})
    assert len(handshake.channel.receive(5)["size"]) == 2 * hosts.HANDSHAKE_BYTES
    assert there.longest == handshake.channel.longest == MAX_LINE_BYTES
    assert (there.peer, there.own_address) == ("127.0.0.1", "127.0.0.1")
    there.close()


def test_a_host_with_another_secret_is_not_let_in(listener: Listener) -> None:
    result, handshake = dialled(listener, OTHER)
    assert not handshake.accept(handshake.channel.receive(5))
    handshake.channel.close()
    with pytest.raises(WrongSecret, match=r"refused the proof of this host: is SCALING_SECRET the same there\?"):
        result.result(5)


def test_a_controller_that_does_not_know_the_secret_is_refused() -> None:
    """A worker runs what its controller names."""
    pretending = Listener("127.0.0.1", OTHER)
    result, handshake = dialled(pretending, SECRET)
    handshake.channel.receive(5)
    handshake.channel.send({"proof": "0" * 64})
    with pytest.raises(WrongSecret, match="did not prove that it knows SCALING_SECRET: is the controller there"):
        result.result(5)
    handshake.channel.close()
    pretending.close()


def test_a_proof_that_was_overheard_is_none_of_another_connection(listener: Listener) -> None:
    result, first = dialled(listener, SECRET)
    overheard = first.channel.receive(5)
    assert first.accept(overheard)
    result.result(5).close()
    there, second = connected(listener)
    assert second is not None
    assert not second.accept(overheard)
    there.close()


def test_a_proof_sent_back_to_its_own_end_proves_nothing() -> None:
    assert hosts.proof(SECRET, "host", "a", "b") != hosts.proof(SECRET, "controller", "a", "b")
    assert hosts.proof(SECRET, "host", "a", "b") != hosts.proof(SECRET, "host", "b", "a")


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"challenge": "a"},
        {"challenge": 1, "proof": "a"},
        {"challenge": "a", "proof": "ä"},
        {"challenge": "\ud800", "proof": "a"},
    ],
)
def test_nonsense_is_no_proof(listener: Listener, message: dict[str, object]) -> None:
    there, handshake = connected(listener)
    assert handshake is not None
    assert not handshake.accept(message)
    there.close()


def test_a_long_line_before_the_proof_is_refused(listener: Listener) -> None:
    there, handshake = connected(listener)
    assert handshake is not None
    there.sendall(b"x" * (hosts.HANDSHAKE_BYTES + 1))
    with pytest.raises(ChannelGarbled, match="longer than 1024 bytes"):
        handshake.channel.receive(5)
    there.close()


def test_a_port_that_says_nothing_is_not_waited_for() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as mute,
        pytest.raises(WrongSecret, match="refused the proof of this host"),
    ):
        dial(f"tcp://127.0.0.1:{mute.getsockname()[1]}", SECRET, handshake_s=0.1)


@pytest.mark.parametrize("secret", ["", "short", "fifteen letters"])
def test_a_secret_that_can_be_guessed_is_refused(secret: str) -> None:
    with pytest.raises(ValueError, match=f"SCALING_SECRET has {len(secret)} characters: .* `openssl rand -hex 32`"):
        hosts.secret_here({"SCALING_SECRET": secret})
