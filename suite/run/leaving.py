"""Cells that the rest of a budget cannot decide leave their time to those that it can (`suite.run.schedule`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from suite.plan.cells import Cell
from suite.run import judging, samples, schedule
from suite.run.observations import Observations
from suite.run.schedule import LEAVE_AFTER, Price
from suite.verdict import Middle


def leave(run: Observations, bought: Callable[[Sequence[Cell]], Price]) -> str:
    """Note the cells that leave, before the first look at any; return a line of the plan, "" where none does.

    Args:
        run: with a base.
        bought: returns what the rest of the budget buys for some of its cells.
    """
    config = run.plan.config
    if not run.comparison.bases or config.calibrate or len(run.sessions) != LEAVE_AFTER:
        return ""
    middles = dict[Cell, list[Middle]]()
    for cell in run.comparison.judged:
        own, *others = run.arms(cell).values()
        if run.lost.keys().isdisjoint((own, *others)):
            middles[cell] = samples.middles(run, own, others[0])
    known = schedule.scatters(middles, 2 * len(run.sessions[-1].conditions))
    stay = [cell for cell in known if judging.surplus(run, cell) or cell in run.plan.floors]
    margin = math.log1p(config.tolerance)
    gone = schedule.leaving(known, stay, bought, margin)
    if not gone:
        return ""
    rounds = bought([cell for cell in known if cell not in gone]).rounds
    run.comparison = replace(run.comparison, left={cell: known[cell].needed(rounds, margin) for cell in gone})
    names = ", ".join(cell.id for cell in gone)
    return f"plan: too noisy to be decided in the rest of the budget, which goes to the other cells: {names}"
