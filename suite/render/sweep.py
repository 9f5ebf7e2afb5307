"""A sweep as a table in the terminal, as Markdown, and as one self-contained HTML page."""

from __future__ import annotations

from typing import Literal

from suite.plan.cells import short
from suite.records.sweep import LINEAR_WARMUP, ONE_DEVICE, Start, Sweep
from suite.render.html.chart import Axis, Chart, Point, Series, figure
from suite.render.html.environment import page
from suite.render.markdown import text
from suite.render.screen import Screen
from suite.render.sweep_figures import COLUMNS, Found, best_start, found, named, sentences, texts

MAX_CHARTS = 12
_TO_THE_LEFT = ("start", "rule", "mean curve")
EXPLAINED = (
    "A start is batch and learning rate on one device; a rule makes those on k devices of it. Accuracy is that of the "
    "last epoch, mean ± SD over seeds; beside it the mean difference to one device at the same start, paired by seed, "
    "with a 95 % t-interval."
)


def title(sweep: Sweep) -> str:
    """What was swept."""
    return f"Sweep: {short(sweep.trainer)}, {sweep.workload.name} on {sweep.dataset}"


def about(sweep: Sweep) -> str:
    """How the nets were trained, in a sentence."""
    climb = f", warm-up over {sweep.warmup_epochs}" if LINEAR_WARMUP in sweep.grid.rules else ""
    return (
        f"{len(sweep.shown())} nets, each fresh from its seed; {sweep.epochs} epochs of {sweep.train_samples:,} samples"
        f"{climb}; {sweep.test_samples:,} test samples, one of which is {1 / sweep.test_samples:.4f}."
    )


def where(sweep: Sweep) -> str:
    """The machine and the versions, in a sentence."""
    versions = ", ".join(f"{name} {version}" for name, version in sweep.environment.versions.items())
    changed = " with uncommitted changes" if sweep.environment.dirty else ""
    return (
        f"{sweep.machine.cpu_model} ({sweep.machine.key}). {versions}. Commit {sweep.environment.commit[:12]}{changed}."
    )


def left(sweep: Sweep) -> list[str]:
    """What was asked for and is not there, in sentences."""
    missing = len(sweep.missing())
    lines = [f"{missing} nets are missing; the same command goes on with them."] if missing else []
    for one in sweep.failed:
        what = f"{one.world_size} device(s), batch {one.batch}, lr {one.lr:g}, seed {one.seed}"
        lines.append(f"failed: {what}: {one.cause}")
    return lines


def terminal(sweep: Sweep, width: int) -> str:
    """The table and what it says.

    Args:
        sweep: may be unfinished.
        width: columns of the terminal.
    """
    screen = Screen(width)
    screen.table(COLUMNS, map(texts, found(sweep)), left=_TO_THE_LEFT, whole=COLUMNS)
    for line in [about(sweep), *sentences(sweep), *left(sweep)]:
        screen.line(line)
    return screen.text()


def markdown(sweep: Sweep) -> str:
    """The same for a pull request; text from the file is escaped."""
    lines = [
        f"# {text(title(sweep))}",
        "",
        text(about(sweep)),
        "",
        *(f"- {text(line)}" for line in [*sentences(sweep), *left(sweep)]),
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
        *(f"| {' | '.join(map(text, texts(one)))} |" for one in found(sweep)),
        "",
        EXPLAINED,
        "",
        text(where(sweep)),
    ]
    return "\n".join(lines) + "\n"


def html(sweep: Sweep) -> str:
    """The same with pictures, in one file that loads nothing."""
    rows = found(sweep)
    drawn = charts(sweep, rows)
    columns = COLUMNS[: COLUMNS.index("mean curve")]  # the pictures have the curves
    return page(
        "sweep.html.j2",
        title=title(sweep),
        about=about(sweep),
        where=where(sweep),
        explained=EXPLAINED,
        sentences=sentences(sweep),
        left=left(sweep),
        columns=columns,
        rows=[texts(one)[: len(columns)] for one in rows],
        numbers=tuple(number for number, name in enumerate(columns) if name not in _TO_THE_LEFT),
        charts=[figure(chart) for chart in drawn[:MAX_CHARTS]],
        left_out=max(0, len(drawn) - MAX_CHARTS),
    )


def charts(sweep: Sweep, rows: list[Found]) -> list[Chart]:
    """For each batch and world size accuracy over the rate and by epoch, and at last the seconds of an epoch."""
    drawn = []
    for batch in sweep.grid.batches:
        here = [one for one in rows if one.row.start.batch == batch]
        sizes = sorted({one.row.setting.world_size for one in here})
        for size in [size for size in sizes if size > 1] or sizes:
            shown = [one for one in here if one.row.setting.world_size in (1, size)]
            drawn += [_over_rates(shown, batch, size), *_by_epoch(shown, best_start(rows, batch), size)]
    return [*drawn, _seconds(sweep, rows)] if rows else []


def _over_rates(rows: list[Found], batch: int, size: int) -> Chart:
    rates = sorted({one.row.start.lr for one in rows})
    return Chart(
        title=f"Accuracy by rule, {_devices(size)}, batch {batch} a device",
        x=Axis("learning rate on one device", log=True, ticks=tuple((rate, f"{rate:g}") for rate in rates)),
        y=Axis("accuracy after the last epoch", form=".3f"),
        series=tuple(
            Series(name, tuple(sorted((_accuracy(one) for one in group), key=lambda point: point.x)), kind=_kind(name))
            for name, group in _by_rule(rows).items()
        ),
        description="Mean over seeds, whiskers to the lowest and the highest; a point has the rate that the rule made.",
        interval="lowest to highest seed",
    )


def _by_epoch(rows: list[Found], start: Start | None, size: int) -> list[Chart]:
    chosen = [one for one in rows if one.row.start == start]
    if start is None or not chosen:
        return []
    series = tuple(
        Series(name, tuple(Point(epoch, value) for epoch, value in enumerate(group[0].curve, 1)), kind=_kind(name))
        for name, group in _by_rule(chosen).items()
    )
    return [
        Chart(
            title=f"Learning curves from ({named(start)}), {_devices(size)}",
            x=Axis("epoch"),
            y=Axis("accuracy, mean over seeds", form=".3f"),
            series=series,
        )
    ]


def _seconds(sweep: Sweep, rows: list[Found]) -> Chart:
    series = []
    for batch in sweep.grid.batches:
        by_size: dict[int, list[float]] = {}
        for one in rows:
            if one.row.start.batch == batch:
                by_size.setdefault(one.row.setting.world_size, []).append(one.sec_per_epoch)
        points = tuple(Point(size, sum(all_) / len(all_)) for size, all_ in sorted(by_size.items()))
        series.append(Series(f"batch {batch} a device", points))
    sizes = sorted({one.row.setting.world_size for one in rows})
    return Chart(
        title="Seconds an epoch",
        x=Axis("devices", log=True, ticks=tuple((size, str(size)) for size in sizes)),
        y=Axis("s / epoch", include=(0.0,)),
        series=tuple(series),
        description="Training alone, the median over epochs and nets; nothing was interleaved, so it judges no speed.",
    )


def _by_rule(rows: list[Found]) -> dict[str, list[Found]]:
    groups: dict[str, list[Found]] = {}
    for one in rows:
        groups.setdefault("1 device" if one.row.rule == ONE_DEVICE else one.row.rule, []).append(one)
    return groups


def _accuracy(one: Found) -> Point:
    note = f"lr {one.row.setting.lr:g}, {len(one.last)} seed(s)"
    return Point(one.row.start.lr, one.mean, min(one.last), max(one.last), note)


def _kind(name: str) -> Literal["measured", "base"]:
    return "base" if name == "1 device" else "measured"


def _devices(size: int) -> str:
    return "1 device" if size == 1 else f"{size} devices"
