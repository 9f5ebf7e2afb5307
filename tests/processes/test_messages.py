"""What the processes tell one another comes back as it was sent."""

from __future__ import annotations

import json

import pytest

from suite.processes.messages import Ended, Exit, Start


@pytest.mark.parametrize(
    "message",
    [
        Start("g", 2, "/logs/g", ("--socket", "/s", "--group", "g")),
        Ended("g"),
        Ended("g", (Exit(1, -9, 4711), Exit(0, 1, 4710))),
        Ended("g", cause="ImportError: no module named torch"),
    ],
)
def test_round_trip_through_json(message: Start | Ended) -> None:
    assert type(message).from_json(json.loads(json.dumps(message.as_json()))) == message


def test_another_message_is_refused() -> None:
    with pytest.raises(KeyError):
        Start.from_json({"event": "ended"})
