"""Known causes of lost time, planted one or two at a time: is the right one named?

    python -m docs.evidence.causes --each 15 --minutes 120
    python -m docs.evidence.causes --grown --each 5 --minutes 120
    python -m docs.evidence.causes --table

The first makes runs of one cell and its one-device yardstick on two CPU ranks, two minutes each, with a trainer, a
workload or a neighbour that has one or two things wrong with it, of sizes drawn at random: is the largest cause the
largest bar, and is it named? With `--grown`, a run compares a cell with a base within six minutes (full profile), and
the candidate's exchange or feed is a tenth slower, or every twentieth step takes twice as long: is that said? Kinds
`same ...` compare a base with itself under another name, where whatever is said is wrong.

The trainers, nets and data are in `tests.support.planted_causes`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from docs.evidence.log import ROOT, Line, command_line, fill, interruptible, markdown, rate, read_log
from docs.evidence.runs import neighbour, pytest_once
from suite.records.record import Record, WaterfallRecord
from suite.verdict import Outcome
from suite.verdict.diagnose import CAUSES as PARTS
from suite.verdict.diagnose import OWN_WORK
from tests.support.planted_causes import VARIABLE

DELAY_S = (0.010, 0.060)  # the largest delay is between a third of a step of LeNet, about 30 ms, and two steps
APART = (1.5, 3.0)  # of two delays, the larger is so many times the other
NARROW_S = 0.006  # what a step of "narrow" loses by its small batch, about; a delay beside it is far from that
FAR = 4.0
TAIL = "tail"

PLANTED = "tests.support.planted_causes:"


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

    Attributes:
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


@dataclass(frozen=True)
class Growth:
    """What is longer than in the base: a part of the step, `TAIL`, or "" for nothing."""

    part: str
    trainer: str
    base: str
    workload: str
    tolerance: float = 0.05


_PAIRS = {
    "exchange": Growth("exchange", PLANTED + "SlowExchange", PLANTED + "Exposed", "wide"),
    "feed": Growth("feed", PLANTED + "SlowFeed", "ddp", "loaded"),
    "only feed": Growth("feed", PLANTED + "SlowFeed", "ddp", "hungry"),
    "feed from storage": Growth("feed", PLANTED + "SlowlyStored", PLANTED + "Stored", "stored"),
    TAIL: Growth(TAIL, PLANTED + "Tail", "ddp", "images"),
}
_TOLERANT = {"exchange": 0.1, "feed from storage": 0.3}
GROWTHS = {
    **_PAIRS,
    **{f"same {name}": Growth("", pair.base, pair.base, pair.workload) for name, pair in _PAIRS.items()},
    **{f"{name}, within the tolerance": replace(_PAIRS[name], tolerance=m) for name, m in _TOLERANT.items()},
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


def one_run(cause: Cause, delays_s: Mapping[str, float], folder: Path, options: Sequence[str]) -> Record:
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
    with neighbour("while True: pass") if cause.neighbour else contextlib.nullcontext():
        return pytest_once(command, folder, folder, environment)[1]


def planted(name: str, folder: Path) -> Line:
    """Make a run of `CAUSES` with delays drawn at random, and return its line."""
    cause = CAUSES[name]
    delays_s, right = draw(cause, random.SystemRandom())
    return line_of(name, delays_s, right, one_run(cause, delays_s, folder, ("--scaling-budget=120",)))


def grown(name: str, folder: Path) -> Line:
    """Make a run of `GROWTHS`, and return its line."""
    kind = GROWTHS[name]
    options = ["--scaling-profile=full", "--scaling-budget=360"]
    options += [f"--scaling-against=trainer:{kind.base}", f"--scaling-tolerance={kind.tolerance}"]
    return grown_line(name, one_run(Cause(trainer=kind.trainer, workload=kind.workload), {}, folder, options))


def line_of(name: str, delays_s: Mapping[str, float], right: Sequence[str], record: Record) -> Line:
    """Return what the log keeps of a run of `CAUSES`; times in milliseconds a step.

    Raises:
        RuntimeError: the cell has no waterfall.
    """
    [cell] = record.cells
    if not cell.waterfalls:
        raise RuntimeError(f"{name}: no waterfall: {cell.reason} {cell.details} {cell.why('waterfall')}")
    fall = cell.waterfalls[0]
    return {
        "kind": name,
        "delays_ms": {cause: 1e3 * delay_s for cause, delay_s in delays_s.items()},
        "right": list(right),
        "largest": list(max(fall.bars, key=lambda bar: bar.step_s.estimate).causes),
        "named": None if fall.named is None else list(fall.bars[fall.named].causes),
        "ideal_ms": _ms(fall.ideal_s.estimate),
        "measured_ms": _ms(fall.measured_s.estimate),
        "bars_ms": bars_ms(fall),
        "sentence": fall.sentence,
        "taken_apart": fall.sessions,
        **_about(record),
    }


def grown_line(name: str, record: Record) -> Line:
    """Return what the log keeps of a run of `GROWTHS`: what is said of its cell, and the times of both sides."""
    [cell] = record.cells
    grew = [fall.sentence for fall in cell.waterfalls if fall.side == "candidate" and cell.outcome is Outcome.FAIL]
    return {
        "kind": name,
        "outcome": cell.outcome.value,
        "ratio": cell.slowdown and round(cell.slowdown.estimate, 4),
        "said": [*cell.cautions, *grew],
        "sides_ms": {fall.side: bars_ms(fall) for fall in cell.waterfalls},
        "reason": cell.reason,
        "taken_apart": max((fall.sessions for fall in cell.waterfalls), default=0),
        **_about(record),
    }


def _about(record: Record) -> Line:
    """Return when and where a run was made."""
    about = {"utc": record.started_utc, "wall_s": round(record.wall_s, 1), "sessions": len(record.sessions)}
    return {**about, "machine_key": record.machine.key, "versions": record.environment.versions}


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


def said(line: Line) -> set[str]:
    """Return the parts that are said to have grown, and `TAIL`."""
    longer = {name for text in line["said"] for name in (*PARTS, OWN_WORK) if f"{name} takes" in text}
    return longer | {TAIL for text in line["said"] if "slow tail grew" in text}


def table(lines: Sequence[Line]) -> str:
    """Return the log of `CAUSES` as Markdown: a row for each, one for those with one cause, and one for two."""
    groups = {name: [line for line in lines if line["kind"] == name] for name in CAUSES}
    for count in (1, 2):
        some = [name for name, cause in CAUSES.items() if bool(cause.own) + len(cause.delayed) == count]
        groups[f"**{('one cause', 'two causes')[count - 1]}**"] = [
            line for name in some if name != NOTHING for line in groups[name]
        ]
    rows = []
    for label, ran in groups.items():
        if not ran:
            continue
        right = sum(is_right(line, "named") for line in ran)
        unnamed = sum(line["named"] is None for line in ran)
        lost = [line["measured_ms"] - line["ideal_ms"] for line in ran]
        widths = [width for line in ran if (width := half_width(line)) is not None]
        row = [label, len(ran), rate(sum(is_right(line, "largest") for line in ran), len(ran), 0)]
        row += [right, len(ran) - right - unnamed, unnamed, f"{min(lost):.1f} to {max(lost):.1f}"]
        row += [f"{statistics.median(widths):.1%}" if widths else "-"]
        rows.append([*row, f"{statistics.median(line['wall_s'] for line in ran):.0f}"])
    head = ["planted", "runs", "largest bar right (exact 95 %)", "named right", "named wrong", "not named"]
    return markdown([*head, "lost, ms a step", "half width of a bar", "median s"], rows)


def grown_table(lines: Sequence[Line]) -> str:
    """Return the log of `GROWTHS` as Markdown, a row for each."""
    rows = []
    for name, kind in GROWTHS.items():
        if not (ran := [line for line in lines if line["kind"] == name]):
            continue
        wanted = {kind.part} if kind.part else set()
        parts = [said(line) for line in ran]
        outcomes = [line["outcome"] for line in ran]
        row = [name, len(ran), rate(parts.count(wanted), len(ran), 0), parts.count(set())]
        row += [sum(bool(part - wanted) for part in parts)]
        row += [", ".join(f"{outcomes.count(each)} {each}" for each in dict.fromkeys(outcomes))]
        row += [f"{statistics.median(line['ratio'] - 1 for line in ran):.1%}"]
        rows.append([*row, f"{statistics.median(line['wall_s'] for line in ran):.0f}"])
    head = ["planted", "runs", "it alone was named (exact 95 %)", "nothing", "another part", "outcomes"]
    return markdown([*head, "step longer by", "median s"], rows)


def one_line(name: str, folder: Path) -> Line:
    """Make a run of any kind, and return its line."""
    return planted(name, folder) if name in CAUSES else grown(name, folder)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that the log lacks, or print its tables."""
    parser = command_line(__doc__, "causes")
    parser.add_argument("--each", type=int, default=10, help="runs of each kind that are wanted (default: %(default)s)")
    parser.add_argument("--grown", action="store_true", help="what is slower than in a base")
    parser.add_argument("--only", nargs="+", metavar="KIND", choices=[*CAUSES, *GROWTHS], help="these kinds")
    asked = parser.parse_args(arguments)
    with interruptible(parser):
        if asked.table:
            lines = read_log(asked.log)
            print(table(lines), grown_table(lines), sep="\n\n")
        else:
            fill(asked, dict.fromkeys(asked.only or (GROWTHS if asked.grown else CAUSES), asked.each), one_line)


if __name__ == "__main__":
    main()
