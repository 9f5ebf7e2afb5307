"""What a decision costs and how often it is wrong: this suite beside other designs, on the same real sessions.

    python -m docs.performance.designs

A pool holds the sessions of real runs of one unchanged cell (`tests/golden/runs`). A simulated run draws sessions from
a pool with replacement and multiplies the candidate's times by a slowdown. Every design judges the same draws. Not
covered: slowdowns of some steps only, several cells in a run, and how often pytest-benchmark and asv call a function.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, median

from pytest_benchmark.utils import parse_compare_fail
from scipy.stats import mannwhitneyu

from docs.evidence.log import markdown, rate
from suite.plan.cells import Arm
from suite.run import samples
from suite.run.observations import Observations
from suite.verdict import ALPHA_FAIL, ALPHA_PASS, FIRST_LOOK, Middle, Outcome, Terms, Windows, paired
from suite.verdict.metrics import t_quantile
from suite.verdict.paired import UNEVEN
from suite.verdict.spread import estimate
from tests.golden import RUNS, load, replay

TITLE = "Beside other designs"
POOLS = {"at rest": "script", "beside a neighbour": "script-neighbour"}  # by its name, the kind of its runs
STEPS = 2  # of a window; runs whose windows have another number of steps are left out
TOLERANCE = 0.05
SLOWDOWNS = (1.0, 1.10, 1.05, 1.03)
DRAWS = 4000  # for intervals of at most +-1.6 %
ASV_P = 0.002  # asv 0.6.6, asv/_stats.py: p_threshold
ASV_EXACT = 20  # samples of a side up to which it counts all orders, there as well
ASV_REPEAT = 5  # samples that a process takes at most: asv_runner/benchmarks/time.py, max_repeat with two rounds

TEXT = """\
The cell is docs/examples/digits.py on two ranks:
{pools}.
Resampling so few understates rare outcomes, and the brackets are about the draws alone. Which side of a drawn session
is the candidate is drawn too. *Found* are red runs; what is neither found nor undecided passes. *Seconds* are medians,
with the start and the warm-up of processes. Four figures are of slowdowns of 0, 10, 5 and 3 %, in this order.

- **This suite** looks after every session, and **its rule at one look** after the last one:
  {planned}, as many as these runs planned for three minutes in the median.
- **pytest-benchmark** holds one side of a session against the stored other side of another one, and takes half a
  session. **Two runs of a script** compare the means of the same windows, and take two halves.
- **asv continuous** compares two sessions by its defaults: medians apart by `--factor 1.1`, Mann-Whitney p below 0.002,
  five samples of each process. The other rows have `--factor 1.05`, and then all windows as samples.
- The runs of a pool were made within 40 minutes, while stored results are usually older; and the two sides of a session
  take turns by windows, while asv's take turns by processes. Both favour the other designs.

Single sessions of equal code often differ by more than 5 % on this machine: a limit of 5 % between two of them costs
seconds, but is red for about three unchanged runs in ten and misses about a third of the slowdowns of 10 %. asv's two
conditions raised no false alarm and take half a minute, but they find 10 % in few runs; with all windows they find it
in most runs at rest. The rule over sessions finds 10 % every time, with both errors as promised. Looking after every
session saves nearly half the time at rest. Beside a neighbour it saves less, and one look at the end of the budget is
the better design there: it finds more slowdowns of 5 and 3 %, and leaves fewer runs undecided."""


@dataclass(frozen=True)
class Sample:
    """One session of unchanged code, with one of its sides as the candidate.

    Attributes:
        number: of the session in its pool.
        middle: ln(t_candidate / t_base), as the suite takes it from the session.
        candidate, base: seconds a step of all windows, in the order of timing.
        wall_s: of the session, without the counting of what a step does.
        timing_s: its share in the windows of both sides.
    """

    number: int
    middle: Middle
    candidate: Sequence[float]
    base: Sequence[float]
    wall_s: float
    timing_s: float


@dataclass(frozen=True)
class Pool:
    """What simulated runs draw from.

    Attributes:
        sessions: each as a run of its own.
        runs: how many runs they are from.
        planned: sessions that these runs planned for their three minutes, in the median.
    """

    sessions: Sequence[Observations]
    runs: int
    planned: int

    @classmethod
    def of(cls, kind: str) -> Pool:
        """Return the sessions of all runs of a kind whose windows have `STEPS` steps."""
        runs = [replay(golden) for golden in map(load, sorted(RUNS.glob("*.json"))) if golden["kind"] == kind]
        alike = [run for run in runs if set(run.steps.values()) == {STEPS}]
        sessions = [replace(run, sessions=[session]) for run in alike for session in run.sessions]
        return cls(sessions, len(alike), round(median(run.planned for run in alike)))

    def samples(self, slowdown: float) -> list[Sample]:
        """Return the sessions as they would be if every step of the candidate took `slowdown` times as long.

        Each session is there twice, once with its sides exchanged: both are the same code.
        """
        found = []
        for number, run in enumerate(self.sessions):
            own, base = run.arms(run.plan.cells[0]).values()
            found += [_sample(run, number, slowdown, *sides) for sides in ((own, base), (base, own))]
        return found

    def draws(self) -> list[list[int]]:
        """Return for every simulated run its sessions, as places in `samples`."""
        rng = random.Random(1)
        return [rng.choices(range(2 * len(self.sessions)), k=self.planned) for _ in range(DRAWS)]


def _sample(run: Observations, number: int, slowdown: float, candidate: Arm, base: Arm) -> Sample:
    (session,), (windows,) = run.sessions, samples.windows(run, candidate, base)
    return Sample(
        number,
        Middle.of(Windows([log + math.log(slowdown) for log in windows.own], windows.other)),
        [slowdown * seconds for seconds in samples.step_samples_s(run, candidate)],
        samples.step_samples_s(run, base),
        session.usual_s,
        math.fsum(max(window.duration_ns) for window in session.windows) / 1e9,
    )


Judged = tuple[Outcome, float]  # and the seconds that it took
Design = Callable[[Sequence[Sample]], Judged]  # judges a run by its planned sessions, or by some of them


def sequential(sessions: Sequence[Sample]) -> Judged:
    """Judge after every session from the first look on, and stop at a decision."""
    middles, terms = [session.middle for session in sessions], Terms(TOLERANCE, 1, len(sessions), session_s=0.0)
    for looked in range(FIRST_LOOK, len(sessions) + 1):
        outcome = paired(middles[:looked], terms).outcome
        if outcome is not Outcome.INCONCLUSIVE:
            break
    return outcome, math.fsum(session.wall_s for session in sessions[:looked])


def fixed_size(sessions: Sequence[Sample]) -> Judged:
    """Judge once, after all sessions, by the same rule; the only look has the whole error."""
    middles, margin = [session.middle for session in sessions], math.log1p(TOLERANCE)
    delta = estimate(middles)
    low = delta.mean - t_quantile(delta.df, 1 - ALPHA_FAIL) * delta.error
    high = delta.mean + t_quantile(delta.df, 1 - ALPHA_PASS) * delta.error
    average = fmean(middle.value if middle.average is None else middle.average for middle in middles)
    outcome = Outcome.INCONCLUSIVE
    if low > 0 and delta.mean >= margin / 2:
        outcome = Outcome.FAIL
    elif high < margin and delta.mean < margin / 2 and average < UNEVEN * margin:
        outcome = Outcome.PASS
    return outcome, math.fsum(session.wall_s for session in sessions)


def compare_fail(sessions: Sequence[Sample], check: str) -> Judged:
    """Hold the candidate of one session against the stored base of another, by pytest-benchmark's own check.

    `check` is of the median or the minimum, as after `--benchmark-compare-fail=`.
    """
    stored, now = _two(sessions)
    rule = parse_compare_fail(check)
    of_field = {"median": median, "min": min}[rule.field]
    reason = rule.fails({rule.field: of_field(now.candidate)}, {rule.field: of_field(stored.base)})
    return _red(reason is not None), now.wall_s / 2


def two_runs(sessions: Sequence[Sample]) -> Judged:
    """Compare the mean seconds a step of the base in one session and of the candidate in another."""
    before, after = _two(sessions)
    return _red(fmean(after.candidate) > (1 + TOLERANCE) * fmean(before.base)), (before.wall_s + after.wall_s) / 2


def asv_continuous(sessions: Sequence[Sample], factor: float, repeat: int | None = ASV_REPEAT) -> Judged:
    """Judge as `asv continuous --factor` does, by the first `repeat` windows of two processes of either side."""
    both = _two(sessions)
    base = [seconds for session in both for seconds in session.base[:repeat]]
    candidate = [seconds for session in both for seconds in session.candidate[:repeat]]
    used = (len(session.base[:repeat]) / len(session.base) for session in both)
    took_s = math.fsum(s.wall_s - (1 - share) * s.timing_s for s, share in zip(both, used, strict=True))
    return _red(asv_worse(base, candidate, factor)), took_s


def asv_worse(base: Sequence[float], candidate: Sequence[float], factor: float) -> bool:
    """Return whether asv 0.6.6 calls a benchmark worse: its median is, by the factor, and Mann-Whitney's p is small.

    `_is_result_better` in asv/commands/compare.py and `is_different` in asv/_stats.py. From fewer than six samples of
    either side, p cannot be small enough; asv compares confidence intervals then, which is not covered.
    """
    if median(base) >= median(candidate) / factor:
        return False
    method = "exact" if max(len(base), len(candidate)) <= ASV_EXACT else "asymptotic"
    return bool(mannwhitneyu(base, candidate, use_continuity=False, method=method).pvalue < ASV_P)


def _two(sessions: Sequence[Sample]) -> tuple[Sample, Sample]:
    """Return the first session, and the next one that is another session of the pool."""
    return sessions[0], next(each for each in sessions if each.number != sessions[0].number)


def _red(red: bool) -> Outcome:
    return Outcome.FAIL if red else Outcome.PASS


OF_SESSIONS: dict[str, Design] = {"this suite": sequential, "its rule at one look": fixed_size}
OTHERS: dict[str, Design] = {
    "pytest-benchmark, `median:5%`": partial(compare_fail, check="median:5%"),
    "pytest-benchmark, `min:5%`": partial(compare_fail, check="min:5%"),
    "two runs of a script, 5 %": two_runs,
    "asv, factor 1.1": partial(asv_continuous, factor=1.1),
    "asv, factor 1.05": partial(asv_continuous, factor=1.05),
    "asv, factor 1.05, all samples": partial(asv_continuous, factor=1.05, repeat=None),
}


def section() -> str:
    """Return the table, how it was made, and what it shows."""
    pools = {name: Pool.of(kind) for name, kind in POOLS.items()}
    head = ["pool", "design", "false alarms", "found: 10 %", "5 %", "3 %", "undecided", "seconds"]
    table = markdown(head, [row for name, pool in pools.items() for row in _rows(name, pool)])
    sizes = [f"{len(pool.sessions)} sessions of {pool.runs} runs {name}" for name, pool in pools.items()]
    planned = [f"{pool.planned} {name}" for name, pool in pools.items()]
    return f"{table}\n\n{TEXT.format(pools=', '.join(sizes), planned=', '.join(planned))}"


def _rows(name: str, pool: Pool) -> Iterator[list[str]]:
    draws, slowed = pool.draws(), [pool.samples(slowdown) for slowdown in SLOWDOWNS]
    for design, judge in (OF_SESSIONS | OTHERS).items():
        judged = [[judge([every[place] for place in drawn]) for drawn in draws] for every in slowed]
        outcomes = [Counter(outcome for outcome, _ in runs) for runs in judged]
        found = [rate(each[Outcome.FAIL], len(draws)) for each in outcomes]
        undecided = [f"{each[Outcome.INCONCLUSIVE] / len(draws):.0%}" for each in outcomes]
        seconds = [f"{median(took_s for _, took_s in runs):.0f}" for runs in judged]
        costs = [" / ".join(undecided), " / ".join(seconds)] if design in OF_SESSIONS else ["-", seconds[0]]
        yield [name, design, *found, *costs]


if __name__ == "__main__":
    print(section())
