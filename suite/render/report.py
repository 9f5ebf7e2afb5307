"""The page of a run as data: its first screen and its sections, in reading order. Pure."""

from __future__ import annotations

from suite.records.baselines import Baseline
from suite.records.record import Record
from suite.render import figures, lead
from suite.render.document import Document
from suite.render.first import first
from suite.render.sections.cells import cells, rules
from suite.render.sections.details import counted, held, samples
from suite.render.sections.exchange import exchange
from suite.render.sections.learning import learning
from suite.render.sections.lost_time import lost_time
from suite.render.sections.machine import machine, newest
from suite.render.sections.scaling import scaling


def document(record: Record, baseline: Baseline | None = None) -> Document:
    """Return a run's page; without the baseline of its machine it does not show what changed since then."""
    sections = (
        cells(record),
        lost_time(record),
        scaling(record, newest(record, baseline)),
        learning(record),
        exchange(record),
        machine(record, baseline),
        rules(record),
        counted(record),
        held(record),
        samples(record),
    )
    return Document(
        f"Scaling: {lead.title(record)}",
        first(record),
        tuple(section for section in sections if section.blocks),
        _origin(record),
    )


def _origin(record: Record) -> str:
    data = [
        f"{name}: {data} ({figures.number(record.epoch_samples.get(name, 0), ',')} samples)"
        for name, data in sorted(record.datasets.items())[:20]
    ]
    timed = f" Timed on {', '.join(data)}." if data else ""
    return (
        f"Commit {figures.commit(record.environment)} on {record.machine.key}, {figures.when(record.started_utc)} UTC; "
        f"compared with {figures.compared_with(record)}, tolerance {figures.number(record.tolerance, '.1%')}; "
        f"{figures.took(record)}.{timed}"
    )
