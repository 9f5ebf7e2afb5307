"""How NCCL connected this process to the others of its group, and what it warned of, as its log says (worker's side).

NCCL says how it connects when it sets up a communicator and when it first connects two ranks, and not while windows
are timed. Not covered: the algorithm and the protocol of a call, which NCCL says again at every call
(`NCCL_DEBUG_SUBSYS=TUNING`).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import MutableMapping
from pathlib import Path

from suite.processes.folder import FOLDER

DEBUG, SUBSYSTEMS, FILE = "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"
# Where torch's flight recorder writes what it has when NCCL fails: by default below ~/.cache. Older versions of torch
# have the second name.
TRACES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
MOST_BYTES = 1 << 22  # of a log; eight ranks with 32 channels write about 100 kB for each communicator
VIA = re.compile(r"-> \d+\[\d+\].* via ((?:P2P|SHM|NET)/\S+)")
WARNING = re.compile(r"^.* NCCL WARN .*$", re.MULTILINE)
MOST_WARNINGS = 5
CHANNELS = re.compile(r"(\d+) coll channels, \d+ collnet channels, (\d+) nvls channels")


def listen(environment: MutableMapping[str, str] = os.environ) -> None:
    """Have NCCL log its connections to a file of this process, unless the user has said what it logs, and where.

    What torch's flight recorder writes goes to the run's folder, too, and so does not outlive the run. NCCL and torch
    read these variables once, so this must precede the first communicator.
    """
    if FOLDER not in environment:
        return
    folder = Path(environment[FOLDER])
    if not {DEBUG, SUBSYSTEMS, FILE} & environment.keys():
        environment.update({DEBUG: "INFO", SUBSYSTEMS: "INIT", FILE: str(folder / f"nccl-{os.getpid()}.log")})
    if not environment.keys() & set(TRACES):
        environment.update(dict.fromkeys(TRACES, str(folder / "flight-recorder-")))


def logged(environment: MutableMapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return how NCCL has connected this process since `listen`, as `said` does; nothing where the user has the log."""
    with contextlib.suppress(OSError), _log(environment).open("rb") as lines:
        return said(lines.read(MOST_BYTES).decode(errors="replace"))
    return ()


def warnings(environment: MutableMapping[str, str] = os.environ) -> list[str]:
    """Return the last warnings in the log that NCCL keeps since `listen`, as NCCL writes them; none without one."""
    with contextlib.suppress(OSError), _log(environment).open("rb") as lines:
        lines.seek(max(0, lines.seek(0, os.SEEK_END) - MOST_BYTES))
        return WARNING.findall(lines.read(MOST_BYTES).decode(errors="replace"))[-MOST_WARNINGS:]
    return []


def _log(environment: MutableMapping[str, str]) -> Path:
    """Return where NCCL's log is; a folder, which cannot be opened, where the user has it elsewhere."""
    log, folder = Path(environment.get(FILE, "")), Path(environment.get(FOLDER, ""))
    return log if log.parent == folder else folder


def said(log: str) -> tuple[str, ...]:
    """Return the transports in NCCL's log, and the most channels of a communicator: "P2P/CUMEM", "16 channels".

    A transport is written as NCCL writes it, without the numbers of network cards: "NET/IB/GDRDMA". "16 NVLS channels"
    are those that reduce in the switch, where the hardware can.
    """
    kinds = {"/".join(part for part in via.split("/") if not part[:1].isdigit()) for via in VIA.findall(log)}
    most = [max(map(int, counts)) for counts in zip(*CHANNELS.findall(log), strict=True)]
    names = ("channels", "NVLS channels")
    return (*sorted(kinds), *(f"{count} {name}" for count, name in zip(most, names, strict=False) if count))
