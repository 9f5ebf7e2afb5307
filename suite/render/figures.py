"""How the figures of a record are worded, for every output.

Any valid record can be worded, also one whose parts do not fit together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from reference.closing_line import closing_line, sec_per_epoch
from suite.plan import cells as planned
from suite.plan import workloads
from suite.plan.cells import measured_mode
from suite.records.counters import EXCHANGES, OTHERS, shown
from suite.records.counters import plural as plural_of_count
from suite.records.record import Accuracy, CellRecord, Environment, Machine, Record, oversubscribed_mark
from suite.room.conditions import disturbed
from suite.room.hardware import Card
from suite.verdict import GRAVEST_FIRST, Outcome
from suite.verdict.metrics import Interval

COLUMNS = (
    "cell", "k", "verdict", "time / base", "samples/s", "tokens/s", "TFLOP/s a device", "sec/epoch", "efficiency",
    "speed-up", "accuracy", "test loss", "published",
)  # fmt: skip
OF_ACCEPTED = ("time", "drift", "stored")  # the rules that compare with accepted runs where no base is named
NET_COLUMNS = (
    "trainer", "workload", "k", "trained with", "seed", "dataset", "train", "test", "s / epoch", "recipe",
    "after each epoch: accuracy (time, mean loss; of texts, test loss)",
)  # fmt: skip
MAX_EPOCHS = 1000  # of a net that are shown
_PREFIXES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
READABLE = 1e15  # larger numbers are shown as powers of ten

Said = TypeVar("Said", bound=Hashable)


def is_compared(record: Record) -> bool:
    """Return whether any cell has a verdict, or failed."""
    return any(cell.outcome is not Outcome.NO_BASELINE for cell in record.cells)


def rows(record: Record, cells: Iterable[CellRecord]) -> Iterator[tuple[str, ...]]:
    """Yield one row of the table for each cell, with the fields of `COLUMNS`; "-" is a figure that is not there."""
    known = names(record)
    shortened = {_trained(run): run.shortened for run in reversed(record.accuracies)}
    compared = is_compared(record)
    for cell in cells:
        yield (
            name(cell, known),
            number(cell.world_size, "d"),
            cell.outcome.value if compared else "-",
            interval(cell.slowdown, ".3f"),
            interval(cell.samples_per_s, ",.0f", bounds=False),
            interval(cell.tokens_per_s, ",.0f", bounds=False),
            interval(cell.device_flop_per_s, ".3g", bounds=False, factor=1e-12),
            "-" if cell.runs_script else interval(cell.sec_per_epoch, ".3g"),
            interval(cell.efficiency, ".2f") if cell.efficiency else cell.why("efficiency") or "-",
            interval(cell.speedup, ".2f"),
            accuracy(cell, shortened=bool(shortened.get(_trained(cell)))),
            "-" if cell.test_loss is None else f"{number(cell.test_loss, '.3f')} nats",
            published(record, cell),
        )


def counted(cells: Iterable[CellRecord]) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of a table of what one step does: a row for each side of a cell that was counted.

    Counters that no cell has, such as those of GPUs, have no column.
    """
    names = ["cell", "side", "exchange", *map(plural_of_count, OTHERS)]
    rows = []
    for cell in cells:
        for side, counters in cell.counters.items():
            exchanged = [f"{what}: {shown(counters.of(what))}" for what in EXCHANGES if counters.of(what)]
            others = (shown(counters.of(what)) for what in OTHERS)
            rows.append([cell.label, side, "; ".join(exchanged) or "-", *others])
    used = [number for number in range(len(names)) if number < 3 or any(row[number] != "-" for row in rows)]
    return [names[number] for number in used], [[row[number] for number in used] for row in rows]


def _trained(part: CellRecord | Accuracy) -> tuple[str, str, str, int]:
    """Return what identifies a training: on one device both modes are the same one."""
    return part.trainer, part.workload, measured_mode(part.mode, part.world_size), part.world_size


def names(record: Record) -> dict[str, str]:
    """Return the name of every trainer of a record."""
    return planned.names([*(cell.trainer for cell in record.cells), *(run.trainer for run in record.accuracies)])


def name(cell: CellRecord, known: Mapping[str, str]) -> str:
    """Return the trainer, workload and mode of a cell; `known` has the trainer's name (`names`)."""
    return f"{known[cell.trainer]} {cell.workload} {cell.mode}{oversubscribed_mark(cell)}"


def counts(outcomes: Iterable[str] | Mapping[str, int]) -> list[tuple[str, int]]:
    """Return how often each outcome occurs, the gravest first; those that do not occur are left out."""
    by_outcome = Counter(outcomes)
    return [(outcome.value, by_outcome[outcome]) for outcome in GRAVEST_FIRST if by_outcome[outcome]]


def took(record: Record) -> str:
    """Return how many sessions there were, if any, and how long the run took."""
    sessions = f"{plural(len(record.sessions), 'session')} in " if record.sessions else ""
    return f"{sessions}{number(record.wall_s, '.0f')} s"


def cut_short(record: Record) -> str:
    """Return what a reader of an interrupted run must know first."""
    how = f" ({record.cut_short})" if record.cut_short else ""
    return f"Cut short{how}: what follows was measured before the run was interrupted."


def headline(outcomes: Iterable[str] | Mapping[str, int]) -> str:
    """Return outcomes as in '2 FAIL, 10 PASS', the gravest first."""
    return ", ".join(f"{count} {outcome}" for outcome, count in counts(outcomes)) or "no cells"


def commit(environment: Environment) -> str:
    """Return the first twelve digits of the commit, and whether there were changes on top of it."""
    return environment.commit[:12] + (" (with uncommitted changes)" if environment.dirty else "")


def when(started_utc: str) -> str:
    """Return the time at which a run started, to the minute."""
    return started_utc[: len("2026-01-01T00:00")].replace("T", " ")


def number(value: float, form: str) -> str:
    """Return a number in this format, as a power of ten only where it would be a long line of digits: '2,090'."""
    text = format(value, form if abs(value) < READABLE else ".3g")
    return f"{float(text):,.0f}" if "e+" in text and abs(value) < READABLE else text


def size(count: float) -> str:
    """Return bytes as in '504.2 KiB'."""
    unit, name = next(((unit, name) for unit, name in _PREFIXES if count >= unit), (1, "B"))
    return f"{number(count / unit, '.4g')} {name}"


def interval(value: Interval | None, form: str, *, bounds: bool = True, factor: float = 1.0) -> str:
    """Return an estimate with its interval, if it has one: '0.84 [0.81, 0.87]'; '-' for None.

    `form` is the format of each number, `bounds` whether to show the interval; `factor` converts to the unit shown.
    """
    if value is None:
        return "-"
    text = number(value.estimate * factor, form)
    if not bounds or value.low is None or value.high is None:
        return text
    return f"{text} [{number(value.low * factor, form)}, {number(value.high * factor, form)}]"


def legible(text: str) -> str:
    """Replace characters that no file can hold, or that steer a terminal or the direction of lines; newlines stay."""
    if text.isprintable():  # nearly always
        return text
    spaced = text.replace("\t", " ")
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in spaced)


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: '1 device', '2 devices'."""
    return f"{number(count, ',d')} {noun}{'' if count == 1 else 's'}"


def some(names: Sequence[str], most: int) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def gain(cell: CellRecord) -> Interval | None:
    """Return how many times the work of one device a cell does; of a script, which has no plain trainer, k E_k."""
    if not cell.runs_script:
        return cell.speedup
    k = cell.world_size
    if k == 1:
        return None if cell.samples_per_s is None else Interval(1.0)
    own = cell.efficiency
    if own is None or own.low is None or own.high is None:
        return None if own is None else Interval(k * own.estimate)
    return Interval(k * own.estimate, k * own.low, k * own.high)


def accuracy(cell: CellRecord, *, shortened: bool = False) -> str:
    """Return the accuracy after the last epoch, marked with a star where the recipe was cut short."""
    return "-" if cell.accuracy is None else f"{number(cell.accuracy, '.3f')}{'*' if shortened else ''}"


def published(record: Record, cell: CellRecord) -> str:
    """Return what the documents print for the model, batch, learning rate and world size of a cell."""
    workload = record.workloads.get(cell.workload)
    figure = workloads.published(workload, cell.mode, cell.world_size) if workload else None
    if figure is None:
        return "-"
    return f"{figure.sec_per_epoch:g} s" + (f", {figure.accuracy:g}" if figure.accuracy is not None else "")


def labels(said: Iterable[tuple[Said, CellRecord]]) -> dict[Said, list[str]]:
    """Return the labels of the cells of which the same is said, by what is said."""
    of: dict[Said, list[str]] = {}
    for what, cell in said:
        of.setdefault(what, []).append(cell.label)
    return of


def missing(cells: Sequence[CellRecord]) -> list[str]:
    """Return why cells have no speed-up or no accuracy: one sentence for each reason, which names the cells."""
    reasons = {
        "speed-up": [(cell.why("speedup"), cell) for cell in cells if cell.speedup is None],
        "accuracy": [(cell.why("accuracy"), cell) for cell in cells if cell.accuracy is None],
    }
    return [
        f"no {what} for {', '.join(who)}: {why}"
        for what, notes in reasons.items()
        for why, who in labels(notes).items()
        if why
    ]


def nets(record: Record) -> Iterator[tuple[str, ...]]:
    """Yield one row for each trained net, with the fields of `NET_COLUMNS`."""
    known = names(record)
    for run in record.accuracies:
        yield (
            known[run.trainer] + net_mark(record, run),
            run.workload,
            number(run.world_size, "d"),
            _setting(run),
            str(run.seed),
            run.dataset,
            number(run.train_samples, ",d"),
            number(run.test_samples, ",d"),
            number(sec_per_epoch(run.train_s), ".3g") if run.train_s else "-",
            run.shortened or "whole",
            ", ".join(_epochs(run)),
        )


def net_mark(record: Record, run: Accuracy) -> str:
    """Return the mark of a net whose ranks shared devices, as those of cells with as many did."""
    marks = [oversubscribed_mark(cell) for cell in record.cells if cell.world_size == run.world_size]
    return max(marks, default="")


def _setting(run: Accuracy) -> str:
    """Return what a net was trained with, as far as the record says: 'weak, batch 64, lr 0.15'."""
    mode = [run.mode] if run.world_size > 1 else []
    batch = [] if run.batch is None else [f"batch {number(run.batch, 'd')}"]
    return ", ".join([*mode, *batch, *([] if run.lr is None else [f"lr {number(run.lr, 'g')}"])])


def _epochs(run: Accuracy) -> Iterator[str]:
    """Yield accuracy, seconds, mean loss and test loss of each of the first epochs: '0.853 (14.2 s, loss 0.412)'."""
    for epoch, reached in enumerate(run.per_epoch[:MAX_EPOCHS]):
        seconds = [f"{number(run.train_s[epoch], '.3g')} s"] if epoch < len(run.train_s) else []
        losses = {"loss": run.loss, "test loss": run.test_loss}
        known = {what: of[epoch] for what, of in losses.items() if epoch < len(of)}
        said = [f"{what} {number(loss, '.3f')}" for what, loss in known.items() if loss is not None]
        about = ", ".join([*seconds, *said])
        yield number(reached, ".3f") + (f" ({about})" if about else "")


def closing_lines(record: Record) -> list[str]:
    """Return the closing line of the book for every net that was trained on the dataset of its workload."""
    lines, known = [], names(record)
    # A net may be trained on fewer devices than any cell has: a trainer's cells share the first ones.
    devices = {cell.trainer: cell.devices for cell in sorted(record.cells, key=lambda cell: len(cell.devices))}
    for run in record.accuracies:
        samples, workload = record.epoch_samples.get(run.workload), record.workloads.get(run.workload)
        recipe = workload.accuracy if workload else None
        own = workload is not None and recipe is not None and recipe.dataset == workload.dataset
        if not (own and samples and run.train_samples and run.train_s and run.per_epoch):
            continue
        # The seconds of a whole epoch, also where fewer samples were trained on.
        seconds = sec_per_epoch(run.train_s) * samples / run.train_samples
        note = f"  ({run.shortened})" if run.shortened else ""
        who = f"{known[run.trainer]} {run.workload}" + (" weak" if run.mode == "weak" else "") + net_mark(record, run)
        loss = run.loss[-1] if run.loss else None
        line = closing_line(run.per_epoch[-1], seconds, devices.get(run.trainer, ())[: run.world_size], loss)
        lines.append(f"{who}: {line}{note}")
    return lines


def compared_with(record: Record) -> str:
    """Return what the cells were judged against, and the version of torch on each side where they differ."""
    if not record.against:
        rules = {check.rule for cell in record.cells for check in cell.checks}
        return "nothing yet" if rules.isdisjoint(OF_ACCEPTED) else "the accepted baseline"
    own = record.environment.versions.get("torch")
    others = {base.versions.get("torch", own) for base in record.bases} - {own}
    versions = f" (torch {', '.join(map(str, others))} against {own})" if others else ""
    return f"{record.against}{versions}, in the same sessions"


def quiet(record: Record) -> str:
    """Return in a few words how quiet the machine was during the measurement."""
    blocks = [conditions for session in record.sessions for conditions in session.conditions]
    if not blocks:
        return "what else used the machine is not known"
    marked = sum(1 for conditions in blocks if disturbed(conditions))
    return f"others disturbed {marked} of {plural(len(blocks), 'block')}" if marked else "the machine was quiet"


def disturbances(record: Record) -> str:
    """Return a sentence on how quiet the machine was during the measurement."""
    blocks = [conditions for session in record.sessions for conditions in session.conditions]
    if not blocks:
        return "The record does not say what else used the machine."
    marked = sum(1 for conditions in blocks if disturbed(conditions))
    left_out = sum(len(session.left_out) for session in record.sessions)
    steal = sum(conditions.steal or 0.0 for conditions in blocks) / len(blocks)
    foreign = sum(conditions.foreign or 0.0 for conditions in blocks) / len(blocks)
    windows = [window.unselected for session in record.sessions for window in session.windows]
    known = [window.disturbed for window in windows if window.others_ns]
    used = f"other processes used {_percent(foreign)} of a core on average, and the hypervisor took {_percent(steal)}."
    said = f"The machine was quiet: {used}"
    if marked or left_out:
        were = ["was" if count == 1 else "were" for count in (marked, left_out)]
        said = f"{marked} of {len(blocks)} blocks {were[0]} disturbed, and {left_out} {were[1]} left out; {used}"
    if any(known):
        said += f" Other processes used over 5 % of a rank's CPU time in {sum(known)} of {len(known)} windows."
    return said


def _percent(share: float) -> str:
    return number(100 * share, ".0f") + " %"


def facts(machine: Machine, environment: Environment) -> list[tuple[str, str]]:
    """Return what is known of a machine and of the software on it, by name."""
    memory = number(machine.memory_bytes / 2**30, ".0f")
    gpus = {"GPUs": ", ".join(machine.gpus), "topology": machine.gpu_topology, "driver": machine.driver}
    named = {
        "processor": f"{machine.cpu_model}, {number(machine.cpu_cores, 'd')} cores, {memory} GiB",
        **({name: text or "not known" for name, text in gpus.items()} if machine.gpus else {}),
        **({"each GPU": "; ".join(_cards(machine.cards))} if machine.cards else {}),
        **({"variables": ", ".join(map("=".join, environment.variables.items()))} if environment.variables else {}),
        "system": machine.system,
        "versions": versions(environment.versions),
    }
    return list(named.items())


def _cards(cards: Sequence[Card]) -> list[str]:
    """Return the facts of each GPU; those that are alike share a text, which names them."""
    alike: dict[str, list[str]] = {}
    for card in cards:
        alike.setdefault(card.words, []).append(number(card.index, "d"))
    return [f"{words} ({', '.join(who)})" for words, who in alike.items()]


def versions(by_name: Mapping[str, str]) -> str:
    """Return versions in a line: 'torch 2.15.0, python 3.12.1'."""
    return ", ".join(f"{name} {version}" for name, version in by_name.items())


def gravest_first(cells: Sequence[CellRecord]) -> list[CellRecord]:
    """Return the cells sorted by outcome, the gravest first, otherwise in their order."""
    return sorted(cells, key=lambda cell: GRAVEST_FIRST.index(cell.outcome))


def step(record: Record, cell: CellRecord) -> str:
    """Return how long a step of a script takes: only the script itself knows its epochs."""
    place = (cell.trainer, cell.workload, measured_mode(cell.mode, cell.world_size), cell.world_size)
    found = (arm for arm in record.arms if (arm.trainer, arm.workload, arm.mode, arm.world_size) == place)
    arm = next(found, None)
    if arm is None or cell.samples_per_s is None:
        return "no time a step"
    return f"{1e3 * arm.global_batch / cell.samples_per_s.estimate:.3g} ms a step"


def speed(cell: CellRecord) -> str:
    """Return the samples a second of a cell, and of texts the tokens."""
    figures_of = {"samples/s": cell.samples_per_s, "tokens/s": cell.tokens_per_s}
    known = [f"{interval(figure, ',.0f', bounds=False)} {unit}" for unit, figure in figures_of.items() if figure]
    return ", ".join(known) or "- samples/s"
