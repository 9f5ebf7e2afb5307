"""What torch's flight recorder and NCCL's log say of this rank's exchanges (worker's side).

When the controller asks a silent rank for its stacks, it also says in which collective it is. torch's flight recorder
keeps the last calls of every process group, of NCCL and of gloo. In most hangs one rank has not begun a call in which
the others wait, and the numbers of their last calls say which. The main thread may be blocked in C, where Python's own
handlers never run: the signal wakes a thread. Not covered: an interpreter that is frozen, of which there are only the
stacks, and calls of no process group of torch.

NCCL says how it connects when it sets up a communicator and when it first connects two ranks, and not while windows
are timed. Not covered: the algorithm and the protocol of a call, which NCCL says again at every call
(`NCCL_DEBUG_SUBSYS=TUNING`).
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

from suite.processes.failure import ASKS, LAST_CALL, SO_FAR
from suite.processes.folder import FOLDER

# Of each backend, torch's function that returns what was recorded, and its arguments. From torch 2.15 on "nccl" is
# another implementation than before, which records by itself under a name of its own.
RECORDERS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("nccl", "_dump_nccl_trace_json", {}),
    ("nccl", "_dump_fr_trace_json", {"backend": "nccl"}),
    ("nccl", "_dump_fr_trace_json", {"backend": "nccl2"}),
    ("gloo", "_dump_fr_trace_json", {}),
)

DEBUG, SUBSYSTEMS, FILE = "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"
# Where torch's flight recorder writes what it has when NCCL fails: by default below ~/.cache. Older versions of torch
# have the second name.
TRACES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
MOST_BYTES = 1 << 22  # of a log; eight ranks with 32 channels write about 100 kB for each communicator
VIA = re.compile(r"-> \d+\[\d+\].* via ((?:P2P|SHM|NET)/\S+)")
WARNING = re.compile(r"^.* NCCL WARN .*$", re.MULTILINE)
MOST_WARNINGS = 5
CHANNELS = re.compile(r"(\d+) coll channels, \d+ collnet channels, (\d+) nvls channels")

_signals = -1  # where the numbers of signals arrive, until a thread reads them


def listen() -> None:
    """Answer `ASKS` on stderr from now on with every thread's stack."""
    global _signals
    _signals, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.signal(ASKS, lambda *_: None)  # so that Python notes the signal and writes its number to the pipe
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    faulthandler.register(ASKS, chain=True)


def start(so_far: Callable[[], str] | None = None) -> None:
    """Answer also with this rank's last collective and NCCL's warnings, in a thread of their own.

    Args:
        so_far: returns how far a script has come, where the rank runs one.
    """
    global _signals
    if _signals >= 0:
        threading.Thread(target=_answer, args=(_signals, so_far), name="recorder", daemon=True).start()
        _signals = -1


def _answer(reading: int, so_far: Callable[[], str] | None) -> None:
    while signals := os.read(reading, 64):  # those of the user's own code, too
        far = [SO_FAR.format(what=so_far())] if so_far is not None else []
        for line in (*far, *last_calls(), *warnings()) if ASKS in signals else ():
            print(line, file=sys.stderr, flush=True)


def last_calls() -> list[str]:
    """Return a line on the last collective of each process group that has any; none where torch has recorded nothing.

    A line is `suite.processes.failure.LAST_CALL`, with the group, the number of the call in it, and its operands.
    """
    c10d: Any = sys.modules.get("torch._C._distributed_c10d")  # torch has no public way to its recorder
    last: dict[str, dict[str, Any]] = {}
    for backend, dump, which in RECORDERS if c10d is not None else ():
        with contextlib.suppress(Exception):  # of another version of torch, or of a group that is being set up
            dumped = getattr(c10d, dump)(includeCollectives=True, onlyActive=False, **which)
            for entry in json.loads(dumped).get("entries", ()):
                last[f"{entry['process_group'][0]} ({backend})"] = entry
    return [
        LAST_CALL.format(group=group, number=entry["collective_seq_id"], what=_words(entry))
        for group, entry in last.items()
    ]


def _words(entry: dict[str, Any]) -> str:
    """Return the call and its operands: 'all_reduce Float [[10, 5]]'."""
    name = str(entry["profiling_name"]).partition(":")[2]
    return f"{name} {' '.join(sorted(set(entry['input_dtypes'])))} {entry['input_sizes']}"


def log_nccl(environment: MutableMapping[str, str] = os.environ) -> None:
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
    """Return how NCCL has connected this process, as `said` does; nothing where the user has the log elsewhere."""
    with contextlib.suppress(OSError), _log(environment).open("rb") as lines:
        return said(lines.read(MOST_BYTES).decode(errors="replace"))
    return ()


def warnings(environment: MutableMapping[str, str] = os.environ) -> list[str]:
    """Return the last warnings in the log that NCCL keeps, as NCCL writes them; none without one."""
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
