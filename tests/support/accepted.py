"""An accepted baseline that no run here comes near."""

from __future__ import annotations

from suite.plan import workloads
from suite.records.baselines import AcceptedCell, AcceptedRun, Baseline
from suite.records.record import Environment
from suite.room import devices
from suite.run import machine
from tests.support.project import Project


def an_hour_an_epoch(project: Project) -> Baseline:
    """Return one accepted run of the tiny workload on this machine, of an unknown commit. It is not written yet."""
    tiny = workloads.available(project.path / "pyproject.toml")["tiny"]
    about = machine.describe(devices.parse("cpu:2"))
    kept = AcceptedCell(
        trainer="scratch",
        workload="tiny",
        workload_hash=tiny.hash,
        mode="strong",
        world_size=1,
        dataset="data.py:blobs",
        sec_per_epoch=3600.0,
        sessions=4,
    )
    environment = Environment(versions={}, commit="unknown", dirty=False)
    run = AcceptedRun(run_id="accepted", host=about.host, system=about.system, environment=environment, cells=(kept,))
    return Baseline(machine_key=about.key, runs=(run,))
