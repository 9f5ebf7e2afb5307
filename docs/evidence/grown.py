"""An exchange or a feed that is a tenth slower, and a slow tail: are they said within six minutes?

    python -m docs.evidence.grown --each 5 --minutes 120
    python -m docs.evidence.grown --table

The first, repeated until nothing is missing, makes runs of `pytest -m scaling --scaling-profile full
--scaling-budget 360` for one cell of two CPU ranks next to a base, and appends a line for each to `grown.jsonl`; the
second prints them. `docs.evidence.planted_causes` has the trainers. Kinds have a twin, `same`, whose candidate is
its base under another name: whatever is said of it is wrong.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from docs.evidence import causes
from docs.evidence.causes import PLANTED, Cause
from docs.evidence.log import Line, command_line, fill, read_log
from docs.evidence.replay import rate
from suite.records.record import Record
from suite.verdict import Outcome
from suite.verdict.diagnose import CAUSES, OWN_WORK

LOG = Path(__file__).with_name("grown.jsonl")
OPTIONS = ("--scaling-profile=full", "--scaling-budget=360")
TAIL = "tail"


@dataclass(frozen=True)
class Kind:
    """What is planted, and beside which base."""

    part: str  # a part of the step, or `TAIL`; "" where nothing is planted
    trainer: str
    base: str
    workload: str
    tolerance: float = 0.05


_PAIRS = {
    "exchange": Kind("exchange", PLANTED + "SlowExchange", PLANTED + "Exposed", "wide"),
    "feed": Kind("feed", PLANTED + "SlowFeed", "ddp", "loaded"),
    "only feed": Kind("feed", PLANTED + "SlowFeed", "ddp", "hungry"),
    "feed from storage": Kind("feed", PLANTED + "SlowlyStored", PLANTED + "Stored", "stored"),
    TAIL: Kind(TAIL, PLANTED + "Tail", "ddp", "images"),
}
_TOLERANT = {"exchange": 0.1, "feed from storage": 0.3}
KINDS = {
    **_PAIRS,
    **{f"same {name}": Kind("", kind.base, kind.base, kind.workload) for name, kind in _PAIRS.items()},
    **{f"{name}, within the tolerance": replace(_PAIRS[name], tolerance=m) for name, m in _TOLERANT.items()},
}


def one_line(name: str, folder: Path) -> Line:
    """Make a run, and return its line; raises as `causes.one_run`."""
    kind = KINDS[name]
    cause = Cause(trainer=kind.trainer, workload=kind.workload)
    options = (*OPTIONS, f"--scaling-against=trainer:{kind.base}", f"--scaling-tolerance={kind.tolerance}")
    return line_of(name, causes.one_run(cause, {}, folder, options))


def line_of(name: str, record: Record) -> Line:
    """Return what the log keeps of a run: what is said of its cell, and times of both sides in milliseconds a step."""
    [cell] = record.cells
    grew = [fall.sentence for fall in cell.waterfalls if fall.side == "candidate" and cell.outcome is Outcome.FAIL]
    return {
        "kind": name,
        "outcome": cell.outcome.value,
        "utc": record.started_utc,
        "wall_s": round(record.wall_s, 1),
        "sessions": len(record.sessions),
        "taken_apart": max((fall.sessions for fall in cell.waterfalls), default=0),
        "ratio": cell.slowdown and round(cell.slowdown.estimate, 4),
        "said": [*cell.cautions, *grew],
        "sides_ms": {fall.side: causes.bars_ms(fall) for fall in cell.waterfalls},
        "reason": cell.reason,
        "machine_key": record.machine.key,
        "versions": record.environment.versions,
    }


def said(line: Line) -> set[str]:
    """Return the parts that are said to have grown, and `TAIL`."""
    longer = {name for text in line["said"] for name in (*CAUSES, OWN_WORK) if f"{name} takes" in text}
    return longer | {TAIL for text in line["said"] if "slow tail grew" in text}


def table(lines: Iterable[Line]) -> str:
    """Return the log as Markdown, a row for each kind."""
    head = ["planted", "runs", "it alone was named (exact 95 %)", "nothing", "another part", "outcomes"]
    head += ["step longer by", "sessions", "median s"]
    rows = [" | ".join(head), "|".join(["---"] * len(head))]
    for name, kind in KINDS.items():
        if not (ran := [line for line in lines if line["kind"] == name]):
            continue
        wanted = {kind.part} if kind.part else set()
        parts = [said(line) for line in ran]
        outcomes = [line["outcome"] for line in ran]
        row = [name, len(ran), rate(parts.count(wanted), len(ran), 0), parts.count(set())]
        row += [sum(bool(part - wanted) for part in parts)]
        row += [", ".join(f"{outcomes.count(each)} {each}" for each in dict.fromkeys(outcomes))]
        row += [f"{statistics.median(line['ratio'] - 1 for line in ran):.1%}"]
        row += [f"{statistics.median(line['taken_apart'] for line in ran):.0f}"]
        row += [f"{statistics.median(line['wall_s'] for line in ran):.0f}"]
        rows.append(" | ".join(map(str, row)))
    return "\n".join(f"| {row} |" for row in rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that the log lacks, or print its table."""
    parser = command_line("Make one part of a step a tenth longer, and see whether it is said.", LOG, each=5)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS), help="these kinds (default: all)")
    asked = parser.parse_args(arguments)
    try:
        if asked.table:
            print(table(read_log(asked.log)))
        else:
            fill(asked.log, dict.fromkeys(asked.only, asked.each), one_line, minutes=asked.minutes, mixed=asked.mixed)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
