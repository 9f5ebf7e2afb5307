"""How the processes of a run tell the campaign where they are, and hear what to do: files in one folder.

The folder's path is in the environment, which every process of a run inherits. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

FOLDER = "FAULTS_SIGNS"
STEPPED, HELD, RELEASED, ARMED, FIRED = "stepped", "held", "released", "armed", "fired"
HELD_S = 20.0  # a held process goes on after this long, whatever the campaign does
POLL_S = 0.005


def folder() -> Path | None:
    """Return the folder of this run's signs; None outside of a run with a fault."""
    return Path(os.environ[FOLDER]) if FOLDER in os.environ else None


def show(sign: str) -> bool:
    """Make a sign, and say whether this process was the first to make it."""
    here = folder()
    if here is None:
        return False
    with contextlib.suppress(FileExistsError):
        os.close(os.open(here / sign, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        return True
    return False


def shown(sign: str) -> bool:
    """Say whether a sign was made."""
    here = folder()
    return here is not None and os.path.exists(here / sign)


def hold() -> None:
    """Tell the campaign that this process waits, and wait until it lets it go on."""
    deadline = time.monotonic() + HELD_S
    if show(HELD):
        while not shown(RELEASED) and time.monotonic() < deadline:
            time.sleep(POLL_S)
