"""What one training step does, counted: by which workers and when, and what it says of a cell.

The first session of a comparison counts a few steps of every cell's arms when everything else of the session is over,
so nothing that is timed is recorded. An arm that cannot be counted keeps its times and says why.
`suite.records.counters` compares two arms; docs/metrics.md defines the counters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from suite.plan.cells import Arm, Cell, Side
from suite.processes.failure import WorkerFailure
from suite.processes.jobs import Counted
from suite.records import counters
from suite.records.counters import Change, Counters
from suite.records.record import CheckRecord, Missing
from suite.run.groups import Groups
from suite.run.observations import Observations
from suite.run.session import Say, Sessions
from suite.run.timer import hang_timeout_s
from suite.verdict import Outcome

STEPS = 3  # the fewest that show a count which varies in turn
SHARE = 0.2  # of the budget is for counting at most; a short step takes a few milliseconds longer when it is recorded


def counting(run: Observations, sessions: Sessions, chosen: Sequence[Cell], say: Say) -> Callable[[Groups], None]:
    """Return a function that counts the steps of these cells, and of their bases, with a session's groups."""

    def count(groups: Groups) -> None:
        start = run.plan.clock()
        for arm in dict.fromkeys(arm for cell in chosen for arm in run.arms(cell).values()):
            if arm in run.counters:
                continue
            left_s = SHARE * run.plan.config.budget.seconds - (run.plan.clock() - start)
            needed_s = (1 + STEPS) * sessions.step_s.get(arm, 0.0)
            if arm not in groups.by_arm:
                run.uncounted[arm] = "its workers had ended before its steps were counted"
            elif needed_s > left_s:
                run.uncounted[arm] = f"it takes {needed_s:.0f} s, and counting has a fifth of the budget"
            else:
                say(f"session {groups.session.number + 1}: counting what a step does: {arm.id}")
                timeout_s = max(run.plan.first_step_s(arm), hang_timeout_s(needed_s))
                _count(run, groups, arm, timeout_s)
        groups.session.counting_s = run.plan.clock() - start

    return count


def _count(run: Observations, groups: Groups, arm: Arm, timeout_s: float) -> None:
    group = groups.by_arm[arm]
    try:
        answers = group.request(Counted, "count", timeout_s, name=arm.id, steps=STEPS)
    except WorkerFailure as failure:
        run.uncounted[arm] = failure.cause
        groups.drop(group)
        return
    run.counters[arm] = counters.merged(answers)
    run.uncounted.pop(arm, None)


def counted(run: Observations, cell: Cell) -> dict[Side, Counters]:
    """Return what a step of the candidate and of its bases does, as far as it was counted."""
    return {side: run.counters[arm] for side, arm in run.arms(cell).items() if arm in run.counters}


def why_none(run: Observations, cell: Cell) -> Missing | None:
    """Return why a cell's own step was not counted; None where it was, or where nothing was to be counted."""
    why = run.uncounted.get(run.plan.own(cell), "")
    return Missing(figure="counters", why=why) if why else None


def checks(run: Observations, cell: Cell) -> tuple[CheckRecord, ...]:
    """Return what changed in a step against each base in the run, and against the newest accepted run.

    Where a change has to fail the cell and a side could not be counted, the cell is INCONCLUSIVE.
    """
    arms, own = run.arms(cell).values(), run.counters.get(run.plan.own(cell))
    missing = [run.uncounted[arm] for arm in arms if arm in run.uncounted]
    bases = [base.label for base in run.comparison.bases.values()] if len(arms) > 1 else []
    labels = bases or [label for label, _ in _others(run, cell)]
    if missing and labels and run.plan.config.counters == "fail":
        reason = f"its step and the base's could not both be counted: {missing[0]}"
        against = ", ".join(labels)
        return (CheckRecord(rule=counters.RULE, against=against, outcome=Outcome.INCONCLUSIVE, reason=reason),)
    return () if own is None else tuple(_check(run, own, label, other) for label, other in _others(run, cell))


def warning(run: Observations, cell: Cell) -> str:
    """Return in words what changed in a step and is no FAIL; "" where nothing did, or other versions counted."""
    own = run.counters.get(run.plan.own(cell))
    if own is None:
        return ""
    by_label = {label: counters.changes(own, other) for label, other in _others(run, cell) if own.comparable(other)}
    said = [f"against {label}: {_said(made)}" for label, made in by_label.items() if made and not _fails(run, made)]
    return f"what a step does changed {'; '.join(said)}" if said else ""


def _others(run: Observations, cell: Cell) -> Iterator[tuple[str, Counters]]:
    """Yield what the cell's step is compared with, by its name."""
    arms, commits = run.arms(cell), set()
    for side, base in run.comparison.bases.items():
        if arms.get(side) in run.counters:
            commits.add(base.commit)
            yield base.label, run.counters[arms[side]]
    if identity := run.identity(run.plan.own(cell)):
        accepted = run.plan.baseline.newest_counted(identity)
        if accepted is not None and accepted[0].environment.commit not in commits:
            yield f"the accepted run {accepted[0].run_id}", accepted[1]


def _check(run: Observations, own: Counters, label: str, other: Counters) -> CheckRecord:
    made = counters.changes(own, other)
    outcome, reason = Outcome.INCONCLUSIVE, _said(made)
    if not own.comparable(other):
        versions = f"counted with {other.made_with} there and {own.made_with} here, which may count differently"
        reason = f"{versions}: {reason or 'no difference'}"
    elif not made:
        varying = counters.not_reproducible(own, other)
        outcome, reason = Outcome.PASS, "a step does the same"
        if varying:
            reason += f"; not compared, because it is not reproducible: {', '.join(varying)}"
    elif _fails(run, made):
        outcome = Outcome.FAIL
    counts = outcome is Outcome.FAIL
    return CheckRecord(rule=counters.RULE, against=label, outcome=outcome, reason=reason, counts=counts)


def _said(made: Sequence[Change]) -> str:
    return "; ".join(change.said for change in made)


def _fails(run: Observations, made: Sequence[Change]) -> bool:
    """Return whether a cell fails by these changes: doing less is shown, and never fails."""
    return run.plan.config.counters == "fail" and any(change.rose for change in made)
