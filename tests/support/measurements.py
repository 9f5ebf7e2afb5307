"""Runs made without any process: `Observations` whose windows take the seconds that a test chooses.

Two CPU devices, LeNet on 256 samples in batches of 256, so that an epoch at strong scaling is one step and seconds a
step are seconds an epoch.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from suite.plan import cells
from suite.plan.cells import Arm, Cell, Side
from suite.plan.config import Base, Budget, Config
from suite.plan.workloads import BUILT_IN, Recipe
from suite.processes.jobs import Job, Place, Prepared
from suite.records.baselines import AcceptedCell, AcceptedRun, Baseline
from suite.records.calibration import Calibration, Entry, Spread
from suite.records.record import Accuracy, Environment, Machine, Missing, Window
from suite.room.conditions import Conditions
from suite.room.devices import Devices
from suite.run.observations import Facts, Observations, Session
from suite.run.plan import Plan
from suite.run.preparing import job_of

STEPS = 10
BLOCKS = 4
SESSION_S = 10.0
WOBBLE = 0.001  # candidates are this much slower in every other session, and faster in the others
LENET = BUILT_IN["lenet"]
FED = LENET.model_copy(update={"loader": "book"})  # the same through worker processes
SEED_PAIRS = Recipe().seed_pairs
VERSIONS = {"python": "3.12.1", "torch": "2.15.0"}
COMMIT = "1" * 40
AGAINST = Base("ref", "v1.0 (1111111)", commit=COMMIT)
MACHINE = Machine(
    key="cpu-2xtest-00000000",
    host="abcdef",
    cpu_model="Test CPU",
    cpu_cores=2,
    memory_bytes=2**30,
    system="Linux 6",
)
QUIET = Conditions(elapsed_s=1.0, cores=2, steal=0.0, foreign=0.0, resolution=0.0, load=1.0)
BUSY = QUIET.model_copy(update={"foreign": 1.0})


def cell(world_size: int = 2, trainer: str = "ddp", mode: str = "strong") -> Cell:
    return Cell(trainer, LENET.name, mode, world_size)


def why_missing(missing: Missing | None) -> str:
    """Return why a figure is missing; "" where it is not."""
    return "" if missing is None else missing.why


def place(cell: Cell) -> dict[str, Any]:
    """Return a cell's place in the matrix, as records keep it."""
    return {name: getattr(cell, name) for name in ("trainer", "workload", "mode", "world_size")}


def arm(world_size: int = 2, trainer: str = "ddp", side: Side = "candidate", mode: str = "strong") -> Arm:
    return cells.arm(side, trainer, cell(world_size, trainer, mode))


def settings(**changes: Any) -> Config:
    """Return the default settings on two cores, in two minutes; `changes` replace fields, or the budget's."""
    budget = Budget(changes.pop("budget_s", 120.0), fixed=changes.pop("fixed", False))
    chosen: dict[str, Any] = {
        "root": Path(),
        "devices": Devices("cpu", ("cpu", "cpu"), (0, 1)),
        "world_sizes": (1, 2),
        "trainers": ("ddp",),
        "checked": (),
        "checked_workloads": (),
        "workloads": (LENET,),
        "modes": ("strong", "weak"),
        "data_root": Path("data"),
        "tolerance": 0.05,
        "budget": budget,
        "against": None,
        "accept": None,
        "require_devices": 0,
        "profile": "quick",
        "inconclusive": "warn",
        "require_baseline": False,
        "report_dir": Path("reports"),
    }
    return Config(**{**chosen, **changes})


def job(arm: Arm) -> Job:
    """Return what an arm's workers would be told."""
    place = Place(processes="one", devices=("cpu",) * arm.world_size, backend="gloo")
    dataset = Prepared(name="synthetic", folder="", train_samples=256, test_samples=100)
    return job_of(arm, LENET, place, trainer=arm.trainer, seed=1, dataset=dataset)


def run_of(*measured: Cell, config: Config | None = None, **changes: Any) -> Observations:
    """Return a run of these cells before its first session; `changes` replace fields of its plan or observations."""
    planned: dict[str, Any] = {
        "config": config or settings(),
        "cells": measured,
        "machine": MACHINE,
        "commit": COMMIT,
        "dirty": False,
        "baseline": Baseline(machine_key=MACHINE.key),
        "seed": 1,
    }
    seen: dict[str, Any] = {
        "planned": 4,
        "versions": Facts({"candidate": VERSIONS}),
        "datasets": Facts({LENET.dataset: job(arm()).dataset}),
    }
    names = {field.name for field in fields(Plan)}
    planned |= {name: value for name, value in changes.items() if name in names}
    seen |= {name: value for name, value in changes.items() if name not in names}
    return Observations(Plan(**planned), **seen)


def add_session(
    run: Observations, blocks: Sequence[Sequence[tuple[Arm, float]]], busy: Collection[int] = ()
) -> Session:
    """Append a session, and its arms to what the run knows.

    Args:
        run: without or with other sessions.
        blocks: of each, an arm and its seconds a step, in the order of timing.
        busy: numbers of the blocks in which another process used a core.
    """
    session = Session(len(run.sessions), "2026-01-01T00:00:00+00:00", SESSION_S)
    for number, block in enumerate(blocks):
        for timed, step_s in block:
            run.steps[timed] = STEPS
            run.jobs[timed] = job(timed)
            duration_ns = (round(step_s * STEPS * 1e9),) * timed.world_size
            session.windows.append(Window(arm=timed.id, block=number, duration_ns=duration_ns))
        session.conditions.append(BUSY if number in busy else QUIET)
    run.sessions.append(session)
    return session


def forth_and_back(step_s: Mapping[Arm, float]) -> list[tuple[Arm, float]]:
    """Return a block of arms with their seconds a step: forwards, then backwards."""
    return [*step_s.items(), *reversed(step_s.items())]


def add_sessions(run: Observations, step_s: Mapping[Arm, float], count: int = 4) -> None:
    """Append sessions in which only candidates move, by `WOBBLE` for every device."""
    for number in range(len(run.sessions), len(run.sessions) + count):
        sign = (-1) ** number
        moved = {a: s * math.exp(sign * WOBBLE * a.world_size * (a.side == "candidate")) for a, s in step_s.items()}
        add_session(run, [forth_and_back(moved)] * BLOCKS)


def accepted_run(
    step_s: Mapping[Cell, float], number: int = 0, commit: str = COMMIT, run_id: str = "", **changes: Any
) -> AcceptedRun:
    """Return an accepted run of four sessions, named `run-<number>` or `run_id`; `changes` are its environment's."""
    environment = {"versions": VERSIONS, "commit": commit, "dirty": False, **changes}
    figures = {"workload_hash": LENET.hash, "dataset": "synthetic", "sessions": 4}
    kept = tuple(
        AcceptedCell.model_validate({**place(measured), **figures, "sec_per_epoch": seconds})
        for measured, seconds in step_s.items()
    )
    return AcceptedRun(
        run_id=run_id or f"run-{number}",
        host=MACHINE.host,
        system=MACHINE.system,
        environment=Environment.model_validate(environment),
        cells=kept,
    )


def baseline(*runs: AcceptedRun) -> Baseline:
    """Return the accepted baseline of these runs."""
    return Baseline(machine_key=MACHINE.key, runs=runs)


def calibrated(session_sd: float, *measured: Cell, sessions: int = 12, host: str = MACHINE.host) -> Calibration:
    """Return a calibration whose sessions alternate around zero with this standard deviation, for these cells."""
    deviation = session_sd * math.sqrt((sessions - 1) / sessions)
    locations = tuple(deviation * (-1) ** number for number in range(sessions))
    spread = Spread(
        locations=locations,
        errors=(0.0,) * sessions,
        rounds=(8,) * sessions,
    )
    entries = tuple(
        Entry.model_validate({**place(each), "workload_hash": LENET.hash, "spread": spread}) for each in measured
    )
    environment = Environment(versions=VERSIONS, commit=COMMIT, dirty=False)
    return Calibration(
        machine_key=MACHINE.key,
        host=host,
        created_utc=datetime.now(UTC),
        environment=environment,
        entries=entries,
    )


def trained(accuracy: float, world_size: int, seed: int = 1, trainer: str = "ddp", mode: str = "strong") -> Accuracy:
    """Return a net that was trained to this accuracy."""
    return Accuracy(
        trainer=trainer,
        workload=LENET.name,
        mode=mode,
        world_size=world_size,
        seed=seed,
        dataset="digits",
        train_samples=1437,
        test_samples=10_000,
        per_epoch=(0.1, accuracy),
        train_s=(1.0, 1.0),
    )
