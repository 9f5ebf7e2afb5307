"""Messages over a socket: framing, time limits, and peers that are closed or send nonsense."""

from __future__ import annotations

import errno
import os
import socket
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.processes import channel
from suite.processes.channel import Channel, ChannelClosed, ChannelGarbled


def pair() -> tuple[Channel, socket.socket]:
    ours, theirs = socket.socketpair()
    return Channel(ours), theirs


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.text(), JSON, max_size=3), min_size=1, max_size=5))
def test_messages_arrive_whole_and_in_order(messages: list[dict[str, object]]) -> None:
    ours, theirs = socket.socketpair()
    sender, receiver = Channel(ours), Channel(theirs)
    for message in messages:
        sender.send(message)
    assert [receiver.receive(1.0) for _ in messages] == messages
    sender.close()
    receiver.close()


def test_a_message_in_pieces_is_put_together() -> None:
    receiver, peer = pair()
    peer.send(b'{"a"')
    with pytest.raises(TimeoutError):
        receiver.receive(0.05)
    peer.send(b": 1}\n")
    assert receiver.receive(1.0) == {"a": 1}


def test_receiving_from_and_sending_to_a_closed_peer_is_one_error() -> None:
    ours, peer = pair()
    peer.close()
    with pytest.raises(ChannelClosed, match="closed the connection"):
        ours.receive(1.0)
    with pytest.raises(ChannelClosed):
        for _ in range(1000):
            ours.send({"x": "y" * 1000})


def test_sending_to_a_peer_that_does_not_read_ends_at_the_time_limit() -> None:
    sender, _peer = pair()
    with pytest.raises(ChannelClosed, match="timed out"):
        sender.send({"x": "y" * 10_000_000}, timeout_s=0.05)


class TimesOut(socket.socket):
    """A connection whose peer no longer acknowledges anything: the kernel has given it up."""

    def recv(self, *_: int) -> bytes:
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))


def test_a_time_out_of_the_network_closes_the_channel_and_our_own_limit_does_not() -> None:
    ours, peer = socket.socketpair()
    given_up = Channel(TimesOut(fileno=ours.detach()))
    with pytest.raises(ChannelClosed, match="timed out"):
        given_up.pump()
    with pytest.raises(ChannelClosed, match="timed out"):
        given_up.receive(1)
    given_up.close()
    peer.close()
    silent, _peer = pair()
    with pytest.raises(TimeoutError):
        silent.receive(0.01)


@pytest.mark.parametrize("line", [b"not json\n", b"[1]\n", b"\xff\xfe\n", b"[" * 100_000 + b"\n"])
def test_nonsense_is_refused(line: bytes) -> None:
    receiver, peer = pair()
    peer.send(line)
    with pytest.raises(ChannelGarbled, match="not "):
        receiver.receive(1.0)


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_an_endless_line_is_refused(end: bytes) -> None:
    ours, peer = socket.socketpair()
    receiver = Channel(ours, longest=10)
    peer.send(b"x" * 20 + end)
    with pytest.raises(ChannelGarbled, match="longer than 10 bytes"):
        receiver.receive(1.0)


def test_sending_on_a_channel_that_was_closed_here_is_the_same_error() -> None:
    ours, theirs = (Channel(end) for end in socket.socketpair())
    ours.close()
    with pytest.raises(ChannelClosed):
        ours.send({}, 1.0)
    theirs.close()


@pytest.mark.skipif(sys.platform != "linux", reason="by way of /proc")
def test_a_socket_in_a_folder_with_a_long_name_is_reached(tmp_path: Path) -> None:
    """A TMPDIR of a cluster's job has often more than the 107 bytes that an address takes."""
    folder = tmp_path / ("x" * 150)
    folder.mkdir()
    path = str(folder / "controller")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with channel.short(path) as address:
        listener.bind(address)
    listener.listen()
    worker = Channel.connect(path)
    accepted = Channel(listener.accept()[0])
    worker.send({"event": "hello"})
    assert accepted.receive(1.0) == {"event": "hello"}
    for opened in (worker, accepted, listener):
        opened.close()
