"""Starts ranks of scripts as they are, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from suite.checks.bench import Bench
from suite.processes.group import Group
from suite.processes.jobs import Job, ModelSpec, Parameters, Prepared, Probed, ScriptRun, SetUp, Timed

START_S = 60.0


class Ranks:
    """The ranks of one script."""

    def __init__(self, group: Group, words: list[str], folder: Path, world_size: int, **how: Any) -> None:
        self.group, self._folder, self._world_size = group, folder, world_size
        self._words, self._how = words, how

    def set_up(self, **environment: str) -> list[SetUp]:
        """Start the script."""
        job = Job(
            processes="per-device",
            devices=("cpu",) * self._world_size,
            backend="gloo",
            trainer="script",
            world_size=self._world_size,
            global_batch=8,
            lr=0.0,
            seed=0,
            workload=ModelSpec(
                model="script", loader="resident", precision="float32", memory_format="contiguous", compile=False
            ),
            dataset=Prepared(name="script", folder="", train_samples=8, test_samples=0),
            script=ScriptRun(
                words=tuple(self._words),
                directory=str(self._folder),
                environment=environment,
                isolated=(str(self._folder),),
                **self._how,
            ),
        )
        return self.group.request(SetUp, "setup", START_S, name="arm", arm=job)

    def window(self, steps: int, lead_in: int = 0) -> list[Timed]:
        """Time so many updates."""
        return self.group.request(Timed, "window", START_S, name="arm", steps=steps, lead_in=lead_in)

    def parameters(self) -> list[Parameters]:
        """Ask what is asked after windows."""
        return self.group.request(Parameters, "parameters", START_S, name="arm")

    def probe(self, steps: int, *, resident: bool = True, alone: bool = False) -> list[Probed]:
        """Time so many updates of a variant."""
        variant = {"resident": resident, "alone": alone, "share": 1, "exchange": True, "lead_in": 1}
        return self.group.request(Probed, "probe", START_S, name="arm", steps=steps, variant=variant)


@pytest.fixture
def ranks(bench: Bench, tmp_path: Path) -> Iterator[Any]:
    """Return what starts ranks of a script with these words, in a folder of its own."""
    started: list[Group] = []

    def start(*words: str, world_size: int = 1, **how: Any) -> Ranks:
        started.append(bench.pool.launch(f"script-{tmp_path.name}-{len(started)}", world_size))
        return Ranks(started[-1], list(words), tmp_path, world_size, **how)

    yield start
    for group in started:
        group.close()
