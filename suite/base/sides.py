"""Where the sides of a comparison live: a pool of workers for each interpreter and each checkout.

Candidate and base share a pool where they share both. What can be told of a trainer without timing it is asked of a
clerk, a worker of that side which leaves before anything is timed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import reference
import suite
from suite.base.checkout import Checkout
from suite.plan.base import Base
from suite.plan.cells import Side
from suite.processes.channel import Message
from suite.processes.failure import WorkerFailure
from suite.processes.group import START_TIMEOUT_S, Group
from suite.processes.pool import Pool


class Clerk:
    """One worker for questions that measure nothing; replaced when a question ends it."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._group: Group | None = None
        self._count = 0
        self.start_s = 0.0  # from its launch to its first answer

    def ask(self, command: str, timeout_s: float = START_TIMEOUT_S, **arguments: object) -> Message:
        """The answer to one command.

        Raises:
            WorkerFailure: the worker raised, died or was silent; the next question gets another worker.
        """
        try:
            launched = self._group is None
            if self._group is None:
                self._count += 1
                self._group = self._pool.launch(f"clerk-{self._count}", 1)
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
        """Let the worker go."""
        if self._group is not None:
            self._group.close()
            self._group = None


class Sides:
    """The pools of a run, by side. Use it as a context manager: leaving it leaves no process and no folder behind."""

    def __init__(self, kind: str, root: Path) -> None:
        """Start the candidate's.

        Args:
            kind: "cpu" or "cuda".
            root: the user's project; workers may import from it and from the working directory.
        """
        self._kind, self._root = kind, root
        self._closing = contextlib.ExitStack()
        self.pools: dict[Side, Pool] = {}
        self._clerks: dict[Pool, Clerk] = {}
        self._checkouts: dict[Side, Checkout] = {}
        self.pools["candidate"] = self._open(Pool(kind=kind, import_paths=[Path.cwd(), root]))

    def __enter__(self) -> Sides:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    def add(self, side: Side, base: Base) -> tuple[str, ...]:
        """Make a base's workers possible.

        Returns:
            What its checkout lacks, a line each.

        Raises:
            CheckoutError: its commit cannot be checked out.
        """
        if base.commit is not None:
            self.pools[side] = self._open(self._apart(side, base, base.commit))
            return self._checkouts[side].notes
        if base.kind == "python":
            paths = [Path.cwd(), self._root]
            self.pools[side] = self._open(Pool(kind=self._kind, python=base.python, import_paths=paths))
        else:
            self.pools[side] = self.pools["candidate"]
        return ()

    def locate(self, side: Side, spec: str) -> str:
        """How a side's workers name a trainer or a model.

        Raises:
            CheckoutError: it is a file that the side's commit does not have.
        """
        return self._checkouts[side].spec(spec) if side in self._checkouts else spec

    def apart(self, side: Side) -> dict[str, Any] | None:
        """For a side of another commit, what its workers must not have imported (see `suite.rank.purity`)."""
        if side not in self._checkouts:
            return None
        checkout = self._checkouts[side]
        shared = [suite.__path__[0], checkout.reference(Path(reference.__path__[0])), checkout.folder]
        return {"candidate_root": str(checkout.toplevel), "allowed": list(map(str, shared))}

    def clerk(self, side: Side) -> Clerk:
        """The side's clerk."""
        return self._clerks[self.pools[side]]

    def dismiss_clerks(self) -> None:
        """Let the clerks go: nothing idle stays while others are timed."""
        for clerk in self._clerks.values():
            clerk.close()

    @property
    def folder(self) -> Path:
        """Where the run's datasets are kept for all workers, as long as the run lasts."""
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
        self._clerks[pool] = Clerk(pool)
        return pool
