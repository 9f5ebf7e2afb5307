"""The user's settings as one frozen value, made by `suite.options`, and the base of a run."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from suite.plan.floors import Floor
from suite.plan.scripts import Script
from suite.plan.workloads import Workload
from suite.room.devices import Devices

BUDGET_S = {"quick": 180.0, "full": 1800.0}
MIN_SESSIONS = 4


@dataclass(frozen=True)
class Base:
    """What the candidate is compared with in the same run.

    Attributes:
        kind: what differs from the candidate; nothing for "self".
        label: for people, such as "ddp", "python3.12 (Python 3.12.3)" or "v1.0 (3f2a91c)".
        trainer: a table name, module:Class or path.py:Class; None is each cell's own.
        python: path of the interpreter of the base's workers.
        commit: full object name; the user's repository is checked out there (`suite.base.git`).
        script: another training script, in the place of each cell's own.
    """

    kind: Literal["trainer", "script", "python", "ref", "self"]
    label: str
    trainer: str | None = None
    python: str = sys.executable
    commit: str | None = None
    script: Script | None = None


@dataclass(frozen=True)
class Budget:
    """The wall seconds of a whole run, starts of processes included.

    Attributes:
        seconds: of the run.
        fixed: whether the user set them. They are then kept even if sessions take longer than planned. A profile's
            budget stretches on a slow machine to `MIN_SESSIONS` sessions, because fewer decide hardly anything.
    """

    seconds: float
    fixed: bool = False

    @property
    def least_sessions(self) -> int:
        """How many sessions are measured even beyond the budget."""
        return 1 if self.fixed else MIN_SESSIONS


@dataclass(frozen=True)
class Config:
    """The effective values, checked."""

    root: Path  # the user's project, which relative paths start from
    devices: Devices
    world_sizes: tuple[int, ...]
    trainers: tuple[str, ...]
    checked: tuple[str, ...]  # what -m correctness checks: those asked for, or those of the table for samples
    workloads: tuple[Workload, ...]
    checked_workloads: tuple[Workload, ...]  # that -m correctness also trains: those asked for
    modes: tuple[str, ...]
    data_root: Path
    tolerance: float
    budget: Budget
    against: Base | None
    accept: str | None  # None, "yes" or "slower"
    require_devices: int
    profile: str
    inconclusive: str
    require_baseline: bool
    report_dir: Path
    floors: tuple[Floor, ...] = ()
    scripts: tuple[Script, ...] = ()  # their names are among the trainers, and their workloads among the workloads
    counters: str = "warn"  # what a change in what a step does leads to: "warn" or "fail"; "off" counts nothing
    explain: bool = True  # whether to say where the time goes; commands that need only a verdict do not
    python_path: tuple[Path, ...] = ()  # the folders of pytest's setting `pythonpath`
    too_large: tuple[int, ...] = ()  # world sizes of an ini file that the devices are too few for
    # Trainers and modes of the default that are the same on the only device, by the one that is measured for them.
    alike: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    repeat: tuple[str, ...] = ()  # pytest's arguments that repeat the run, without --scaling-accept
    calibrate: int = 0  # sessions of a calibration, in which nothing is decided early; 0 in a run that judges

    @property
    def paths(self) -> tuple[Path, ...]:
        """The folders that workers import a user's trainer, model and data from."""
        return (Path.cwd(), self.root, *self.python_path)

    @property
    def misfit(self) -> str:
        """Why no world size can be measured, and what to do; empty where one can."""
        if not self.devices.names:
            return f"{self.devices}: no device found; {self.devices.remedy}, or use --scaling-devices=cpu"
        if self.devices.refused:
            return self.devices.refused
        if self.world_sizes:
            return ""
        return f"no world size of the settings fits {self.devices}; choose others with --scaling-world-sizes"

    @property
    def left_out(self) -> list[str]:
        """What is not measured although the settings or the default have it, in sentences."""
        sizes, said = ", ".join(map(str, self.too_large)), []
        if sizes:
            said.append(f"not measured: world size(s) {sizes} of the settings; there is only {self.devices}")
        said += [f"{', '.join(others)}: as {name} on one device" for name, others in self.alike.items()]
        if self.devices.alone:
            said.append(f"not checked: {self.devices.alone}: efficiency, the exchange, what holds several devices back")
        if (fixed := [script.name for script in self.scripts if not script.takes_batch]) and "strong" in self.modes:
            said.append(f"{', '.join(fixed)}: only weak scaling is measured, because the command has no {{batch}}")
        return said

    def header(self) -> list[str]:
        """Return the effective settings, for pytest's header and the record."""
        names = ", ".join(workload.name for workload in self.workloads)
        compared = f"against {self.against.label}" if self.against else "against the accepted baseline"
        data, reports = (os.path.relpath(path, self.root) for path in (self.data_root, self.report_dir))
        return [
            f"scaling: devices {self.devices}, world sizes {', '.join(map(str, self.world_sizes)) or 'none'}, "
            f"trainers {', '.join(self.trainers)}, workloads {names}, modes {', '.join(self.modes)}",
            f"scaling: {compared}, tolerance {self.tolerance:.1%}, profile {self.profile}, "
            f"budget {self.budget.seconds:.0f} s, inconclusive {self.inconclusive}, "
            f"counters {self.counters}, accept {self.accept or 'no'}, require-devices {self.require_devices}, "
            f"require-baseline {'yes' if self.require_baseline else 'no'}, "
            f"data {data}, reports {reports}",
            *(f"scaling: {problem}" for problem in (self.devices.problem, *self.left_out) if problem),
        ]
