"""Say in which collective a rank is, when the controller asks a silent one for its stacks (worker's side).

torch's flight recorder keeps the last calls of every process group, of NCCL and of gloo. In most hangs one rank has
not begun a call in which the others wait, and the numbers of their last calls say which. The main thread may be
blocked in C, where Python's own handlers never run: the signal wakes a thread. Not covered: an interpreter that is
frozen, of which there are only the stacks, and calls of no process group of torch.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from suite.processes.failure import ASKS, LAST_CALL, SO_FAR
from suite.rank import transport

# Of each backend, torch's function that returns what was recorded, and its arguments. From torch 2.15 on "nccl" is
# another implementation than before, which records by itself under a name of its own.
RECORDERS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("nccl", "_dump_nccl_trace_json", {}),
    ("nccl", "_dump_fr_trace_json", {"backend": "nccl"}),
    ("nccl", "_dump_fr_trace_json", {"backend": "nccl2"}),
    ("gloo", "_dump_fr_trace_json", {}),
)


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
        for line in (*far, *last_calls(), *transport.warnings()) if ASKS in signals else ():
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
