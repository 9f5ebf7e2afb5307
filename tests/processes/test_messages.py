"""What the processes tell one another comes back as it was sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from suite.processes.messages import Ended, Exit, Start, as_json, read


@pytest.mark.parametrize(
    "message",
    [
        Start("g", 2, "/logs/g", ("--socket", "/s", "--group", "g")),
        Ended("g"),
        Ended("g", (Exit(1, -9, 4711), Exit(0, 1, 4710))),
        Ended("g", cause="ImportError: no module named torch"),
    ],
)
def test_round_trip_through_json(message: Any) -> None:
    assert read(type(message), json.loads(json.dumps(as_json(message)))) == message


@pytest.mark.parametrize("message", [{"group": "g"}, {"event": "ended", "group": "g", "more": 1}])
def test_another_message_is_refused(message: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        read(Start, message)
