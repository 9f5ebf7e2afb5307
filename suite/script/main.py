"""Run a script as `__main__` in the main thread, as `torchrun script.py` does."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import runpy
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import multiprocessing

from suite.processes.jobs import ScriptRun
from suite.script.patching import wrap

LONGEST_SAID = 300  # characters of what a script has printed
_LASTS = re.compile(r"-{0,2}[\w.-]*(epoch|step|iter|update)[\w.-]*", re.IGNORECASE)
_LASTS_NOT = re.compile(r"save|log|eval|val|warm|accum|every|per|freq|interval|lr|decay", re.IGNORECASE)


def _refuse_spawn(spawn: Any, fn: Any, args: Any = (), nprocs: int = 1, *more: Any, **others: Any) -> None:
    raise RuntimeError(
        f"the script starts {nprocs} processes by torch.multiprocessing.spawn, and here each of its ranks is started "
        f"already: call {getattr(fn, '__name__', 'the function')} with LOCAL_RANK from the environment, as under "
        "torchrun"
    )


def _refuse_ranks(start: Any, process: Any, args: Any, *more: Any, **others: Any) -> None:
    told = (others.get("env") or {}).get("LOCAL_RANK")
    if told not in (None, os.environ.get("LOCAL_RANK")):
        raise RuntimeError(
            f"the script starts a process as local rank {told}, and here each of its ranks is started already: use "
            "those of torchrun, by the framework's own setting or without its launcher"
        )
    start(process, args, *more, **others)


def _draw_seeds() -> None:
    """Give each rank random numbers of its own, as a process has that is not forked from one with torch loaded."""
    random.seed()
    numpy.random.seed()
    torch.default_generator.seed()


def run_as_main(script: ScriptRun) -> None:
    """Run a script until it ends, with its own arguments and environment.

    Whatever the script raises is raised, `SystemExit` included.

    Raises:
        FileNotFoundError: there is no such file.
    """
    wrap(multiprocessing, "spawn", _refuse_spawn)
    wrap(subprocess.Popen, "__init__", _refuse_ranks)
    _draw_seeds()
    os.environ |= script.environment
    os.chdir(script.directory)
    first, *rest = script.words
    if first == "-m":
        module, *arguments = rest
        sys.argv = [module, *arguments]
        sys.path.insert(0, script.script_from or script.directory)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return
    path = Path(script.script_from or script.directory) / first
    if not path.is_file():
        raise FileNotFoundError(f"there is no script {path}; check the path, or compare with a commit that has it")
    shown = first if script.script_from in ("", script.directory) else str(path)
    sys.argv = [shown, *rest]
    sys.path.insert(0, str(path.resolve().parent))
    runpy.run_path(shown, run_name="__main__")  # which makes it sys.argv[0]


def of_end(script: ScriptRun, how: str, made: int) -> str:
    """Return that a script has ended, after how many updates and, where there were none, with what it printed last."""
    if made:
        return f"the script {how} after {made} update(s)"
    said = _printed()
    printed = f", and it printed {said!r}" if said else ""
    return f"the script {how} and made no update{printed}: {so_far(script, 0)}"


def so_far(script: ScriptRun, steps: int, seen: str = "") -> str:
    """Return how far a script has come, in words."""
    what = script.update or "the step of a torch optimizer"
    if steps:
        return f"{what} was called {steps} time(s)"
    other = "" if script.update else "; if something else makes its updates, name that in its table, as update"
    return f"{seen}{what} was not called{other}"


def lasting(words: Sequence[str]) -> str:
    """Return the argument of a command that looks like how long it trains; "" for none."""
    for word, following in itertools.zip_longest(words, words[1:], fillvalue=""):
        name, _, value = word.partition("=")
        if _LASTS.fullmatch(name) and not _LASTS_NOT.search(name) and (value or following).isdigit():
            return word if value else f"{word} {following}"
    return ""


def _printed() -> str:
    """Return the end of what this process has printed, to stderr if nothing else; "" where that cannot be read."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
            if stat.S_ISREG(os.fstat(number).st_mode):
                said = Path(f"/proc/self/fd/{number}").read_text(errors="replace").strip()
                if said:
                    return said[-LONGEST_SAID:]
    return ""
