"""Known causes for not scaling, planted one at a time: does the waterfall name them first?

    python -m docs.evidence.causes
    python -m docs.evidence.causes --only serial --only "slow rank"
    python -m docs.evidence.causes --table

Each is a run of `pytest -m scaling` on two CPU ranks, one cell beside its one-device yardstick, with a trainer, a
workload or a neighbour that has one thing wrong with it (`docs.evidence.planted_causes`). `causes.json` keeps what the
runs said. Exit status 1 when a planted cause was not named first.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from docs.evidence.log import ROOT
from suite.records.files import read_model, write_atomically
from suite.records.record import Record, WaterfallRecord

FOUND = Path(__file__).with_name("causes.json")
BUDGET_S = 75  # three sessions and their starts

WORKLOADS = """\
[tool.scaling.workloads.images]
model = "lenet"
dataset = "docs.evidence.planted_causes:images"
batch = 256
lr = 0.01
init = "default"

[tool.scaling.workloads.narrow]
model = "docs.evidence.planted_causes:narrow"
dataset = "docs.evidence.planted_causes:images"
batch = 16
lr = 0.01

[tool.scaling.workloads.hungry]
model = "docs.evidence.planted_causes:linear"
batch = 256
lr = 0.01
loader = "book"

[tool.pytest.ini_options]
"""


@dataclass(frozen=True)
class Cause:
    """What is planted, and which of `suite.verdict.diagnose.CAUSES` are right to name first; none where nothing is."""

    name: str
    trainer: str = "ddp"
    workload: str = "images"
    expected: tuple[str, ...] = ()
    neighbour: bool = False


PLANTED = "docs.evidence.planted_causes:"
CAUSES = (
    Cause("nothing"),
    Cause("slow loader", workload="hungry", expected=("feed",)),
    Cause("delayed exchange", trainer=PLANTED + "DelayedExchange", expected=("exchange",)),
    Cause("slow rank", trainer=PLANTED + "SlowRank", expected=("imbalance",)),
    Cause("tiny batch", workload="narrow", expected=("small batch",)),
    # On two cores it either slows both ranks in turn or holds on to one of them.
    Cause("busy neighbour", expected=("contention", "imbalance"), neighbour=True),
    Cause("serial trainer", trainer=PLANTED + "Serial", expected=("overhead",)),
)


@dataclass(frozen=True)
class Named:
    """What a run said of one cause."""

    cause: str
    expected: tuple[str, ...]
    named: tuple[str, ...]
    right: bool
    ideal_ms: float
    measured_ms: float
    bars_ms: dict[str, tuple[float, float | None, float | None]]
    sentence: str


@contextlib.contextmanager
def neighbour() -> Iterator[None]:
    """A process that uses all of one core, wherever the system puts it."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def one_run(cause: Cause, folder: Path) -> Record:
    """Run the gate on one planted cause.

    Args:
        cause: what is planted.
        folder: an empty one.

    Raises:
        RuntimeError: pytest left no record.
    """
    (folder / "pyproject.toml").write_text(WORKLOADS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "suite.plugin", "--pyargs", "suite.benchmarks"]
    command += ["-m", "scaling", "-k", "test_scaling", "--scaling-devices", "cpu:2", "--scaling-world-sizes", "2"]
    command += ["--scaling-mode", "strong", "--scaling-trainer", cause.trainer, "--scaling-workload", cause.workload]
    command += ["--scaling-budget", str(BUDGET_S), f"--scaling-data-root={ROOT / 'data'}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with neighbour() if cause.neighbour else contextlib.nullcontext():
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    records = list(folder.glob("reports/*/runs/*/record.json"))
    if len(records) != 1:
        said = done.stdout[-2000:] + done.stderr[-2000:]
        raise RuntimeError(f"{cause.name}: {len(records)} records, expected one:\n{said}")
    return read_model(records[0], Record)


def named(cause: Cause, found: WaterfallRecord) -> Named:
    """Which cause a waterfall names first, and whether that was the planted one."""
    largest = max(found.bars, key=lambda bar: bar.step_s.estimate)
    bars = {" + ".join(bar.causes): tuple(_ms(v) for v in _ends(bar.step_s)) for bar in found.bars}
    right = not cause.expected or (len(largest.causes) == 1 and largest.causes[0] in cause.expected)
    return Named(
        cause=cause.name,
        expected=cause.expected,
        named=largest.causes,
        right=right,
        ideal_ms=round(found.ideal_s.estimate * 1e3, 2),
        measured_ms=round(found.measured_s.estimate * 1e3, 2),
        bars_ms=bars,  # type: ignore[arg-type]
        sentence=found.sentence,
    )


def _ends(interval: object) -> tuple[float | None, ...]:
    return tuple(getattr(interval, name) for name in ("estimate", "low", "high"))


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 2)


def table(rows: Sequence[Named]) -> str:
    """Markdown: what was planted, what was named, and every bar in milliseconds a step with its interval."""
    lines = ["| planted | named first | ideal → measured | bars, ms a step [95 %] |", "|---|---|---|---|"]
    for row in rows:
        bars = ", ".join(f"{name} {_bar(values)}" for name, values in row.bars_ms.items())
        mark = "" if row.right else " (wrong)"
        lines.append(
            f"| {row.cause} | {' + '.join(row.named)}{mark} | {row.ideal_ms:.1f} → {row.measured_ms:.1f} ms | {bars} |"
        )
    return "\n".join(lines)


def _bar(values: tuple[float, float | None, float | None]) -> str:
    estimate, low, high = values
    return f"{estimate:.1f}" if low is None or high is None else f"{estimate:.1f} [{low:.1f}, {high:.1f}]"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for, keep it, and print the table."""
    parser = argparse.ArgumentParser(description="Plant causes for not scaling, and see whether they are named.")
    parser.add_argument("--only", action="append", choices=[cause.name for cause in CAUSES], help="repeatable")
    parser.add_argument("--table", action="store_true", help="print what is kept, run nothing")
    asked = parser.parse_args(arguments)
    kept = {row["cause"]: Named(**row) for row in json.loads(FOUND.read_text())} if FOUND.exists() else {}
    for cause in CAUSES:
        if asked.table or (asked.only and cause.name not in asked.only):
            continue
        with tempfile.TemporaryDirectory() as folder:
            [cell] = one_run(cause, Path(folder)).cells
        if not cell.waterfalls:
            raise RuntimeError(f"{cause.name}: no waterfall: {cell.reason} {cell.details} {cell.waterfall_note}")
        kept[cause.name] = named(cause, cell.waterfalls[0])
        print(f"{cause.name}: {kept[cause.name].sentence}", flush=True)
        rows = [asdict(kept[known.name]) for known in CAUSES if known.name in kept]
        write_atomically(FOUND, json.dumps(rows, indent=1) + "\n")
    rows_kept = [kept[cause.name] for cause in CAUSES if cause.name in kept]
    print(table(rows_kept))
    return 0 if all(row.right for row in rows_kept) else 1


if __name__ == "__main__":
    sys.exit(main())
