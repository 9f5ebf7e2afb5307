"""The page of one run: its first screen, and its sections, each with a template of its name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from markupsafe import Markup

from suite.records.baselines import Baseline
from suite.records.record import Record
from suite.render import figures
from suite.render.html import communication, learning, lost_time, machine, projection, scaling, verdicts
from suite.render.html.environment import environment, page
from suite.render.lead import facts, steps, title


def render(record: Record, baseline: Baseline | None = None) -> str:
    """Return one self-contained page: it loads nothing, runs nothing, and needs no network.

    It links to `record.json` and `summary.md` in its folder, and to the machine's history two folders above. Without
    the baseline of its machine it does not show what changed since then.
    """
    sections = [
        (name, title, Markup(environment().get_template(f"{name}.html.j2").render(content)))  # noqa: S704 - escaped
        for name, title, content in _sections(record, baseline)
        if content is not None
    ]
    return page(
        "report.html.j2",
        sections=sections,
        counts=figures.counts(cell.outcome for cell in record.cells),
        title=title(record),
        facts=facts(record),
        steps=steps(record),
        compared=figures.is_compared(record),
        commit=figures.commit(record.environment),
        started=f"{figures.when(record.started_utc)} UTC",
        compared_with=figures.compared_with(record),
        tolerance=figures.number(record.tolerance, ".1%"),
        took=figures.took(record),
        record=record,
        cut_short=figures.cut_short(record),
    )


def _sections(record: Record, baseline: Baseline | None) -> Iterable[tuple[str, str, Mapping[str, object] | None]]:
    """Yield name, title and content of every section, in reading order; the content is None where there is nothing."""
    accepted = verdicts.newest(record, baseline)
    yield "verdicts", "Verdicts", verdicts.verdicts(record)
    yield "comparisons", "What each rule found", verdicts.rules(record)
    yield "counters", "What one step does", verdicts.counted(record)
    yield "scaling", "Speed-up and efficiency", scaling.curves(record, accepted)
    yield "costs", "At which k to stop", scaling.costs(record)
    yield "lost_time", "Where the time went", lost_time.waterfalls(record)
    yield "learning", "Accuracy", learning.accuracy(record)
    yield "book", "Published figures and ours", learning.book(record)
    yield "communication", "Communication", communication.sweeps(record)
    yield "projection", "What to expect of more devices", projection.projected(record)
    yield "machine", "The machine", machine.machine(record, accepted)
    yield "accepting", "Accepting it as a baseline", verdicts.accepting(record, baseline)
    yield "samples", "Raw samples", machine.samples(record)
