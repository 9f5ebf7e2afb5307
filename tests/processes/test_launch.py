"""A group that torch's agent cannot start ends with its cause, instead of being waited for."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

from suite.checks.bench import Bench
from suite.processes.channel import Channel
from suite.processes.messages import Start
from tests.support import on_ranks

HERE = "tests.processes.test_launch"


def what_the_controller_hears(log_dir: str) -> dict[str, Any]:
    """Start a group as the launcher does, and return what arrives at the other end of its connection."""
    from suite import launch

    own, controllers = map(Channel, socket.socketpair())
    launch.run_group(own, Start("group", 1, log_dir, ()), threading.Lock())
    return controllers.receive(30)


def test_a_group_without_a_folder_for_its_outputs_ends_with_the_cause(bench: Bench, tmp_path: Path) -> None:
    """The disk may be full by then, or the folder of another user."""
    taken = tmp_path / "taken"
    taken.touch()
    [heard] = on_ranks.run(bench, f"{HERE}:what_the_controller_hears", [1], log_dir=str(taken))[1]
    cause = f"NotADirectoryError: log_dir: {taken} is a file"
    assert heard == {"event": "ended", "group": "group", "failures": [], "cause": cause}
