"""The machine, what changed on it since the baseline, how quiet it was, and what was asked of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from suite.records.baselines import Baseline
from suite.records.record import Record, Session
from suite.render import figures
from suite.render.html.accepting import newest
from suite.render.html.bounds import Rows, bounded
from suite.room.conditions import GpuConditions

MAX_LINES = 100  # of plan and settings, and of neighbours
_UNKNOWN = "-"


@dataclass(frozen=True)
class View:
    """What the template shows.

    Attributes:
        facts: name and value.
        since: whom the changes are counted from; empty where there is nobody.
        changes: what, before, now.
        same: what did not change.
        disturbances: a sentence.
        sessions: how each went.
        lines: plan and settings.
    """

    facts: tuple[tuple[str, str], ...]
    since: str
    changes: Rows[tuple[str, str, str]]
    same: str
    disturbances: str
    neighbours: tuple[str, ...]
    sessions: Rows[tuple[str, ...]]
    workloads: Rows[tuple[str, ...]]
    lines: tuple[str, ...]


def view(record: Record, baseline: Baseline | None) -> View:
    """Everything about where and how the run was made."""
    before = _before(record, baseline)
    changed = [change for change in before[1] if change[1] != change[2]] if before else []
    same = [what for what, then, now in before[1] if then == now] if before else []
    return View(
        facts=tuple(_facts(record)),
        since=before[0] if before else "",
        changes=bounded(changed, len(changed)),
        same=", ".join(same),
        disturbances=figures.disturbances(record),
        neighbours=record.neighbours[:MAX_LINES],
        sessions=bounded(map(_session, record.sessions), len(record.sessions), shown=20),
        workloads=bounded(_workloads(record), len(record.workloads), shown=20),
        lines=(*record.settings, *record.plan)[:MAX_LINES],
    )


def _facts(record: Record) -> Iterable[tuple[str, str]]:
    machine = record.machine
    yield "machine key", machine.key
    yield "host", machine.host
    memory = figures.number(figures.as_float(machine.memory_bytes) / 2**30, ".0f")
    yield "processor", f"{machine.cpu_model}, {figures.number(machine.cpu_cores, 'd')} cores, {memory} GiB"
    if machine.gpus:
        yield "GPUs", ", ".join(machine.gpus)
        yield "topology", machine.gpu_topology or "not known"
        yield "driver", machine.driver or "not known"
    yield "system", machine.system
    yield "versions", figures.versions(record)
    yield "commit", figures.commit(record)
    yield "started", figures.when(record)
    sessions, seed = len(record.sessions), figures.number(record.seed, "d")
    wall = figures.number(record.wall_s, ".0f")
    yield "run", f"{record.run_id}: {sessions} sessions in {wall} s, order drawn with seed {seed}"


def _before(record: Record, baseline: Baseline | None) -> tuple[str, list[tuple[str, str, str]]] | None:
    """Whom this run is compared with, and everything about both; None where there is nobody."""
    own, machine = record.environment, record.machine
    if record.bases:
        base = record.bases[0]
        pairs = _versions(base.versions or own.versions, own.versions)
        if base.commit is not None:
            pairs.append(("commit", base.commit[:12], own.commit[:12]))
        return f"the base, {base.label}", pairs
    accepted = newest(record, baseline)
    if accepted is None:
        return None
    then = accepted.environment
    return f"the newest accepted run, {accepted.run_id}", [
        ("host", accepted.host, machine.host),
        ("commit", _commit(then.commit, then.dirty), _commit(own.commit, own.dirty)),
        *_versions(then.versions, own.versions),
    ]


def _commit(commit: str, dirty: bool) -> str:
    return commit[:12] + (" (with uncommitted changes)" if dirty else "")


def _versions(before: Mapping[str, str], now: Mapping[str, str]) -> list[tuple[str, str, str]]:
    return [(name, before.get(name, _UNKNOWN), now.get(name, _UNKNOWN)) for name in dict.fromkeys([*now, *before])]


def _session(session: Session) -> tuple[str, ...]:
    blocks = session.conditions
    marked = [reason for conditions in blocks if (reason := figures.disturbance(conditions))]
    return (
        figures.number(session.number, "d"),
        session.started_utc,
        figures.number(session.wall_s, ".1f"),
        str(len(session.windows)),
        str(len(blocks)),
        str(len(marked)),
        str(len(session.left_out)),
        _mean([conditions.foreign for conditions in blocks]),
        _mean([conditions.steal for conditions in blocks]),
        _lowest([conditions.mhz for conditions in blocks]),
        _gpus([gpu for conditions in blocks for gpu in conditions.gpus]),
        "; ".join(dict.fromkeys(marked)) or _UNKNOWN,
    )


def _gpus(readings: Sequence[GpuConditions]) -> str:
    """The slowest clock, the highest temperature and everything that held a card back; '-' without any card."""
    mhz = [gpu.mhz for gpu in readings if gpu.mhz is not None]
    celsius = [gpu.celsius for gpu in readings if gpu.celsius is not None]
    errors = sum(gpu.ecc_errors or 0 for gpu in readings)
    found = [f"{figures.number(min(mhz), 'd')} MHz"] if mhz else []
    found += [f"{figures.number(max(celsius), 'd')} °C"] if celsius else []
    found += sorted({reason for gpu in readings for reason in gpu.throttled})
    found += [f"{figures.number(errors, 'd')} ECC errors"] if errors else []
    return ", ".join(found) or _UNKNOWN


def _mean(shares: Sequence[float | None]) -> str:
    known = [share for share in shares if share is not None]
    return figures.number(sum(known) / len(known), ".0%") if known else _UNKNOWN


def _lowest(values: Sequence[float | None]) -> str:
    return figures.number(min(known), ".0f") if (known := [v for v in values if v is not None]) else _UNKNOWN


def _compiled(asked: bool) -> tuple[str, ...]:
    return ("compiled",) if asked else ()


def _workloads(record: Record) -> Iterable[tuple[str, ...]]:
    for name, workload in record.workloads.items():
        yield (
            name,
            record.workload_hashes.get(name, _UNKNOWN),
            workload.model,
            record.datasets.get(name, workload.dataset),
            figures.number(record.epoch_samples.get(name, 0), ",d"),
            figures.number(workload.batch, "d"),
            f"{figures.number(workload.lr, 'g')}, {workload.lr_rule}",
            ", ".join((workload.loader, workload.precision, workload.memory_format, *_compiled(workload.compile))),
        )
