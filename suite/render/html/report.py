"""The page of one run: a table of sections, each a module with a `view` of the record and a template of its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from markupsafe import Markup

from suite.records.baselines import Baseline
from suite.records.record import Record
from suite.render import figures
from suite.render.html import (
    accepting,
    communication,
    comparisons,
    costs,
    learning,
    lost_time,
    machine,
    projection,
    samples,
    scaling,
    verdicts,
)
from suite.render.html.environment import environment, page
from suite.render.lead import is_compared, lead


@dataclass(frozen=True)
class Section:
    """One part of the page; left out where `view` gives None.

    Attributes:
        name: of its template and of its anchor.
    """

    name: str
    title: str
    view: Callable[[Record, Baseline | None], object | None]


SECTIONS = (
    Section("verdicts", "Verdicts", verdicts.view),
    Section("comparisons", "What each rule found", comparisons.view),
    Section("scaling", "Speed-up and efficiency", scaling.view),
    Section("costs", "At which k to stop", costs.view),
    Section("lost_time", "Where the time went", lost_time.view),
    Section("learning", "Accuracy", learning.view),
    Section("book", "Published figures beside ours", learning.book),
    Section("communication", "Communication", communication.view),
    Section("projection", "What to expect of more devices", projection.view),
    Section("machine", "The machine", machine.view),
    Section("accepting", "Accepting it as a baseline", accepting.view),
    Section("samples", "Raw samples", samples.view),
)


def render(record: Record, baseline: Baseline | None = None) -> str:
    """One self-contained page: it loads nothing, runs nothing, and needs no network.

    It links to what lies beside it, `record.json` and `summary.md`, and to the machine's history two folders above.

    Args:
        record: any valid one, of any schema that can be read.
        baseline: what is accepted on its machine; without it, what changed since then is not shown.
    """
    sections = []
    for section in SECTIONS:
        view = section.view(record, baseline)
        if view is not None:
            html = environment().get_template(f"{section.name}.html.j2").render(view=view)
            sections.append((section, Markup(html)))  # noqa: S704 - the output of a template that escapes
    return page(
        "report.html.j2",
        sections=sections,
        counts=figures.counts(record),
        lead=lead(record),
        compared=is_compared(record),
        commit=figures.commit(record),
        started=figures.when(record),
        compared_with=figures.compared_with(record) if is_compared(record) else "nothing yet",
        tolerance=figures.number(record.tolerance, ".1%"),
        sessions=len(record.sessions),
        wall=figures.number(record.wall_s, ".0f"),
        record=record,
    )
