"""The hosts of a run, from its settings, its environment and the code that is checked out here."""

from __future__ import annotations

from pathlib import Path

from suite.base import code
from suite.processes import hosts
from suite.processes.hosts import Hosts
from suite.room.devices import Devices, torch_build


def hosts_of(devices: Devices) -> Hosts | None:
    """Return what the controller knows of its hosts; None for a run on one.

    Raises:
        ValueError: a variable of the environment is missing or wrong.
    """
    if devices.hosts == 1:
        return None
    here = Path.cwd()
    return hosts.from_environment(
        devices.hosts,
        devices.per_host,
        torch=torch_build().version,
        commit=code.commit_here(here),
        files=code.digests(here),
    )
