"""Run a script as `__main__` in the main thread, as `torchrun script.py` does."""

from __future__ import annotations

import functools
import os
import random
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy
import torch
from torch import multiprocessing
from torch.multiprocessing.spawn import spawn


class Script(Protocol):
    """A training script as one rank runs it; `suite.processes.jobs.ScriptRun` says what the parts are."""

    @property
    def words(self) -> Sequence[str]:
        """Of its command."""

    @property
    def directory(self) -> str:
        """The working directory."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables that are set for it."""

    @property
    def update(self) -> str:
        """What makes an update; "" for torch's optimizers."""

    @property
    def exchanges(self) -> bool:
        """Whether its ranks exchange anything but objects."""

    @property
    def script_from(self) -> str:
        """The folder that a relative path of the script starts from."""


@functools.wraps(spawn)
def _refuse_spawn(fn: Any, args: Any = (), nprocs: int = 1, *more: Any, **others: Any) -> None:
    raise RuntimeError(
        f"the script starts {nprocs} processes by torch.multiprocessing.spawn, and here each of its ranks is started "
        f"already: call {getattr(fn, '__name__', 'the function')} with LOCAL_RANK from the environment, as under "
        "torchrun"
    )


def _draw_seeds() -> None:
    """Give each rank random numbers of its own, as a process has that is not forked from one with torch loaded."""
    random.seed()
    numpy.random.seed()
    torch.default_generator.seed()


def run_as_main(script: Script) -> None:
    """Run a script until it ends, with its own arguments and environment.

    Whatever the script raises is raised, `SystemExit` included.

    Raises:
        FileNotFoundError: there is no such file.
    """
    vars(multiprocessing)["spawn"] = _refuse_spawn
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
