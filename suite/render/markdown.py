"""A record as `summary.md`: fits a CI job summary or a comment on a pull request."""

from __future__ import annotations

from collections import Counter

from suite.record import Record
from suite.render import figures


def render(record: Record) -> str:
    """Verdicts first, then the table, what was trained, and where it ran. Text from the record is escaped."""
    counts = Counter(cell.outcome.value for cell in record.cells)
    verdicts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    timed_on = sorted(record.datasets.items())
    commit = record.environment.commit[:12] + (" (with uncommitted changes)" if record.environment.dirty else "")
    lines = [
        f"# Scaling: {verdicts or 'no cells'}",
        "",
        *(
            ["**Cut short: what follows was measured before the run was interrupted.**", ""]
            if record.interrupted
            else []
        ),
        f"Commit {_text(commit)}, compared with {_text(figures.compared_with(record))}, "
        f"tolerance {record.tolerance:.1%}, {len(record.sessions)} sessions in {record.wall_s:.0f} s. Timed on "
        + ", ".join(f"{_text(name)}: {_text(data)} ({record.epoch_samples[name]:,} samples)" for name, data in timed_on)
        + ".",
        "",
        "| " + " | ".join(figures.COLUMNS) + " |",
        "|" + "---|" * len(figures.COLUMNS),
        *("| " + " | ".join(map(_text, figures.row(record, cell))) + " |" for cell in record.cells),
        "",
        "Square brackets are 95 % intervals over sessions (fresh processes). Efficiency is R_k / (k R_1) of the same "
        "trainer; the speed-up is over the plain trainer on one device.",
        "",
    ]
    reasons = dict.fromkeys((cell.outcome.value, cell.reason) for cell in record.cells)
    lines += ["## Why", "", *(f"- {outcome}: {_text(reason)}" for outcome, reason in reasons), ""]
    checks = [(cell, check) for cell in record.cells for check in cell.checks]
    if checks:
        lines += ["## What each rule found", "", "| cell | rule | against | outcome | why |", "|---|---|---|---|---|"]
        for cell, check in checks:
            outcome = check.outcome.value if check.counts else f"{check.outcome.value}, shown only"
            parts = (cell.id, check.rule, check.against, outcome, check.reason)
            lines.append("| " + " | ".join(map(_text, parts)) + " |")
        lines.append("")
    details = [cell for cell in record.cells if cell.details]
    for cell in details:
        lines += [
            f"<details><summary>{_text(cell.id)}</summary>",
            "",
            "```",
            cell.details.replace("```", "'''"),
            "```",
            "",
            "</details>",
            "",
        ]
    if record.accuracies:
        lines += [
            "## Accuracy by epoch",
            "",
            "| trainer | workload | k | dataset | epochs | accuracy |",
            "|---|---|---|---|---|---|",
        ]
        for run in record.accuracies:
            curve = " ".join(f"{value:.3f}" for value in run.per_epoch)
            note = f" ({run.shortened})" if run.shortened else ""
            cells = (run.trainer, run.workload, str(run.world_size), run.dataset, f"{len(run.per_epoch)}{note}", curve)
            lines.append("| " + " | ".join(map(_text, cells)) + " |")
        lines.append("")
    closing = figures.closing_lines(record)
    lines += [*(["```", *(line.replace("`", "'") for line in closing), "```", ""] if closing else [])]
    machine = record.machine
    gpus = f", GPUs {', '.join(machine.gpus)}, driver {machine.driver}" if machine.gpus else ""
    versions = ", ".join(f"{name} {version}" for name, version in record.environment.versions.items())
    lines += [
        "## Machine",
        "",
        f"{_text(machine.key)}: {_text(machine.cpu_model)}, {machine.cpu_cores} cores, "
        f"{machine.memory_bytes / 2**30:.0f} GiB{_text(gpus)}. "
        f"{_text(machine.system)}. {_text(versions)}.",
        "",
        f"{figures.disturbances(record)}",
        "",
        *(f"- Not alone: {_text(neighbour)}" for neighbour in record.neighbours),
        *([""] if record.neighbours else []),
        *(f"    {line}" for line in (*record.settings, *record.plan)),
    ]
    return "\n".join(lines) + "\n"


def _text(value: str) -> str:
    """Plain text inside Markdown: no markup, no table cell, no HTML of its own."""
    for mark, replacement in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("`", "\\`"), ("\n", " ")):
        value = value.replace(mark, replacement)
    return value
