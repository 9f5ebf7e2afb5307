"""All records of a machine as series: each cell's time in every run, what was accepted, what changed. Pure.

Records are read one by one, newest first, up to a limit, and reduced at once. Their raw windows, which are most of a
file, are skipped; everything else is validated. A record that cannot be read is named and ends nothing.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BeforeValidator

from suite.plan import cells
from suite.plan.cells import SINGLE
from suite.records import baselines
from suite.records.baselines import Baseline, Identity
from suite.records.files import RecordError, read_inside
from suite.records.record import CellRecord, Environment, Machine, Record, Session, differences, oversubscribed_mark
from suite.verdict import Outcome
from suite.verdict.metrics import Interval

MAX_RUNS = 300  # newest: about one for each pixel of a chart
MAX_CELLS = 100
MAX_REASON = 300
PAGES = ("report.html", "summary.md", "record.json")  # of a run


class Digest(Record):
    """A record without its sessions, however many raw windows those hold."""

    sessions: Annotated[tuple[Session, ...], BeforeValidator(lambda _: ())] = ()


class Figures(NamedTuple):
    """What a curve shows of a cell in one run; whole cells of hundreds of runs would take hundreds of megabytes."""

    outcome: str
    sec_per_epoch: Interval
    efficiency: Interval | None
    accuracy: float | None


@dataclass(frozen=True)
class PastRun:
    """A run as history keeps it; `outcomes` says how many cells came to what, and `cells` has those with a series."""

    folder: str
    run_id: str
    started_utc: str
    machine: Machine
    environment: Environment
    outcomes: dict[str, int]
    interrupted: bool
    accepted: bool
    pages: tuple[str, ...]
    cells: dict[Identity, Figures]

    @property
    def surroundings(self) -> dict[str, str]:
        """What may change a build's times: versions, driver, kernel."""
        return {**self.environment.versions, "driver": self.machine.driver, "system": self.machine.system}


class Event(NamedTuple):
    """What changed on the machine with `run`, an index in `History.runs`: versions, or a host that is new."""

    run: int
    text: str


class Series(NamedTuple):
    """One cell over the runs that measured it; `place` is its trainer, workload, mode and world size.

    `accepted` has the ids of its accepted runs, and `pin` that of the one which slow drift is measured against.
    """

    name: str
    place: tuple[str, str, str, str]
    identity: Identity
    accepted: frozenset[str]
    pin: str | None


class Skipped(NamedTuple):
    """A run folder that history could not use, and why."""

    folder: str
    reason: str


@dataclass(frozen=True)
class History:
    """All runs on machines of one key, as far as they are kept and can be read, oldest first."""

    machine_key: str
    runs: tuple[PastRun, ...]
    events: tuple[Event, ...]
    cells: tuple[Series, ...]  # in the order of the newest run, then what only older ones have
    skipped: tuple[Skipped, ...] = ()  # what could not be read
    older: int = 0  # runs beyond `MAX_RUNS`, not read
    left_out: int = 0  # cells beyond `MAX_CELLS`, without a series, of the record that has most of them
    baseline_problem: str = ""  # why accepted runs are not known; "" where they are


def read(folder: Path) -> History:
    """Return the history of a machine from its folder, which is named by the machine's key; an empty one without it."""
    folder = folder.resolve()
    key = folder.name
    try:
        baseline, problem = baselines.read(folder.parent, key), ""
    except RecordError as error:
        baseline, problem = Baseline(machine_key=key), _without_path(error, baselines.path_for(folder.parent, key))
    paths = sorted(folder.glob("runs/*/record.json"), key=lambda path: path.parent.name, reverse=True)
    accepted = {run.run_id for run in baseline.runs}
    runs, skipped, left_out = list[PastRun](), list[Skipped](), 0
    chosen: dict[Identity, CellRecord] = {}  # those that have a series, as the newest run has them
    for path in paths[:MAX_RUNS]:
        try:
            record = read_inside(folder, path, Digest)
            if record.machine.key != key:
                raise RecordError(f"measured on machine {record.machine.key}, not on {key}: move its folder there")
        except RecordError as error:
            skipped.append(Skipped(path.parent.name, _without_path(error, path)))
            continue
        timed = _timed(record)
        for identity, cell in timed.items():
            if len(chosen) < MAX_CELLS:
                chosen.setdefault(identity, cell)
        left_out = max(left_out, len(timed.keys() - chosen.keys()))
        runs.append(
            PastRun(
                folder=path.parent.name,
                run_id=record.run_id,
                started_utc=record.started_utc,
                machine=record.machine,
                environment=record.environment,
                outcomes=dict(Counter(cell.outcome.value for cell in record.cells)),
                interrupted=record.interrupted,
                accepted=record.run_id in accepted,
                pages=tuple(page for page in PAGES if (path.parent / page).is_file()),
                cells={
                    identity: Figures(past.outcome.value, past.sec_per_epoch, past.efficiency, past.accuracy)
                    for identity in chosen  # one key for all runs
                    if (past := timed.get(identity)) is not None and past.sec_per_epoch is not None
                },
            )
        )
    runs.sort(key=lambda run: (run.started_utc, run.folder))
    trainers = cells.names(cell.trainer for cell in chosen.values())
    names = {identity: _name(cell, trainers) for identity, cell in chosen.items()}
    same_name = Counter(names.values())
    return History(
        machine_key=key,
        runs=tuple(runs),
        events=tuple(_events(runs)),
        cells=tuple(
            Series(
                name if same_name[name] == 1 else f"{name} ({identity.definition})",
                (trainers[identity.trainer], chosen[identity].workload, identity.mode, str(identity.world_size)),
                identity,
                *_accepted(identity, baseline),
            )
            for identity, name in names.items()
        ),
        skipped=tuple(skipped),
        older=len(paths[MAX_RUNS:]),
        left_out=left_out,
        baseline_problem=problem,
    )


def _timed(record: Record) -> dict[Identity, CellRecord]:
    """Return the cells with a time above 0, on workloads that the record defines."""
    timed: dict[Identity, CellRecord] = {}
    for cell in record.cells:
        time = cell.sec_per_epoch
        if time is not None and time.estimate > 0 and cell.workload in record.workload_hashes:
            timed.setdefault(Identity.of(cell, record), cell)  # on one device strong and weak are one arm
    for probe in _probes(timed.values()):
        timed.setdefault(Identity.of(probe, record), probe)
    return timed


def _probes(cells: Iterable[CellRecord]) -> Iterable[CellRecord]:
    """Yield the plain trainer's time on each workload, as the cells' speed-ups over it say, as a cell of its own."""
    seconds: dict[str, list[float]] = {}
    for cell in cells:
        if cell.speedup is not None and cell.speedup.estimate > 0 and cell.sec_per_epoch is not None:
            seconds.setdefault(cell.workload, []).append(cell.sec_per_epoch.estimate * cell.speedup.estimate)
    for workload, of_cells in seconds.items():
        yield CellRecord(
            id=f"{SINGLE}-{workload}-strong-1",
            trainer=SINGLE,
            workload=workload,
            mode="strong",
            world_size=1,
            oversubscribed=False,
            outcome=Outcome.NO_BASELINE,
            reason="timed in every run, to show how fast the machine is",
            sec_per_epoch=Interval(statistics.median(of_cells)),
        )


def _accepted(identity: Identity, baseline: Baseline) -> tuple[frozenset[str], str | None]:
    """Return the ids of a cell's accepted runs, and that of its pin."""
    holding = [run for run in baseline.runs if run.find(identity) is not None]
    pin = next((run.run_id for run in holding if run.rebuildable), None)
    return frozenset(run.run_id for run in holding), pin


def _events(runs: Sequence[PastRun]) -> Iterable[Event]:
    """Yield what changed in each run from the one before it on its host; a host's first run is compared with any."""
    latest: dict[str, PastRun] = {}
    for index, run in enumerate(runs):
        host = run.machine.host
        before = latest.get(host, runs[max(index - 1, 0)])
        changed = differences(before.surroundings, run.surroundings, common=True)
        texts = [f"{each.what} {each.first} → {each.second}" for each in changed]
        if latest and host not in latest:
            texts.insert(0, f"first run on host {host}")
        if texts:
            yield Event(index, ", ".join(texts))
        latest[host] = run


def _name(cell: CellRecord, trainers: Mapping[str, str]) -> str:
    if cell.trainer == SINGLE:
        return f"{SINGLE} {cell.workload}, 1 device (how fast the machine is)"
    what = f"{trainers[cell.trainer]} {cell.workload}"
    where = f"{what}, 1 device" if cell.world_size == 1 else f"{what} {cell.mode}, {cell.world_size} devices"
    return where + oversubscribed_mark(cell)


def _without_path(error: RecordError, path: Path) -> str:
    """Return a message for a page that is read on other machines; a broken file may have any text in it."""
    return str(error).removeprefix(f"{path}: ")[:MAX_REASON]
