"""A record as `summary.md`: fits a CI job summary or a comment on a pull request.

GitHub takes 1 MiB for the summary of a step. Every section has its share of that, and says so when it was cut; the
gravest cells come first then, and the record has everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from suite.records.record import CellRecord, Record
from suite.render import figures
from suite.render.lead import MOST, Lead, is_compared, lead, no_baseline, verdicts
from suite.render.stopping import stops

MAX_BYTES = 1024 * 1024
MAX_TEXT = 2_000  # characters of one text
MAX_DETAILS = 20_000  # characters of one cell's stacks

# Bytes of each section; the sum leaves a tenth for headings and notes.
_SHARES = {
    "cells": 250_000,
    "lead": 50_000,
    "why": 50_000,
    "no accuracy": 20_000,
    "lost time": 100_000,
    "stops": 50_000,
    "rules": 100_000,
    "details": 200_000,
    "accuracy": 70_000,
    "machine": 70_000,
}


def render(record: Record) -> str:
    """What a reader wants first, then the table, what was trained, and where. Text from the record is escaped."""
    first = lead(record)
    cells = record.cells if len(record.cells) <= 100 else figures.graver_first(record.cells)
    parts = [
        _heading(record, first),
        _lead(first),
        _table(figures.COLUMNS, figures.rows(record, cells), "cells"),
        [
            "Square brackets are 95 % intervals over sessions (fresh processes). Efficiency is R_k / (k R_1) of the "
            "same trainer; the speed-up is over the plain trainer on one device.",
            "",
            *_bounded((f"- {text(line)}" for line in figures.without_accuracy(cells)), "no accuracy"),
            "",
        ],
        _verdicts(record),
        _lost_time(cells),
        _stops(record),
        _rules(cells),
        _details(cells),
        _accuracy(record),
        _machine(record),
    ]
    return "\n".join(line for part in parts for line in part) + "\n"


def _heading(record: Record, first: Lead) -> list[str]:
    timed = ", ".join(
        f"{text(name)}: {text(data)} ({figures.number(record.epoch_samples.get(name, 0), ',')} samples)"
        for name, data in sorted(record.datasets.items())[:20]
    )
    return [
        f"# Scaling: {text(first.title)}",
        "",
        *(
            ["**Cut short: what follows was measured before the run was interrupted.**", ""]
            if record.interrupted
            else []
        ),
        f"Commit {text(figures.commit(record))}, compared with "
        f"{text(figures.compared_with(record)) if is_compared(record) else 'nothing yet'}, "
        f"tolerance {figures.number(record.tolerance, '.1%')}, {len(record.sessions)} sessions in "
        f"{figures.number(record.wall_s, '.0f')} s. Timed on {timed}.",
        "",
    ]


def _lead(first: Lead) -> list[str]:
    lines = []
    for fact in first.facts:
        lines += [f"- **{fact.name}** {text(fact.lines[0])}", *(f"  <br>{text(line)}" for line in fact.lines[1:])]
    steps = "\n".join(f"# {_plain(step.what, MAX_TEXT)}\n{_plain(step.command, MAX_TEXT)}" for step in first.steps)
    return [*_bounded(lines, "lead"), "", *([_fence(steps, "sh"), ""] if steps else [])]


def _verdicts(record: Record) -> list[str]:
    """Every reason with its cells where the lead had no room for all, or why there are no verdicts."""
    if not is_compared(record):
        return [text(no_baseline(record)), ""]
    lines = verdicts(record)
    return ["## Verdicts", "", *_bounded((f"- {text(line)}" for line in lines), "why"), ""] if len(lines) > MOST else []


def _lost_time(cells: Sequence[CellRecord]) -> list[str]:
    sentences = [
        f"- {text(cell.id)}{' (base)' if found.side != 'candidate' else ''}: {text(found.sentence)}"
        for cell in cells
        for found in cell.waterfalls
    ]
    return ["## Where the time went", "", *_bounded(sentences, "lost time"), ""] if sentences else []


def _stops(record: Record) -> list[str]:
    lines = [f"- {text(stop.title)}: {text(stop.sentence)}" for stop in stops(record)]
    return ["## At which k to stop", "", *_bounded(lines, "stops"), ""] if lines else []


def _rules(cells: Sequence[CellRecord]) -> list[str]:
    rows = []
    for cell in cells:
        for check in cell.checks:
            outcome = check.outcome.value if check.counts else f"{check.outcome.value}, shown only"
            rows.append((cell.id, check.rule, check.against, outcome, check.reason))
    columns = ("cell", "rule", "against", "outcome", "why")
    return ["## What each rule found", "", *_table(columns, rows, "rules")] if rows else []


def _details(cells: Sequence[CellRecord]) -> list[str]:
    blocks = (
        f"<details><summary>{text(cell.id)}</summary>\n\n{_fence(cell.details[:MAX_DETAILS])}\n\n</details>\n"
        for cell in cells
        if cell.details
    )
    return _bounded(blocks, "details")


def _accuracy(record: Record) -> list[str]:
    if not record.accuracies:
        return []
    rows = []
    for run in record.accuracies:
        trained = f"{len(run.per_epoch)}{f' ({run.shortened})' if run.shortened else ''}"
        about = (run.trainer, run.workload, str(run.world_size), figures.setting(run), run.dataset, trained)
        rows.append((*about, ", ".join(figures.epochs(run))))
    columns = (
        "trainer",
        "workload",
        "k",
        "trained with",
        "dataset",
        "epochs",
        "after each: accuracy (time, mean loss)",
    )
    closing = figures.closing_lines(record)[:100]
    fenced = [_fence("\n".join(line[:MAX_TEXT] for line in closing)[:MAX_DETAILS]), ""] if closing else []
    return ["## Accuracy by epoch", "", *_table(columns, rows, "accuracy"), *fenced]


def _machine(record: Record) -> list[str]:
    lines = [
        f"{text(figures.machine(record))}. {text(figures.versions(record))}.",
        "",
        figures.disturbances(record),
        "",
        *(f"- Not alone: {text(neighbour)}" for neighbour in record.neighbours),
        *([""] if record.neighbours else []),
        _fence("\n".join(_plain(line, MAX_TEXT) for line in (*record.settings, *record.plan))[:MAX_DETAILS]),
    ]
    return ["## Machine", "", *_bounded(lines, "machine")]


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], share: str) -> list[str]:
    lines = ("| " + " | ".join(map(text, row)) + " |" for row in rows)
    return ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns), *_bounded(lines, share), ""]


def _bounded(lines: Iterable[str], share: str) -> list[str]:
    """The first lines that fit into a section's share, and how many did not."""
    room, kept, dropped = _SHARES[share], [], 0
    for line in lines:
        size = len(line.encode()) + 1
        if dropped or size > room:
            dropped += 1
            continue
        room -= size
        kept.append(line)
    return [*kept, "", f"*{dropped} more left out here; record.json has them.*"] if dropped else kept


def _fence(text: str, language: str = "") -> str:
    return f"```{language}\n" + _encodable(text).replace("`", "'") + "\n```"


def text(value: str) -> str:
    """Plain text inside Markdown: no markup, no table cell, no HTML of its own."""
    value = _plain(value, MAX_TEXT)
    for mark, replacement in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("`", "\\`")):
        value = value.replace(mark, replacement)
    return value


def _plain(value: str, most: int) -> str:
    """One line, of a length that can be read."""
    cut = value if len(value) <= most else f"{value[:most]} …"
    return " ".join(_encodable(cut).splitlines())


def _encodable(value: str) -> str:
    """Without halves of surrogate pairs and without NUL, which JSON may hold and a text file may not."""
    return value.encode("utf-8", "replace").decode("utf-8").replace("\0", "\N{REPLACEMENT CHARACTER}")
