"""Connections between hosts: both ends prove the secret, and what does not is closed within limits of size and time."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from suite.processes import remote
from suite.processes.channel import MAX_LINE_BYTES, Channel, ChannelClosed, ChannelGarbled
from suite.processes.remote import Door, Greeting, WrongSecret, dial

SECRET = b"sixteen characters, or more"
OTHER = b"another secret, as long as that"


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door("127.0.0.1", SECRET)
    yield made
    for greeting in made.greetings:
        greeting.channel.close()
    made.close()


def dialled(door: Door, secret: bytes) -> tuple[Future[Channel], Greeting]:
    """Dial in another thread, and return the result to come, and the connection as the controller has it."""
    executor = ThreadPoolExecutor(1)
    result = executor.submit(dial, door.address, secret)
    executor.shutdown(wait=False)
    greeting = door.open()
    assert greeting is not None
    return result, greeting


def connected(door: Door) -> tuple[socket.socket, Greeting | None]:
    """Connect without saying anything, and return both ends."""
    host, _, port = door.address.removeprefix("tcp://").rpartition(":")
    there = socket.create_connection((host, int(port)), 5)
    return there, door.open()


def test_two_ends_that_know_the_secret_talk(door: Door) -> None:
    result, greeting = dialled(door, SECRET)
    assert greeting.accept(greeting.channel.receive(5))
    there = result.result(5)
    there.send({"size": "x" * 2 * remote.GREETING_BYTES})
    assert len(greeting.channel.receive(5)["size"]) == 2 * remote.GREETING_BYTES
    assert there.longest == greeting.channel.longest == MAX_LINE_BYTES
    assert (there.peer, there.own_address) == ("127.0.0.1", "127.0.0.1")
    there.close()


def test_a_host_with_another_secret_is_not_let_in(door: Door) -> None:
    result, greeting = dialled(door, OTHER)
    assert not greeting.accept(greeting.channel.receive(5))
    greeting.channel.close()
    with pytest.raises(WrongSecret, match=r"did not believe this host: is SCALING_SECRET the same there\?"):
        result.result(5)


def test_a_controller_that_does_not_know_the_secret_is_not_obeyed() -> None:
    """A worker runs what its controller names."""
    pretending = Door("127.0.0.1", OTHER)
    result, greeting = dialled(pretending, SECRET)
    greeting.channel.receive(5)
    greeting.channel.send({"proof": "0" * 64})
    with pytest.raises(WrongSecret, match="does not know the SCALING_SECRET of this host, and is not obeyed"):
        result.result(5)
    greeting.channel.close()
    pretending.close()


def test_a_proof_that_was_overheard_is_none_of_another_connection(door: Door) -> None:
    result, first = dialled(door, SECRET)
    overheard = first.channel.receive(5)
    assert first.accept(overheard)
    result.result(5).close()
    there, second = connected(door)
    assert second is not None
    assert not second.accept(overheard)
    there.close()


def test_a_proof_sent_back_to_its_own_end_proves_nothing() -> None:
    assert remote.proof(SECRET, "host", "a", "b") != remote.proof(SECRET, "controller", "a", "b")
    assert remote.proof(SECRET, "host", "a", "b") != remote.proof(SECRET, "host", "b", "a")


@pytest.mark.parametrize(
    "message", [{}, {"challenge": "a"}, {"challenge": 1, "proof": "a"}, {"challenge": "a", "proof": "ä"}]
)
def test_nonsense_is_no_proof(door: Door, message: dict[str, object]) -> None:
    there, greeting = connected(door)
    assert greeting is not None
    assert not greeting.accept(message)
    there.close()


def test_a_long_line_before_the_proof_is_refused(door: Door) -> None:
    there, greeting = connected(door)
    assert greeting is not None
    there.sendall(b"x" * (remote.GREETING_BYTES + 1))
    with pytest.raises(ChannelGarbled, match="longer than 1024 bytes"):
        greeting.channel.receive(5)
    there.close()


def test_silent_connections_are_few_and_end_in_time(door: Door) -> None:
    silent = [connected(door) for _ in range(remote.MOST_GREETINGS)]
    assert all(greeting for _, greeting in silent)
    there, further = connected(door)
    assert further is None
    assert there.recv(10) == b""
    assert not door.late()
    door.greetings[3].deadline -= remote.GREETING_S
    [late] = door.late()
    door.turn_away(late, "late")
    late.channel.close()
    assert (len(door.greetings), door.turned_away) == (remote.MOST_GREETINGS - 1, {"127.0.0.1": "late"})
    for connection in [there, *(mute for mute, _ in silent)]:
        connection.close()


def test_a_port_that_says_nothing_is_not_waited_for() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as mute,
        pytest.raises(WrongSecret, match="did not believe this host"),
    ):
        dial(f"tcp://127.0.0.1:{mute.getsockname()[1]}", SECRET, greeting_s=0.1)


def test_a_peer_that_leaves_without_a_word_is_told_apart_from_a_proof(door: Door) -> None:
    there, greeting = connected(door)
    there.close()
    assert greeting is not None
    with pytest.raises(ChannelClosed):
        greeting.channel.receive(5)


@pytest.mark.parametrize("secret", ["", "short", "fifteen letters"])
def test_a_secret_that_can_be_guessed_is_refused(secret: str) -> None:
    with pytest.raises(ValueError, match=f"SCALING_SECRET has {len(secret)} characters: .* `openssl rand -hex 32`"):
        remote.secret_here({"SCALING_SECRET": secret})
