"""What the launcher tells of its groups: one that cannot be started ends with its cause, and one is the last."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import psutil

from suite.checks.bench import Bench
from suite.processes.channel import Channel, Start
from tests.support import on_ranks

HERE = "tests.processes.test_launch"


def what_the_controller_hears(log_dir: str) -> dict[str, Any]:
    """Start a group as the launcher does, and return what arrives at the other end of its connection."""
    from suite import launch

    own, controllers = map(Channel, socket.socketpair())
    launch.run_group(own, Start("group", 1, log_dir, ()), threading.Lock(), {"group"})
    return controllers.receive(30)


def test_a_group_without_a_folder_for_its_outputs_ends_with_the_cause(bench: Bench, tmp_path: Path) -> None:
    """The disk may be full by then, or the folder of another user."""
    taken = tmp_path / "taken"
    taken.touch()
    [heard] = on_ranks.run(bench, f"{HERE}:what_the_controller_hears", [1], log_dir=str(taken))[1]
    cause = f"NotADirectoryError: log_dir: {taken} is a file"
    assert heard == {"event": "ended", "group": "group", "failures": [], "cause": cause}


def what_the_reaper_is_told(log_dir: str, away: bool) -> list[list[tuple[int, int]]]:
    """Run two groups that end one after the other, and return the signals that were sent by the end of each.

    Args:
        log_dir: an empty folder.
        away: whether the controller is on another host.
    """
    from suite import launch

    begun = {name: threading.Event() for name in ("first", "second")}
    over = {name: threading.Event() for name in begun}
    signals: list[tuple[int, int]] = []

    def agent(config: Any, _: str) -> Callable[..., None]:
        def waits(*_: str) -> None:
            begun[config.run_id].set()
            assert over[config.run_id].wait(30)

        return waits

    own, controllers = map(Channel, socket.socketpair())
    by_the_end_of_each = []
    with (
        mock.patch.object(launch, "elastic_launch", agent),
        mock.patch.object(os, "kill", lambda *sent: signals.append(sent)),
    ):
        serving = threading.Thread(target=launch.serve, args=(own, lambda start: start), kwargs={"away": away})
        serving.start()
        for name in begun:
            controllers.send(Start(name, 1, log_dir, ()))
        assert all(each.wait(30) for each in begun.values())
        for name in begun:
            over[name].set()
            assert controllers.receive(30)["group"] == name
            by_the_end_of_each.append(list(signals))
        controllers.close()
        serving.join(30)
    return by_the_end_of_each


def test_the_reaper_of_another_host_is_told_when_the_last_group_there_has_ended(bench: Bench, tmp_path: Path) -> None:
    """It ends what ranks have left then; a group that still runs may need that."""
    function = f"{HERE}:what_the_reaper_is_told"
    [elsewhere] = on_ranks.run(bench, function, [1], log_dir=str(tmp_path), away=True)[1]
    parent = psutil.Process(bench.group(1).pids[0]).ppid()
    assert elsewhere == [[], [[parent, signal.SIGUSR1]]]
    [here] = on_ranks.run(bench, function, [1], log_dir=str(tmp_path), away=False)[1]
    assert here == [[], []]
