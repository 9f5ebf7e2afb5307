"""What the processes tell one another comes back as it was sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from suite.processes.answers import Epoch, Probed, Timed, Traced
from suite.processes.channel import encode
from suite.processes.messages import Ended, Exit, Start, read
from suite.properties.answers import About, Described, Judgement


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
