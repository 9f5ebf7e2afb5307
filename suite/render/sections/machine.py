"""The machine, what changed on it since the baseline, how quiet it was, what was asked, and how to accept the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from suite.records import baselines
from suite.records.baselines import AcceptedRun, Baseline
from suite.records.record import Record, Session
from suite.render import commands, figures, lead
from suite.render.document import Block, Facts, Fold, Lines, Section, Step, Steps, Table, Text, Verbatim
from suite.render.figures import number
from suite.room.conditions import GpuConditions, disturbed
from suite.verdict import Outcome

MAX_LINES = 100  # of plan and settings, and of neighbours
SESSIONS = (
    "session", "started", "s", "windows", "blocks", "disturbed", "left out", "others, of a core", "hypervisor",
    "slowest MHz", "GPUs", "why disturbed",
)  # fmt: skip
WORKLOADS = ("workload", "hash", "model", "timed on", "samples", "batch", "learning rate", "fed and computed")


def machine(record: Record, baseline: Baseline | None) -> Section:
    """Return everything about where and how the run was made."""
    accepted = newest(record, baseline)
    blocks = lead.told(record, "machine")
    blocks.append(Facts(tuple(_facts(record))))
    for since, compared in _compared(record, accepted):
        blocks += _changed(since, compared)
    blocks.append(Text(figures.disturbances(record)))
    if record.neighbours:
        blocks.append(Text("The room check before the first session:"))
        blocks.append(Lines(record.neighbours[:MAX_LINES], len(record.neighbours[MAX_LINES:])))
    if record.sessions:
        rows, count = map(_session, record.sessions), len(record.sessions)
        table = Table.of("Sessions", SESSIONS, rows, numbers=SESSIONS[2:10], total=count)
        blocks.append(Fold("Session by session", (table,)))
    asked = Table.of("Workloads", WORKLOADS, _workloads(record), numbers=WORKLOADS[4:6], total=len(record.workloads))
    lines = (*record.settings, *record.plan)
    blocks.append(Fold("What was asked", (*([asked] if asked.rows else []), Verbatim("\n".join(lines[:MAX_LINES])))))
    blocks.append(Fold("Accepting it as a baseline", tuple(_accepting(record, baseline))))
    return Section("machine", "The machine", tuple(blocks))


def newest(record: Record, baseline: Baseline | None) -> AcceptedRun | None:
    """Return the newest accepted run that is not this one."""
    runs = baseline.runs if baseline else ()
    return next((run for run in reversed(runs) if run.run_id != record.run_id), None)


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


def _changed(since: str, compared: Sequence[tuple[str, str, str]]) -> Iterable[Block]:
    """Yield what changed since a run, and the names of what did not."""
    changes = [(what, before, now) for what, before, now in compared if before != now]
    same = ", ".join(what for what, before, now in compared if before == now)
    if changes:
        yield Table.of(f"What changed since {since}", ("what", "before", "now"), changes)
        if same:
            yield Text(f"The same: {same}.", muted=True)
    else:
        yield Text(f"Nothing changed since {since}, as far as is known: {same or 'nothing is recorded of it'}.")


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


def _accepting(record: Record, baseline: Baseline | None) -> Iterable[Block]:
    """Yield how this run, or one like it, becomes the accepted baseline."""
    runs = baseline.runs if baseline else ()
    included = any(run.run_id == record.run_id for run in runs)
    failed = any(cell.outcome is Outcome.FAIL for cell in record.cells)
    if included:
        yield Text(f"This run is one of the {len(runs)} in the accepted baseline.")
    elif never := baselines.refusal(record):
        yield Text(f"This run cannot be accepted: {never}.")
    else:
        yield Steps((Step("measure it again and accept it", commands.accept(record)),))
        if any(map(baselines.slowed, record.cells)):
            yield Text(
                "Something failed here. =slower says that the slowdown is wanted: the accepted runs of the cells that "
                "became slower are dropped, including the pinned run that slow drift is compared with."
            )
        elif failed:
            yield Text(
                "Something failed here, and no cell became slower. =slower accepts the run with its FAIL, and drops no "
                "accepted run."
            )
    so_far = f" It holds {figures.plural(len(runs), 'accepted run')} so far." if baseline and not included else ""
    after = baselines.warning(record) or "Later runs rebuild its commit and measure it in the same sessions."
    yield Text(
        f"What is accepted is written to {record.machine.key}/baseline.json in the report folder, a small file that is "
        f"committed and reviewed in a pull request like code.{so_far} {after}",
        muted=True,
    )
