"""Keep one pool of workers for each interpreter of a run.

Candidate and base share a pool, and with it the template that their workers are forked from, where they share the
interpreter; workers of another commit import from its checkout. Questions that need no timing go to a helper worker of
that side, which ends before anything is timed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import reference
import suite
from suite.base.git import Checkout, commit_here, digests
from suite.plan.cells import Side
from suite.plan.config import Base
from suite.processes.channel import Value
from suite.processes.failure import WorkerFailure, repeated
from suite.processes.group import START_TIMEOUT_S, Group, dismiss
from suite.processes.hosts import Hosts, from_environment
from suite.processes.jobs import Apart
from suite.processes.pool import Pool
from suite.room.devices import Devices, torch_build


@dataclass(frozen=True)
class SidePool:
    """A pool as one side uses it, and what its workers import from where that is not what the pool was made with."""

    pool: Pool
    paths: tuple[str, ...] = ()

    def launch(self, name: str, size: int) -> Group:
        """Start one group of the side's workers, as `Pool.launch` does."""
        return self.pool.launch(name, size, self.paths)

    def group(self, name: str, size: int) -> Group:
        """Return a group of the side's workers, as `Pool.group` does."""
        return self.pool.group(name, size, self.paths)


class Sides:
    """The pools of a run, by side; a context manager that leaves no process and no folder behind.

    Attributes:
        pools: of the sides that were added.
        start_s: seconds from the first helper's launch to its first answer; 0 before.
    """

    def __init__(
        self,
        kind: str,
        root: Path,
        python_path: Sequence[Path] = (),
        hosts: Hosts | None = None,
        restarted: Callable[[str], None] | None = None,
        *,
        renewed: bool = True,
    ) -> None:
        """Open the candidate's pool.

        Args:
            kind: "cpu" or "cuda".
            root: the user's project; workers may import from it and from the working directory.
            python_path: more folders that they may import from.
            hosts: of a run on several.
            restarted, renewed: as `suite.processes.pool.Pool` has them. Questions are repeated here.
        """
        self._restarted, self._renewed = restarted, renewed
        self._kind, self._root, self._hosts = kind, root, hosts
        self._paths = [Path.cwd(), root, *python_path]
        self._closing = contextlib.ExitStack()
        self.pools: dict[Side, SidePool] = {}
        self.start_s = 0.0
        self._checkouts: dict[Side, Checkout] = {}
        self._by_python: dict[str, Pool] = {}
        self.pools["candidate"] = SidePool(self._pool(sys.executable))

    def __enter__(self) -> Sides:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        with self._closing:
            if error is None:
                self.dismiss()

    def add(self, side: Side, base: Base) -> tuple[str, ...]:
        """Make a base known, and return what its checkout lacks, one line each.

        Raises:
            CheckoutError: its commit cannot be checked out.
        """
        if base.commit is None:
            self.pools[side] = SidePool(self._pool(base.python))
            return ()
        checkout = self._closing.enter_context(Checkout(self._root, base.commit, base.label))
        pool = self._pool(base.python)
        paths = pool.paths(
            checkout.paths(self._paths, sys.path),
            checkout.reference(Path(reference.__path__[0])),
            checkout.python_path(os.environ.get("PYTHONPATH", "")),
        )
        self.pools[side] = SidePool(pool, paths)
        self._checkouts[side] = checkout
        return checkout.notes

    def locate(self, side: Side, spec: str) -> str:
        """Return a trainer or a model as a side's workers name it, as `Checkout.spec` does."""
        return self._checkouts[side].spec(spec) if side in self._checkouts else spec

    def directory(self, side: Side) -> str:
        """Return where a side's workers find what the candidate's find in the working directory.

        A CheckoutError says that it is outside of the repository of a commit, or that the commit does not have it.
        """
        if side not in self._checkouts:
            return str(Path.cwd())
        return str(self._checkouts[side].directory(Path.cwd()))

    def apart(self, side: Side) -> Apart | None:
        """Return what workers of another commit must not have imported (see `suite.rank.purity`), or None."""
        if side not in self._checkouts:
            return None
        checkout = self._checkouts[side]
        shared = (str(suite.__path__[0]), str(checkout.reference(Path(reference.__path__[0]))))
        return Apart(candidate_root=str(checkout.toplevel), checkout=str(checkout.folder), allowed=shared)

    def ask(
        self, side: Side, kind: type[Value], command: str, timeout_s: float = START_TIMEOUT_S, **arguments: object
    ) -> Value:
        """Return the answer of a side's helper, one worker on each host, to a command that measures nothing.

        Raises:
            WorkerFailure: the worker raised, died or did not answer; the next question gets another worker.
        """
        begun = time.monotonic()
        answer, *others = repeated(lambda: self._answers(side, kind, command, timeout_s, **arguments))
        for other in others:
            if other != answer:
                raise WorkerFailure(side, f"hosts answer {command!r} differently: {answer}, and elsewhere {other}")
        self.start_s = self.start_s or time.monotonic() - begun
        return answer

    def _answers(
        self, side: Side, kind: type[Value], command: str, timeout_s: float, **arguments: object
    ) -> list[Value]:
        pool, paths = self.pools[side].pool, self.pools[side].paths
        helper = pool.group("helper", pool.hosts, paths, spread=True)
        helper.start_timeout_s = min(START_TIMEOUT_S, timeout_s)
        return helper.request(kind, command, timeout_s, **arguments)

    def dismiss(self) -> None:
        """End all workers, so that no helper is idle on the machine while others are timed."""
        dismiss(self._by_python.values())

    def wait_for_templates(self) -> None:
        """Wait until no template loads any more."""
        for pool in self._by_python.values():
            pool.wait_for_templates()

    def renew(self) -> None:
        """Let the workers of the next session have another memory layout."""
        for pool in self._by_python.values():
            pool.renew()

    @property
    def forks(self) -> bool:
        """Whether workers are forked from a template."""
        return self.pools["candidate"].pool.forks

    @property
    def loading_s(self) -> float:
        """What loading templates takes of every session."""
        return max(pool.launchers.loading_s for pool in self._by_python.values())

    @property
    def next_load_s(self) -> float:
        """What the next session will wait for templates."""
        return max(pool.launchers.next_load_s for pool in self._by_python.values())

    def _pool(self, python: str) -> Pool:
        if python not in self._by_python:
            pool = Pool(
                kind=self._kind,
                python=python,
                import_paths=self._paths,
                templates="renewed" if self._renewed else "one",
                hosts=self._hosts,
            )
            pool.restarted = self._restarted
            self._closing.enter_context(pool)
            self._by_python[python] = pool
        return self._by_python[python]


def hosts_of(devices: Devices) -> Hosts | None:
    """Return what the controller knows of its hosts, as `from_environment` does; None for a run on one."""
    if devices.hosts == 1:
        return None
    here = Path.cwd()
    return from_environment(
        devices.hosts,
        devices.per_host,
        torch=torch_build().version,
        commit=commit_here(here),
        files=digests(here),
    )
