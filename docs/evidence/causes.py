"""Known causes for not scaling, with sizes drawn at random: is the largest one the largest bar, and is it named?

    python -m docs.evidence.causes --each 15 --minutes 120
    python -m docs.evidence.causes --table

The first, repeated until nothing is missing, makes runs of `pytest -m scaling` on two CPU ranks and appends a line for
each to `causes.jsonl`; the second prints them. A run has one cell beside its one-device yardstick, two minutes, and a
trainer, a workload or a neighbour with one or two things wrong with it (`docs.evidence.planted_causes`). What is
missing is drawn in a random order.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from docs.evidence.log import ROOT, Line, command_line, fill, read_log
from docs.evidence.planted_causes import VARIABLE
from docs.evidence.replay import rate
from docs.evidence.runs import pytest_once
from suite.records.record import Record, WaterfallRecord

LOG = Path(__file__).with_name("causes.jsonl")
TWO_MINUTES = ("--scaling-budget=120",)
DELAY_S = (0.010, 0.060)  # the largest delay is between a third of a step of LeNet, about 30 ms, and two steps
APART = (1.5, 3.0)  # of two delays, the larger is so many times the other
NARROW_S = 0.006  # what a step of "narrow" loses by its small batch, about; a delay beside it is far from that
FAR = 4.0

PLANTED = "docs.evidence.planted_causes:"


def _workload(name: str, model: str, batch: int, **more: str) -> str:
    """Return a workload's table of TOML."""
    settings = {"model": model, "batch": batch, "lr": 0.01, **more}
    return f"[tool.scaling.workloads.{name}]\n" + "".join(f"{key} = {json.dumps(settings[key])}\n" for key in settings)


_IMAGES = PLANTED + "images"
WORKLOADS = "\n".join(
    [
        _workload("images", "lenet", 256, dataset=_IMAGES, init="default"),
        _workload("narrow", PLANTED + "narrow", 16, dataset=_IMAGES),
        _workload("wide", PLANTED + "wide", 64, dataset=_IMAGES),
        _workload("hungry", PLANTED + "linear", 1024, loader="book"),
        _workload("loaded", "lenet", 256, init="default", loader="book"),
        _workload("stored", "lenet", 64, init="default", loader="book"),
        "[tool.pytest.ini_options]\n",
    ]
)


@dataclass(frozen=True)
class Cause:
    """What is planted, in names of `suite.verdict.diagnose.CAUSES`.

    Args:
        own: the causes that are right to name for what the trainer, workload or neighbour costs by itself.
        delayed: the causes whose delay is drawn.
        trainer: what `--scaling-trainer` takes.
        workload: one of `WORKLOADS`.
        neighbour: whether a process keeps a core busy meanwhile.
    """

    own: tuple[str, ...] = ()
    delayed: tuple[str, ...] = ()
    trainer: str = "ddp"
    workload: str = "images"
    neighbour: bool = False

    @property
    def planted(self) -> int:
        """How many causes there are at once."""
        return bool(self.own) + len(self.delayed)


NOTHING = "nothing"
CAUSES = {
    NOTHING: Cause(own=("exchange",)),  # what DDP always costs
    "slow loader": Cause(own=("feed",), workload="hungry"),
    "tiny batch": Cause(own=("small batch",), workload="narrow"),
    # On two cores it either slows both ranks in turn or holds on to one of them.
    "busy neighbour": Cause(own=("contention", "imbalance"), neighbour=True),
    "serial trainer": Cause(own=("overhead",), trainer=PLANTED + "Serial"),
    "late dispatch": Cause(delayed=("overhead",), trainer=PLANTED + "LateDispatch"),
    "delayed exchange": Cause(delayed=("exchange",), trainer=PLANTED + "DelayedExchange"),
    "slow rank": Cause(delayed=("imbalance",), trainer=PLANTED + "SlowRank"),
    "delayed exchange, slow rank": Cause(
        delayed=("exchange", "imbalance"), trainer=PLANTED + "DelayedExchangeOfASlowRank"
    ),
    "tiny batch, slow rank": Cause(
        own=("small batch",), delayed=("imbalance",), trainer=PLANTED + "SlowRank", workload="narrow"
    ),
}


def draw(cause: Cause, rng: random.Random) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return the delays of a run, in seconds by cause, and the causes that are right to name first."""
    if not cause.delayed:
        return {}, cause.own
    if cause.own:
        larger = rng.random() < 0.5
        delay_s = NARROW_S * (FAR if larger else 1 / FAR)
        return {cause.delayed[0]: round(delay_s, 4)}, cause.delayed if larger else cause.own
    order = rng.sample(cause.delayed, len(cause.delayed))  # the largest delay first
    low_s, high_s = DELAY_S
    delays_s = [math.exp(rng.uniform(math.log(low_s), math.log(high_s)))]
    while len(delays_s) < len(order):
        delays_s.append(delays_s[-1] / rng.uniform(*APART))
    return {name: round(delay_s, 4) for name, delay_s in zip(order, delays_s, strict=True)}, (order[0],)


@contextlib.contextmanager
def neighbour() -> Iterator[None]:
    """Keep all of one core busy, wherever the system puts the process."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def one_run(cause: Cause, delays_s: Mapping[str, float], folder: Path, options: Sequence[str] = TWO_MINUTES) -> Record:
    """Run the gate once, in an empty folder.

    Args:
        cause: what is planted.
        delays_s: of a step, by cause.
        folder: for its settings, output and report.
        options: budget, and what the trainer is compared with.

    Raises:
        RuntimeError: pytest left no record.
    """
    (folder / "pyproject.toml").write_text(WORKLOADS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "suite.plugin", "--pyargs", "suite.benchmarks"]
    command += ["-m", "scaling", "-k", "test_scaling", "--scaling-devices", "cpu:2", "--scaling-world-sizes", "2"]
    command += ["--scaling-mode", "strong", "--scaling-trainer", cause.trainer, "--scaling-workload", cause.workload]
    command += [f"--scaling-data-root={ROOT / 'data'}", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), VARIABLE: json.dumps(delays_s)}
    with neighbour() if cause.neighbour else contextlib.nullcontext():
        return pytest_once(command, folder, folder, environment)[1]


def line_of(name: str, delays_s: Mapping[str, float], right: Sequence[str], record: Record) -> Line:
    """Return what the log keeps of a run, without what is known of the code; times in milliseconds a step.

    Raises:
        RuntimeError: the cell has no waterfall.
    """
    [cell] = record.cells
    if not cell.waterfalls:
        raise RuntimeError(f"{name}: no waterfall: {cell.reason} {cell.details} {cell.why('waterfall')}")
    fall = cell.waterfalls[0]
    return {
        "planted": name,
        "delays_ms": {cause: 1e3 * delay_s for cause, delay_s in delays_s.items()},
        "right": list(right),
        "largest": list(max(fall.bars, key=lambda bar: bar.step_s.estimate).causes),
        "named": None if fall.named is None else list(fall.bars[fall.named].causes),
        "utc": record.started_utc,
        "wall_s": round(record.wall_s, 1),
        "sessions": fall.sessions,
        "ideal_ms": _ms(fall.ideal_s.estimate),
        "measured_ms": _ms(fall.measured_s.estimate),
        "bars_ms": bars_ms(fall),
        "sentence": fall.sentence,
        "machine_key": record.machine.key,
        "versions": record.environment.versions,
    }


def bars_ms(fall: WaterfallRecord) -> dict[str, list[float | None]]:
    """Return estimate, low and high of each bar."""
    ends = ((bar.causes, bar.step_s) for bar in fall.bars)
    return {" + ".join(causes): [_ms(step.estimate), _ms(step.low), _ms(step.high)] for causes, step in ends}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 2)


def is_right(line: Line, field: str) -> bool:
    """Return whether the largest bar, or the named one, is one cause and the planted one, or the larger of the two."""
    return bool(line[field]) and len(line[field]) == 1 and line[field][0] in line["right"]


def half_width(line: Line) -> float | None:
    """Return the median over the bars of half their interval, as a share of the measured step."""
    halves = [(high - low) / 2 for _, low, high in line["bars_ms"].values() if None not in (low, high)]
    return statistics.median(halves) / line["measured_ms"] if halves else None


def table(lines: Iterable[Line]) -> str:
    """Return the log as Markdown: a row for each thing planted, one for those with one cause, and one for two."""
    head = ["planted", "runs", "largest bar right (exact 95 %)", "named right", "named wrong", "not named"]
    head += ["lost, ms a step", "half width of a bar", "median s"]
    rows = [" | ".join(head), "|".join(["---"] * len(head))]
    by_name: dict[str, list[Line]] = {}
    for line in lines:
        by_name.setdefault(line["planted"], []).append(line)
    groups = {name: by_name[name] for name in CAUSES if name in by_name}
    one, two = (
        [line for name, ran in groups.items() for line in ran if CAUSES[name].planted == count and name != NOTHING]
        for count in (1, 2)
    )
    for label, ran in (groups | {"**one cause**": one, "**two causes**": two}).items():
        if not ran:
            continue
        right = sum(is_right(line, "named") for line in ran)
        unnamed = sum(line["named"] is None for line in ran)
        lost = [line["measured_ms"] - line["ideal_ms"] for line in ran]
        widths = [width for line in ran if (width := half_width(line)) is not None]
        row = [label, len(ran), rate(sum(is_right(line, "largest") for line in ran), len(ran), 0)]
        row += [right, len(ran) - right - unnamed, unnamed, f"{min(lost):.1f} to {max(lost):.1f}"]
        row += [f"{statistics.median(widths):.1%}" if widths else "-"]
        row += [f"{statistics.median(line['wall_s'] for line in ran):.0f}"]
        rows.append(" | ".join(map(str, row)))
    return "\n".join(f"| {row} |" for row in rows)


def one_line(name: str, folder: Path) -> Line:
    """Make a run, with delays drawn at random, and return its line."""
    delays_s, right = draw(CAUSES[name], random.SystemRandom())
    return line_of(name, delays_s, right, one_run(CAUSES[name], delays_s, folder))


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that the log lacks, or print its table."""
    parser = command_line("Plant causes for not scaling, and see whether they are named.", LOG, each=15)
    parser.add_argument("--only", nargs="+", choices=CAUSES, default=list(CAUSES), help="these (default: all)")
    asked = parser.parse_args(arguments)
    try:
        if asked.table:
            print(table(read_log(asked.log)))
        else:
            wanted = dict.fromkeys(asked.only, asked.each)
            fill(asked.log, wanted, one_line, minutes=asked.minutes, mixed=asked.mixed, field="planted")
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
