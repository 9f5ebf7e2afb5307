"""The machine, what changed on it since the baseline, how quiet it was, what was asked, and the raw samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from suite.records.baselines import AcceptedRun
from suite.records.record import Record, Session
from suite.render import figures
from suite.render.figures import number, plural
from suite.render.html.environment import bounded
from suite.room.conditions import GpuConditions, disturbed

MAX_LINES = 100  # of plan and settings, and of neighbours
MAX_ROWS = 20  # sessions and workloads in view
MAX_WINDOWS = 4_000  # of all sessions together


def machine(record: Record, accepted: AcceptedRun | None) -> Mapping[str, object]:
    """Return everything about where and how the run was made."""
    return {
        "facts": list(_facts(record)),
        "comparisons": [_changed(since, compared) for since, compared in _compared(record, accepted)],
        "disturbances": figures.disturbances(record),
        "neighbours": record.neighbours[:MAX_LINES],
        "sessions": bounded(map(_session, record.sessions), len(record.sessions), shown=MAX_ROWS),
        "workloads": bounded(_workloads(record), len(record.workloads), shown=MAX_ROWS),
        "lines": (*record.settings, *record.plan)[:MAX_LINES],
    }


def _facts(record: Record) -> Iterable[tuple[str, str]]:
    yield "machine key", record.machine.key
    yield "host", record.machine.host
    yield from figures.facts(record.machine, record.environment)
    yield "commit", figures.commit(record.environment)
    yield "started", f"{figures.when(record.started_utc)} UTC"
    yield "run", f"{record.run_id}: {figures.took(record)}, order drawn with seed {number(record.seed, 'd')}"


_Compared = tuple[str, list[tuple[str, str, str]]]  # a run, and of it and this one: what, before, now


def _compared(record: Record, accepted: AcceptedRun | None) -> Iterable[_Compared]:
    """Yield the runs that this one is compared with: a base, which ran on today's machine, and an accepted run."""
    own = record.environment
    if record.bases:
        base = record.bases[0]
        commits = [] if base.commit is None else [("commit", base.commit[:12], own.commit[:12])]
        yield f"the base, {base.label}", [*_versions(base.versions or own.versions, own.versions), *commits]
    if accepted is not None:
        then, machine = accepted.environment, record.machine
        below = (("driver", accepted.driver, machine.driver), ("system", accepted.system, machine.system))
        yield (
            f"the newest accepted run, {accepted.run_id}",
            [
                ("host", accepted.host, machine.host),
                ("commit", figures.commit(then), figures.commit(own)),
                *_versions({**then.versions, **then.variables}, {**own.versions, **own.variables}),
                *((what, before, now or "-") for what, before, now in below if before),
            ],
        )


def _changed(since: str, compared: Sequence[tuple[str, str, str]]) -> Mapping[str, object]:
    """Return what changed since a run, and the names of what did not."""
    changes = [(what, before, now) for what, before, now in compared if before != now]
    same = ", ".join(what for what, before, now in compared if before == now)
    return {"since": since, "changes": bounded(changes, len(changes)), "same": same}


def _versions(before: Mapping[str, str], now: Mapping[str, str]) -> list[tuple[str, str, str]]:
    return [(name, before.get(name, "-"), now.get(name, "-")) for name in dict.fromkeys([*now, *before])]


def _session(session: Session) -> tuple[str, ...]:
    blocks = session.conditions
    reasons = [reason for conditions in blocks if (reason := disturbed(conditions))]
    mhz = [conditions.mhz for conditions in blocks if conditions.mhz is not None]
    gpus = [gpu for conditions in blocks for gpu in conditions.gpus]
    return (
        number(session.number, "d"),
        session.started_utc,
        number(session.wall_s, ".1f"),
        str(len(session.windows)),
        str(len(blocks)),
        str(len(reasons)),
        str(len(session.left_out)),
        _mean([conditions.foreign for conditions in blocks]),
        _mean([conditions.steal for conditions in blocks]),
        number(min(mhz), ".0f") if mhz else "-",
        _gpus(gpus),
        "; ".join(dict.fromkeys(reasons)) or "-",
    )


def _gpus(readings: Sequence[GpuConditions]) -> str:
    """Return slowest clock, highest temperature, mean power and all throttling of the cards; '-' without any card."""
    mhz = [gpu.mhz for gpu in readings if gpu.mhz is not None]
    celsius = [gpu.celsius for gpu in readings if gpu.celsius is not None]
    errors = sum(gpu.ecc_errors or 0 for gpu in readings)
    parts = [f"{number(min(mhz), 'd')} MHz"] if mhz else []
    parts += [f"{number(max(celsius), 'd')} °C"] if celsius else []
    watts = [gpu.watts for gpu in readings if gpu.watts is not None]
    parts += [f"{number(sum(watts) / len(watts), '.0f')} W"] if watts else []
    parts += sorted({reason for gpu in readings for reason in gpu.throttled})
    parts += [f"{number(errors, 'd')} ECC errors"] if errors else []
    parts += ["lost"] if any(gpu.lost for gpu in readings) else []
    return ", ".join(parts) or "-"


def _mean(shares: Sequence[float | None]) -> str:
    known = [share for share in shares if share is not None]
    return number(sum(known) / len(known), ".0%") if known else "-"


def _workloads(record: Record) -> Iterable[tuple[str, ...]]:
    for name, workload in record.workloads.items():
        compiled = ("compiled",) if workload.compile else ()
        yield (
            name,
            record.workload_hashes.get(name, "-"),
            workload.model,
            record.datasets.get(name, workload.dataset),
            number(record.epoch_samples.get(name, 0), ",d"),
            number(workload.batch, "d"),
            f"{number(workload.lr, 'g')}, {workload.lr_rule}",
            ", ".join((workload.loader, workload.precision, workload.memory_format, *compiled)),
        )


def samples(record: Record) -> Mapping[str, object] | None:
    """Return every window in milliseconds a step, in the order of timing; None where nothing was timed."""
    steps = {arm.id: arm.steps_per_window for arm in record.arms}
    left, shown = MAX_WINDOWS, []
    for session in record.sessions:
        count = len(session.windows)
        if 0 < count <= left:
            left -= count
            shown.append((f"Session {number(session.number, 'd')}, {plural(count, 'window')}", _arms(session, steps)))
    total = sum(len(session.windows) for session in record.sessions)
    return {"sessions": shown, "left_out": total - (MAX_WINDOWS - left)} if total else None


def _arms(session: Session, steps: Mapping[str, int]) -> dict[str, str]:
    """Return the slowest rank's milliseconds a step, by arm; a dot follows what was disturbed."""
    texts: dict[str, list[str]] = {}
    left_out = frozenset(session.left_out)
    for window in session.windows:
        step_ns = max(window.duration_ns, default=0) / (steps.get(window.arm, 1) or 1)
        text = number(step_ns / 1e6, ".2f") + ("·" if window.block in left_out or window.disturbed else "")
        texts.setdefault(window.arm, []).append(text)
    return {arm: " ".join(of_arm) for arm, of_arm in texts.items()}
