"""How a record's figures are worded, for every way of showing them.

Whatever a valid record holds can be worded: numbers beyond all sense, parts that do not fit together, text that cannot
be encoded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from reference.closing_line import closing_line, sec_per_epoch
from suite.plan import workloads
from suite.plan.cells import short
from suite.records.record import Accuracy, BarRecord, CellRecord, IntervalRecord, Record
from suite.room.conditions import Conditions, disturbed
from suite.verdict import Outcome

COLUMNS = (
    "cell",
    "k",
    "sec/epoch",
    "samples/s",
    "efficiency",
    "speed-up",
    "accuracy",
    "time / base",
    "published",
    "verdict",
)

GRAVEST_FIRST = (Outcome.FAIL, Outcome.ERROR, Outcome.INCONCLUSIVE, Outcome.NO_BASELINE, Outcome.PASS)
READABLE = 1e15  # larger numbers are shown as powers of ten


def rows(record: Record, cells: Iterable[CellRecord]) -> Iterator[tuple[str, ...]]:
    """The lines of the table, each in the order of `COLUMNS`."""
    shortened = {_trained(run): run.shortened for run in reversed(record.accuracies)}
    for cell in cells:
        yield (
            name(cell),
            number(cell.world_size, "d"),
            interval(cell.sec_per_epoch, ".3g"),
            interval(cell.samples_per_s, ",.0f", bounds=False),
            interval(cell.efficiency, ".2f") if cell.efficiency else cell.efficiency_note or "-",
            interval(cell.speedup, ".2f"),
            accuracy(cell, shortened=bool(shortened.get(_trained(cell)))),
            interval(cell.slowdown, ".3f"),
            published(record, cell),
            cell.outcome.value,
        )


def _trained(part: CellRecord | Accuracy) -> tuple[str, str, str, int]:
    """What was trained for a cell; on one device both modes are the same."""
    return part.trainer, part.workload, part.mode if part.world_size > 1 else "strong", part.world_size


def name(cell: CellRecord) -> str:
    """A cell without its world size."""
    mark = " (oversubscribed)" if cell.oversubscribed else ""
    return f"{short(cell.trainer)} {cell.workload} {cell.mode}{mark}"


def counts(record: Record) -> list[tuple[str, int]]:
    """How many cells came to each outcome, the gravest first."""
    found = Counter(cell.outcome for cell in record.cells)
    return [(outcome.value, found[outcome]) for outcome in GRAVEST_FIRST if found[outcome]]


def headline(record: Record) -> str:
    """'2 FAIL, 10 PASS', the gravest first."""
    return ", ".join(f"{count} {outcome}" for outcome, count in counts(record)) or "no cells"


def commit(record: Record) -> str:
    """What was measured."""
    changed = " (with uncommitted changes)" if record.environment.dirty else ""
    return record.environment.commit[:12] + changed


def when(record: Record) -> str:
    """When it began, to the minute."""
    return f"{record.started_utc[: len('2026-01-01T00:00')].replace('T', ' ')} UTC"


def as_float(value: float) -> float:
    """An integer of any size as a double; infinity where it is beyond all of them."""
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def number(value: float, form: str) -> str:
    """A number in this format, or as a power of ten where that would be a line of digits."""
    return format(value, form) if abs(value) < READABLE else format(as_float(value), ".3g")


def interval(found: IntervalRecord | None, form: str, *, bounds: bool = True, factor: float = 1.0) -> str:
    """'0.84 [0.81, 0.87]'; without an interval the estimate alone; '-' for nothing.

    Args:
        found: the estimate.
        form: of each number.
        bounds: whether to show the interval.
        factor: to the unit that is shown.
    """
    if found is None:
        return "-"
    text = number(found.estimate * factor, form)
    if not bounds or found.low is None or found.high is None:
        return text
    return f"{text} [{number(found.low * factor, form)}, {number(found.high * factor, form)}]"


def accuracy(cell: CellRecord, *, shortened: bool) -> str:
    """The accuracy after the last epoch, marked where the recipe was cut short."""
    return "-" if cell.accuracy is None else f"{number(cell.accuracy, '.3f')}{'*' if shortened else ''}"


def published(record: Record, cell: CellRecord) -> str:
    """What the documents print for this cell's model, batch, rate and world size."""
    workload = record.workloads.get(cell.workload)
    figure = workloads.published(workload, cell.mode, cell.world_size) if workload else None
    if figure is None:
        return "-"
    return f"{figure.sec_per_epoch:g} s" + (f", {figure.accuracy:g}" if figure.accuracy is not None else "")


def without_accuracy(cells: Iterable[CellRecord]) -> list[str]:
    """Why cells have no accuracy, a sentence for each reason, with the cells it is about."""
    ids: dict[str, list[str]] = {}
    for cell in cells:
        if cell.accuracy is None and cell.accuracy_note:
            ids.setdefault(cell.accuracy_note, []).append(cell.id)
    return [f"no accuracy for {', '.join(which)}: {reason}" for reason, which in ids.items()]


def setting(run: Accuracy) -> str:
    """'weak, batch 64, lr 0.15': what a net was trained with, as far as its record says."""
    mode = [run.mode] if run.world_size > 1 else []
    batch = [] if run.batch is None else [f"batch {number(run.batch, 'd')}"]
    return ", ".join([*mode, *batch, *([] if run.lr is None else [f"lr {number(run.lr, 'g')}"])])


def epochs(run: Accuracy, most: int = 1000) -> list[str]:
    """'0.853 (14.2 s, loss 0.412)' for each of the first epochs: accuracy after it, seconds of training, mean loss."""
    shown = []
    for epoch, reached in enumerate(run.per_epoch[:most]):
        seconds = [f"{number(run.train_s[epoch], '.3g')} s"] if epoch < len(run.train_s) else []
        loss = run.loss[epoch] if epoch < len(run.loss) else None
        about = ", ".join([*seconds, *([] if loss is None else [f"loss {number(loss, '.3f')}"])])
        shown.append(number(reached, ".3f") + (f" ({about})" if about else ""))
    return shown


def causes(bar: BarRecord) -> str:
    """The name of a part of the gap: of its cause, or of all causes that could not be told apart."""
    return " + ".join(bar.causes) + (", not separable" if len(bar.causes) > 1 else "")


def trained_on_its_own_set(record: Record, run: Accuracy) -> bool:
    """Whether a run was trained on what its workload is timed on, as the documents do."""
    workload = record.workloads.get(run.workload)
    recipe = workload.accuracy if workload else None
    return workload is not None and recipe is not None and recipe.dataset == workload.dataset


def closing_lines(record: Record) -> list[str]:
    """The book's closing line of every run that was trained on its workload's own dataset."""
    lines = []
    devices = {_trained(cell): cell.devices for cell in reversed(record.cells)}
    for run in record.accuracies:
        samples = record.epoch_samples.get(run.workload)
        measured = run.train_samples and run.train_s and run.per_epoch
        if not (samples and measured and trained_on_its_own_set(record, run)):
            continue
        # The seconds of training alone, for a whole epoch, also where fewer samples were trained on.
        share = as_float(samples) / as_float(run.train_samples)
        seconds = sec_per_epoch(run.train_s) * share
        note = f"  ({run.shortened})" if run.shortened else ""
        who = f"{short(run.trainer)} {run.workload}" + (" weak" if run.mode == "weak" else "")
        loss = run.loss[-1] if run.loss else None
        line = closing_line(run.per_epoch[-1], seconds, devices.get(_trained(run), ()), loss)
        lines.append(f"{who}: {line}{note}")
    return lines


def compared_with(record: Record) -> str:
    """What the cells were judged against, and the torch of each side where they differ."""
    if not record.against:
        return "the accepted baseline"
    own = record.environment.versions.get("torch")
    others = {base.versions.get("torch", own) for base in record.bases} - {own}
    versions = f" (torch {', '.join(map(str, others))} against {own})" if others else ""
    return f"{record.against}{versions}, in the same sessions"


def disturbance(conditions: Conditions) -> str:
    """Why a block must not count, in words; "" where nothing speaks against it."""
    try:
        return disturbed(conditions)
    except OverflowError:  # more cores than a double can count: no reading of a machine
        return ""


def disturbances(record: Record) -> str:
    """How quiet the machine was while it measured, in a sentence."""
    blocks = [conditions for session in record.sessions for conditions in session.conditions]
    if not blocks:
        return "What else used the machine was not recorded."
    marked = sum(1 for conditions in blocks if disturbance(conditions))
    left_out = sum(len(session.left_out) for session in record.sessions)
    steal = sum(conditions.steal or 0.0 for conditions in blocks) / len(blocks)
    foreign = sum(conditions.foreign or 0.0 for conditions in blocks) / len(blocks)
    return (
        f"{marked} of {len(blocks)} blocks were disturbed and {left_out} left out for it; on average other processes "
        f"used {number(foreign, '.0%')} of a core and the hypervisor kept {number(steal, '.0%')}."
    )


def machine(record: Record) -> str:
    """The machine in a sentence."""
    about = record.machine
    gpus = f", GPUs {', '.join(about.gpus)}, driver {about.driver}" if about.gpus else ""
    memory = number(as_float(about.memory_bytes) / 2**30, ".0f")
    return f"{about.key}: {about.cpu_model}, {about.cpu_cores} cores, {memory} GiB{gpus}. {about.system}"


def versions(record: Record) -> str:
    """'torch 2.15.0, python 3.12.1'."""
    return ", ".join(f"{name} {version}" for name, version in record.environment.versions.items())


def graver_first(cells: Sequence[CellRecord]) -> list[CellRecord]:
    """Cells with those first that somebody has to look at; otherwise in their order."""
    return sorted(cells, key=lambda cell: GRAVEST_FIRST.index(cell.outcome))
