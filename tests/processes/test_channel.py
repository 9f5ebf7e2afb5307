"""Messages over a socket: framing, time limits, peers that are closed or send nonsense; and what comes back as sent."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.processes import channel
from suite.processes.channel import Channel, ChannelClosed, ChannelGarbled, Ended, Exit, Start, encode, read
from suite.processes.jobs import Epoch, Probed, Timed, Traced
from suite.properties.answers import About, Described, Judgement


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


def test_what_was_encoded_before_is_sent_as_it_is() -> None:
    ours, theirs = socket.socketpair()
    line = encode({"a": 1})
    Channel(ours).send(line)
    assert theirs.recv(100) == line


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


@pytest.mark.parametrize(
    "message",
    [
        Start("g", 2, "/logs/g", ("--socket", "/s", "--group", "g")),
        Ended("g"),
        Ended("g", (Exit(1, -9), Exit(0, 1))),
        Ended("g", cause="ImportError: no module named torch"),
        Described(about=About(processes="one", oracle="self", unsynced=True), versions={"torch": "2.9"}),
        Judgement("wrong", suspects=("a bug", "another"), crashed=True),
        Probed(duration_ns=None),
        Epoch(accuracy=0.5, loss=None, train_s=1.0, train_samples=2, test_samples=3),
        Traced(1.0, "Name  Self CPU\n"),
    ],
)
def test_round_trip_through_json(message: Any) -> None:
    assert read(type(message), json.loads(encode(message))) == message


@pytest.mark.parametrize(
    ("kind", "content", "says"),
    [
        (Start, {"group": "g"}, "missing 3 required positional arguments: 'size', 'log_dir', and 'args'"),
        (Start, {"event": "ended", "group": "g"}, r"Start has no fields \['event'\]"),
        (Timed, {"duration_ns": "soon"}, "Timed.duration_ns is 'soon': expected int"),
        (Timed, {"duration_ns": None}, "Timed.duration_ns is 'None': expected int"),
        (Timed, [1], r"Timed is '\[1\]': expected Timed"),
        (Ended, {"group": "g", "failures": {"rank": 1}}, "Ended.failures is .*: expected tuple.*Exit"),
        (Ended, {"group": "g", "failures": [{"rank": "0" * 1000}]}, "Ended.failures.rank is '0{80}': expected int"),
        (About, {"processes": "many"}, r"About.processes is 'many': expected .*\['one', 'per-device'\]"),
        (
            Described,
            {"about": {"processes": "one"}, "versions": {"torch": 2}},
            r"versions\['torch'\] is '2': expected str",
        ),
    ],
)
def test_another_message_is_refused(kind: type[Any], content: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        read(kind, content)
