"""Keep one pool of workers for each interpreter and each checkout of a run.

Candidate and base share a pool where they share both. Questions that need no timing go to a helper worker of that side,
which ends before anything is timed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

import reference
import suite
from suite.base.checkout import Checkout
from suite.plan.base import Base
from suite.plan.cells import Side
from suite.processes.channel import Message
from suite.processes.failure import WorkerFailure
from suite.processes.group import START_TIMEOUT_S, Group
from suite.processes.jobs import Apart
from suite.processes.pool import Pool


class Helper:
    """One worker for questions that measure nothing; a new one replaces it after a failure.

    Attributes:
        start_s: seconds from the first worker's launch to its first answer.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._group: Group | None = None
        self._count = 0
        self.start_s = 0.0

    def ask(self, command: str, timeout_s: float = START_TIMEOUT_S, **arguments: object) -> Message:
        """Return the answer to one command.

        Raises:
            WorkerFailure: the worker raised, died or did not answer; the next question gets another worker.
        """
        try:
            launched = self._group is None
            if self._group is None:
                self._count += 1
                self._group = self._pool.launch(f"helper-{self._count}", 1)
            begun = time.monotonic()
            self._group.wait_connected()
            [answer] = self._group.request(command, timeout_s, **arguments)
            if launched:
                self.start_s = time.monotonic() - begun
        except WorkerFailure:
            self._group = None
            raise
        return answer

    def close(self) -> None:
        """End the worker."""
        if self._group is not None:
            self._group.close()
            self._group = None


class Sides:
    """The pools of a run, by side; a context manager that leaves no process and no folder behind."""

    def __init__(self, kind: str, root: Path) -> None:
        """Open the candidate's pool.

        Args:
            kind: "cpu" or "cuda".
            root: the user's project; workers may import from it and from the working directory.
        """
        self._kind, self._root = kind, root
        self._closing = contextlib.ExitStack()
        self.pools: dict[Side, Pool] = {}
        self._helpers: dict[Pool, Helper] = {}
        self._checkouts: dict[Side, Checkout] = {}
        self.pools["candidate"] = self._open(Pool(kind=kind, import_paths=[Path.cwd(), root]))

    def __enter__(self) -> Sides:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def add(self, side: Side, base: Base) -> tuple[str, ...]:
        """Open the pool of a base, and return what its checkout lacks, one line each.

        Raises:
            CheckoutError: its commit cannot be checked out.
        """
        if base.commit is not None:
            self.pools[side] = self._open(self._apart(side, base, base.commit))
            return self._checkouts[side].notes
        self.pools[side] = self.pools["candidate"]
        if base.kind == "python":
            paths = [Path.cwd(), self._root]
            self.pools[side] = self._open(Pool(kind=self._kind, python=base.python, import_paths=paths))
        return ()

    def locate(self, side: Side, spec: str) -> str:
        """Return a trainer or a model as a side's workers name it.

        Raises:
            CheckoutError: it is a file that the side's commit does not have.
        """
        return self._checkouts[side].spec(spec) if side in self._checkouts else spec

    def apart(self, side: Side) -> Apart | None:
        """Return what workers of another commit must not have imported (see `suite.rank.purity`), or None."""
        if side not in self._checkouts:
            return None
        checkout = self._checkouts[side]
        shared = [suite.__path__[0], checkout.reference(Path(reference.__path__[0])), checkout.folder]
        return Apart(candidate_root=str(checkout.toplevel), allowed=tuple(map(str, shared)))

    def helper(self, side: Side) -> Helper:
        """Return the helper of a side."""
        return self._helpers[self.pools[side]]

    def dismiss_helpers(self) -> None:
        """End all helpers, so that none is idle on the machine while others are timed."""
        for helper in self._helpers.values():
            helper.close()

    @property
    def folder(self) -> Path:
        """The folder of the run's datasets, for all workers."""
        return self.pools["candidate"].folder

    def _apart(self, side: Side, base: Base, commit: str) -> Pool:
        checkout = self._closing.enter_context(Checkout(self._root, commit, base.label))
        pool = Pool(
            kind=self._kind,
            python=base.python,
            import_paths=checkout.paths([Path.cwd(), self._root], sys.path),
            reference_path=checkout.reference(Path(reference.__path__[0])),
            python_path=checkout.python_path(os.environ.get("PYTHONPATH", "")),
        )
        self._checkouts[side] = checkout
        return pool

    def _open(self, pool: Pool) -> Pool:
        self._closing.enter_context(pool)
        self._helpers[pool] = Helper(pool)
        return pool
