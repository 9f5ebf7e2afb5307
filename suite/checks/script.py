"""Checks a training script: records it on k ranks, replays it on one, and has a worker judge (controller's side)."""

from __future__ import annotations

import itertools
import re
import shlex
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from suite.checks import failure_text
from suite.plan.config import Config
from suite.plan.scripts import Script, kept_as_they_are
from suite.processes.channel import read
from suite.processes.failure import WorkerFailure
from suite.processes.jobs import OUT, ScriptRun, WatchedScript
from suite.processes.pool import Pool
from suite.room.devices import Devices
from suite.script.items import ITEMS, Verdict

MOST_RANKS = 3
RECORD_S = 300.0  # for a few updates, the script's own start included: it loads its data and model
SLOWER = 4.0  # one device may take so many times k longer, on all rows
LEAST_S = 60.0
WHOLE = ("unions", "singles")  # replays of what all ranks drew, by as many draws as one rank or as all
REMEDY = "see that it trains under torchrun, on so many ranks and with these arguments"
# Some scripts leave where there is no GPU, without an error.
OF_CUDA = re.compile(r"CUDA|NVIDIA|NCCL|nccl|\bcuda\b|GPU|accelerator|ended and made")
AS_CUDA = "the script asks for CUDA, and there is none: its cuda was the CPU, and its nccl gloo"
IN_ITS_OWN = "it was compared in its own precision, since it does not run in float64 ({why})"
FEW_GPUS = (
    "{k} ranks need a GPU each, and there are {here}; --scaling-devices=cpu checks the script on CPU workers, which "
    "show it the CPU as its GPU where it asks for CUDA"
)
DRAWS = (
    "on one device the script draws {one} time(s) an update, and each of {k} ranks {each}: give the command a "
    "{{batch}}, and let the number of accumulated passes be the same, or divided by the number of ranks"
)


@dataclass(frozen=True)
class Checked:
    """What is known of a script."""

    verdicts: Mapping[str, Verdict] = field(default_factory=dict)  # by item; none where it could not be run
    failure: str = ""  # why it could not be run
    notes: tuple[str, ...] = ()  # about the whole


def world_size(config: Config) -> int:
    """Return on how many ranks a script is recorded: the most of the settings up to `MOST_RANKS`, and 2 at least."""
    return max((2, *(size for size in config.world_sizes if size <= MOST_RANKS)))


def check(pool: Pool, devices: Devices, script: Script, k: int, root: Path) -> Checked:
    """Record a script on k ranks, replay it on one device, and judge; the user's project at `root` stays as it is.

    CPU workers stand for any number of devices.
    """
    if devices.kind != "cpu" and devices.distinct < k:
        return Checked(dict.fromkeys(ITEMS, Verdict(unchecked=FEW_GPUS.format(k=k, here=devices.distinct))))
    with tempfile.TemporaryDirectory(dir=pool.folder, prefix="script-") as folder:
        run = _Run(pool, devices, script, k, root, Path(folder), script.as_cuda and devices.kind == "cpu", RECORD_S)
        try:
            return _checked(run)
        except WorkerFailure as failure:
            failure.group, failure.cause = f"script {script.name!r}", f"{failure.cause}; {REMEDY}"
            return Checked(failure=str(failure))


def _checked(run: _Run) -> Checked:
    begun = time.monotonic()
    run, told, notes = _recorded(run)
    run = replace(run, until_s=max(LEAST_S, SLOWER * run.k * (time.monotonic() - begun)))
    notes += filter(None, told[0]["notes"])
    replay, why = _replayed(run, told[0])
    judged = run.judge(replay, 0, why)
    if judged["gradient"].finding and not judged["exchange"].finding:  # which explains it
        with suppress(WorkerFailure):  # they only explain
            for rank in range(run.k):
                run.watch(1, str(rank))
            judged = run.judge(replay, run.k, why)
    return Checked(judged, notes=tuple(notes))


def _recorded(run: _Run) -> tuple[_Run, list[dict[str, Any]], list[str]]:
    """Record a script, if necessary with the CPU as its GPU or in its own precision.

    Returns:
        How it was run, what each rank says of its record, and notes.

    Raises:
        WorkerFailure: it does not run so either; the first failure counts, with what the last one says.
    """
    notes, first = list[str](), None
    while True:
        try:
            return run, run.watch(run.k), notes
        except WorkerFailure as failure:
            said = failure.cause.partition(": ")[2]
            if first is not None and said not in first.cause:
                first.cause = f"{first.cause} ({notes[-1]}: {said})"
            first = first or failure
            if run.devices.kind == "cpu" and not run.as_cuda and OF_CUDA.search(failure.cause):
                run = replace(run, as_cuda=True)
                notes.append(AS_CUDA)
            elif run.double and failure.raised_in_python:
                run = replace(run, double=False)
                notes.append(IN_ITS_OWN.format(why=said.splitlines()[0]))
            else:
                raise first from None


def _replayed(run: _Run, recorded: Mapping[str, Any]) -> tuple[str, str]:
    """Replay a script on one device; return which replay counts, or "" and why none does."""
    each = max(recorded["draws"]) or max(recorded["passes"])
    for mode in WHOLE:
        try:
            [told] = run.watch(1, mode)
        except WorkerFailure as failure:
            return "", f"on one device the script does not run: {failure.cause}"
        one = max(told["draws"]) or max(told["passes"])
        if one == (each if mode == "unions" else run.k * each):
            return mode, ""
        if one != run.k * each:
            break
    return "", DRAWS.format(one=one, k=run.k, each=each)


@dataclass(frozen=True)
class _Run:
    pool: Pool
    devices: Devices
    script: Script
    k: int
    root: Path
    folder: Path
    as_cuda: bool
    until_s: float
    double: bool = True
    numbers: Iterator[int] = field(default_factory=itertools.count)  # of its groups, whose folders bear their names

    def watch(self, size: int, replay: str = "") -> list[dict[str, Any]]:
        """Run the script on so many ranks; return what each says of its record.

        Raises:
            WorkerFailure: a rank raised, died, was silent, or made no update.
        """
        names, backend = self.devices.spread(size)
        script = self.script
        for stale in () if replay else self.folder.glob("rank-*"):  # of a try that failed
            stale.unlink()
        run = ScriptRun(
            words=tuple(self._arguments(replay)),
            directory=str(Path.cwd()),
            environment=dict(script.environment),
            update=script.update or "",
            isolated=kept_as_they_are(self.root),
        )
        job = WatchedScript(
            processes="per-device",
            devices=names,
            backend=backend,
            script=run,
            folder=str(self.folder),
            double=self.double,
            as_cuda=self.as_cuda,
            replay=replay,
            ranks=self.k if replay else 0,
        )
        group = self.pool.launch(f"{self.folder.name}-{next(self.numbers)}", size, spread=True)
        try:
            return group.request(dict, "watch_script", self.until_s, arm=job)
        finally:
            if group.alive:
                group.close()

    def judge(self, replay: str, parts: int, why: str) -> dict[str, Verdict]:
        """Have a worker judge the records."""
        group = self.pool.group("script-judge", 1)
        [answer] = group.request(
            dict, "judge_script", folder=str(self.folder), ranks=self.k, replay=replay, parts=parts, why=why
        )
        return {item: read(Verdict, verdict) for item, verdict in answer.items()}

    def _arguments(self, replay: str) -> list[str]:
        """Return the command's words: a rank's share of the batch, or in a replay that of all ranks."""
        batch = self.script.batch or 1
        together = batch * self.k if batch % self.k else batch
        size, each = (1 if replay else self.k), (together if replay in WHOLE else together // self.k)
        return self.script.model_copy(update={"batch": each}).arguments("weak", size, OUT)


def explain(config: Config, script: Script, item: str, verdict: Verdict) -> str:
    """Return a failure as it is shown."""
    finding = f"script {script.name!r}, {item}: {verdict.finding}"
    return failure_text(finding, verdict.looks_like, [], again(config, script, item))


def again(config: Config, script: Script, item: str) -> str:
    """Return the command that runs one item again."""
    told = list(config.repeat)
    if "-k" in told:
        at = told.index("-k")
        del told[at : at + 2]
    return shlex.join(["pytest", *told, "-k", f"{script.name}-{item}]"])
