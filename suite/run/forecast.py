"""What a run is going to do, said before it does it: cells, minutes, and the slowdown it can promise to find.

The first forecast is made from what starting one worker took; the number of sessions that counts, for the error spent
at each look, is fixed when the first session has shown what one costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from suite.plan.cells import Arm
from suite.records.calibration import POWER, promise
from suite.room.quiet import available_cores
from suite.run import accuracy, judging
from suite.run.observations import Observations
from suite.run.session import MEASURE_SHARE, processes

# A worker with a process group loads torch's compiler as well, which takes a little longer than torch.
COMPILER_COST = 1.3
ENDING_S = 1.5  # warming up and letting go


def session_s(run: Observations, arms: Sequence[Arm], start_s: float) -> float:
    """Wall seconds that a session will take, roughly.

    Args:
        run: the arms' orders are known.
        arms: what a session times; arms of one trainer and world size share their processes.
        start_s: that one worker took, from its launch to its first answer.
    """
    groups = {(arm.side, arm.trainer, arm.workload, arm.world_size): run.orders[arm] for arm in arms}
    costs = (processes(order) * (1 + COMPILER_COST * (order["processes"] == "per-device")) for order in groups.values())
    return float(sum(costs)) * start_s / max(1, len(available_cores())) * (1 + MEASURE_SHARE) + ENDING_S


def lines(run: Observations, planned: int, each_s: float) -> list[str]:
    """The plan in sentences.

    Args:
        run: before its first session.
        planned: sessions.
        each_s: wall seconds of one.
    """
    comparisons = judging.comparisons(run)
    beside = f" beside {', '.join(base.label for base in run.bases.values())}" if run.bases else ""
    minutes = (run.plan.elapsed_s + planned * each_s) / 60
    training_s = accuracy.allowed_s(run, run.plan.config.budget_s - run.plan.elapsed_s)
    training = f", and at most {training_s / 60:.1f} min of training" if accuracy.wanted_pairs(run) else ""
    first = (
        f"plan: {len(run.beside) or len(run.plan.cells)} cell(s){beside}, "
        f"about {planned} session(s) of {each_s:.0f} s, {minutes:.1f} min in all{training} "
        f"(budget {run.plan.config.budget_s / 60:.1f} min); {comparisons} checks can fail"
    )
    return [first, _promise(run, comparisons, planned)] if run.bases and not run.plan.config.calibrate else [first]


def _promise(run: Observations, comparisons: int, planned: int) -> str:
    """The largest over its cells of the smallest slowdown that is found."""
    known = [calibrated for calibrated in map(run.plan.calibrated, run.beside) if calibrated is not None]
    if len(known) < len(run.beside):
        return "plan: what slowdown it can promise is not known here: python -m suite calibrate measures that"
    sds = [calibrated.spread.session_sd for calibrated in known]
    found = max(promise(session_sd, comparisons, planned, run.plan.config.tolerance) for session_sd in sds)
    if not math.isfinite(found) or found > 1:
        return "plan: at this budget no slowdown is sure to be found; raise it"
    notes = "".join(f"; {note}" for note in dict.fromkeys(calibrated.note for calibrated in known if calibrated.note))
    surely = f"a slowdown of {found:.1%} or more is found with {POWER:.0%} probability"
    return f"plan: {surely}, by this machine's calibration{notes}"
