"""What one step does, memory, and the raw samples: folded, open where they have something to say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from suite.records import counters
from suite.records.record import Record, Session
from suite.render import figures, lead
from suite.render.document import Facts, Fold, Lines, Section, Table, Text
from suite.render.figures import number, plural
from suite.verdict import Outcome

MAX_NAMES = 20  # of cells with the same reason
MAX_WINDOWS = 4_000  # of all sessions


def counted(record: Record) -> Section:
    """Return what one step of each cell does, or why it was not counted; open where it changed."""
    columns, rows = figures.counted(figures.gravest_first(record.cells))
    reasons = figures.labels((why, cell) for cell in record.cells if (why := cell.why("counters")))
    blocks = lead.told(record, "counters")
    if rows:
        caption = "Counts of one step on each rank: of a trainer without its feed, of a script with it"
        blocks.append(Table.of(caption, columns, rows, numbers=columns[3:]))
        blocks.append(Text(_COUNTS, muted=True))
    if reasons:
        without = tuple(f"{figures.some(ids, MAX_NAMES)}: {reason}" for reason, ids in reasons.items())
        blocks.append(Text("Cells whose step was not counted:"))
        blocks.append(Lines(without[:MAX_NAMES], len(without[MAX_NAMES:])))
    changed = any(
        check.rule == counters.RULE and check.outcome is not Outcome.PASS
        for cell in record.cells
        for check in cell.checks
    )
    return Section("counters", "What one step does", tuple(blocks), folded=True, open=changed)


_COUNTS = (
    "Counts have no noise: code that is the same does the same. “a to b” varies between steps or ranks. An exchange "
    "has its calls, the dtype and size of what each rank brings, over all calls. docs/metrics.md defines every column."
)


def held(record: Record) -> Section:
    """Return peak memory of each arm, and how NCCL connected its GPUs; open on GPUs."""
    most = [(arm.id, words) for arm in record.arms if (words := counters.memory_shown(arm.memory))]
    connected = [(arm.id, ", ".join(arm.transports)) for arm in record.arms if arm.transports]
    blocks = lead.told(record, "memory")
    if most:
        columns = ("arm", "on each device, or in each process")
        blocks.append(Table.of("Peak memory of the processes of each arm while it was timed", columns, most))
        blocks.append(
            Text(
                "An arm's processes also hold what their other arms need. docs/metrics.md defines the figures.",
                muted=True,
            )
        )
    if connected:
        columns = ("arm", "transports and channels")
        blocks.append(Table.of("How NCCL connected the GPUs of each arm, as it logged it", columns, connected))
    return Section("memory", "Memory", tuple(blocks), folded=True, open=bool(record.machine.gpus))


def samples(record: Record) -> Section:
    """Return every window in milliseconds a step, in the order of timing."""
    steps = {arm.id: arm.steps_per_window for arm in record.arms}
    left, folds = MAX_WINDOWS, list[Fold]()
    for session in record.sessions:
        count = len(session.windows)
        if 0 < count <= left:
            left -= count
            title = f"Session {number(session.number, 'd')}, {plural(count, 'window')}"
            folds.append(Fold(title, (Facts(tuple(_arms(session, steps))),)))
    total = sum(len(session.windows) for session in record.sessions)
    if not total:
        return Section("samples", "Raw samples", ())
    left_out = total - (MAX_WINDOWS - left)
    rest = [Text(f"{left_out} windows of other sessions are only in record.json.", muted=True)] if left_out else []
    return Section("samples", "Raw samples", (Text(_SAMPLES, muted=True), *folds, *rest), folded=True)


_SAMPLES = (
    "Milliseconds a step of every window, the slowest rank's. A window that others disturbed was timed again, and has "
    "its last times here; a dot follows those that were disturbed then, too. The faster half of a session counts. "
    "record.json has everything else about them."
)


def _arms(session: Session, steps: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield the slowest rank's milliseconds a step, by arm; a dot follows what was disturbed."""
    texts: dict[str, list[str]] = {}
    left_out = frozenset(session.left_out)
    for window in session.windows:
        step_ns = max(window.duration_ns, default=0) / (steps.get(window.arm, 1) or 1)
        text = number(step_ns / 1e6, ".2f") + ("·" if window.block in left_out or window.disturbed else "")
        texts.setdefault(window.arm, []).append(text)
    yield from ((arm, " ".join(of_arm)) for arm, of_arm in texts.items())
