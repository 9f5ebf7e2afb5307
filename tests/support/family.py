"""The verdict's error rates over the family of noise of docs/verdict.md, by seeded simulation.

    python -m tests.support.family                      # 8,000 runs of each row, in minutes
    python -m tests.support.family --rows "one cell"

`tests/suite/verdict/test_paired.py` checks every row with fewer runs. Thousands of runs are simulated at a time, so the
rule of `suite.verdict.paired` is written here a second time, in numpy over all runs; the same test compares the two,
outcome by outcome.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats
from scipy.special import stdtrit

from suite.verdict import ALPHA_FAIL, ALPHA_PASS, FIRST_LOOK, Learned, Middle, Outcome, Windows, spending
from suite.verdict.metrics import half_of
from suite.verdict.paired import ALIKE, SETTLED, SUSPICION, UNEVEN, fewest_alone
from suite.verdict.spread import KAPPA, MOST_DF

Floats = npt.NDArray[np.float64]
Shape = tuple[int, int, int, int]  # runs, cells, sessions, rounds
Draw = Callable[[np.random.Generator, Shape], Floats]  # windows: (2, runs, cells, sessions, rounds)

MARGIN = math.log1p(0.05)
CELLS, SIZES, SESSIONS, ROUNDS = 12, 2, 6, 8  # six cells at each of two world sizes
RUNS = 8000
OUTCOMES = (Outcome.INCONCLUSIVE, Outcome.PASS, Outcome.FAIL)


def sides(windows: Floats, apart: Floats | float) -> Floats:
    """Return the windows of candidate and base, of which the candidate's are apart by what a session has.

    Args:
        windows: noise of both sides, of which a round's ratio shows sqrt(2) times the SD.
        apart: ln(t / t) of a session.
    """
    return windows / math.sqrt(2) + np.stack([np.broadcast_to(apart, windows.shape[1:]), np.zeros(windows.shape[1:])])


def normal(within: float, between: float) -> Draw:
    """Return rounds and sessions with these SDs."""
    return lambda rng, shape: sides(
        within * rng.standard_normal((2, *shape)), between * rng.standard_normal((*shape[:3], 1))
    )


def heavy(within: float, between: float) -> Draw:
    """Return Student's t on two degrees of freedom for both."""
    return lambda rng, shape: sides(
        within * rng.standard_t(2, (2, *shape)), between * rng.standard_t(2, (*shape[:3], 1))
    )


def disturbed_windows(share: float, longest: float) -> Draw:
    """Return rounds and sessions of 1 %, in which so many windows of either side are up to so much longer."""

    def draw(rng: np.random.Generator, shape: Shape) -> Floats:
        longer = np.log1p(longest * rng.random((2, *shape))) * (rng.random((2, *shape)) < share)
        return normal(0.01, 0.01)(rng, shape) + longer

    return draw


def modes(probability: float, cells: int = CELLS) -> Draw:
    """Return sessions within 0.2 %, where the processes of either side are 6 % slower with this probability.

    Only the first `cells` cells have such modes.
    """

    def draw(rng: np.random.Generator, shape: Shape) -> Floats:
        slow = (rng.random((2, *shape[:3], 1)) < probability) & (np.arange(shape[1])[:, None, None] < cells)
        return normal(0.002, 0.0)(rng, shape) + 0.06 * slow

    return draw


def both_modes(probability: float) -> Draw:
    """Return what `modes` does to trainers in both modes: the second half of the cells share the first's processes."""

    def draw(rng: np.random.Generator, shape: Shape) -> Floats:
        runs, cells, sessions, _ = shape
        slow = np.tile(rng.random((2, runs, cells // 2, sessions, 1)) < probability, (1, 1, 2, 1, 1))
        return normal(0.002, 0.0)(rng, shape) + 0.06 * slow

    return draw


def drift(over_session: float) -> Draw:
    """Return rounds of 7 % on a machine whose speed drifts; the windows are in the order A B, B A."""

    def draw(rng: np.random.Generator, shape: Shape) -> Floats:
        rounds = np.arange(shape[3])
        places = np.stack([2 * rounds + rounds % 2, 2 * rounds + 1 - rounds % 2])
        return normal(0.07, 0.01)(rng, shape) + over_session / shape[3] / 2 * places[:, None, None, None, :]

    return draw


def disturbed(share: float) -> Draw:
    """Return rounds of 7 % that scatter five times as much in a share of the sessions, for all cells at once."""

    def draw(rng: np.random.Generator, shape: Shape) -> Floats:
        return np.where(rng.random((shape[0], 1, shape[2], 1)) < share, 5.0, 1.0) * normal(0.07, 0.01)(rng, shape)

    return draw


def refined(times: float) -> Draw:
    """Return rounds of 7 %, and so many times as many from the fourth session on, when other cells are decided."""

    def draw(rng: np.random.Generator, shape: Shape) -> Floats:
        within = np.where(np.arange(shape[2]) < FIRST_LOOK, 0.07, 0.07 / math.sqrt(times))[:, None]
        return within * normal(1.0, 0.0)(rng, shape) + normal(0.0, 0.01)(rng, shape)

    return draw


def biased(sd: float, *, every_session: bool) -> Draw:
    """Return rounds of 1 % with a bias between the checkouts of each cell, drawn for a session or for the whole run."""

    def draw(rng: np.random.Generator, shape: Shape) -> Floats:
        drawn = sd * rng.standard_normal((*shape[:2], shape[2] if every_session else 1, 1))
        return sides(0.01 * rng.standard_normal((2, *shape)), drawn)

    return draw


def louder(times: float, cells: int = SIZES) -> Draw:
    """Return sessions of 1 %, where the first cells (one of each world size) scatter several times as much."""
    return lambda rng, shape: (
        normal(0.01, 0.01)(rng, shape) * np.where(np.arange(shape[1]) < cells, times, 1.0)[:, None, None]
    )


def mixture(share: float, mean: float) -> Draw:
    """Return what makes a share of the candidate's processes so slow that it is slower by `mean`, less the margin."""

    def draw(rng: np.random.Generator, shape: Shape) -> Floats:
        slow = rng.random((*shape[:3], 1)) < share
        return sides(0.002 * rng.standard_normal((2, *shape)), mean / share * slow - MARGIN)

    return draw


def uneven(share: float, longer: float) -> Draw:
    """Return rounds of 2 % in which so many of the candidate's windows are longer, less the margin."""

    def draw(rng: np.random.Generator, shape: Shape) -> Floats:
        windows = normal(0.02, 0.01)(rng, shape)
        windows[0] += math.log1p(longer) * (rng.random(shape) < share) - MARGIN
        return windows

    return draw


def learned(tau: float) -> Learned:
    """Return what forty sessions with this SD between them teach."""
    return Learned(tau**2, 2 * tau**4 / 39)


class Row(NamedTuple):
    """One noise of the family.

    Attributes:
        draw: returns ln(seconds a step) of windows where nothing is slower.
        learned: what a calibration says; None without one.
        cells: of the run; one is alone in its world size.
        planned: sessions.
        sizes: world sizes of the run, as far as it has as many cells.
        affected: how many cells at most have this noise, if the others have less.
        missed: which of the two promises the rule is known not to keep here.
        slower: whether the noise itself makes the candidate slower, so that no FAIL is wrong.
    """

    name: str
    draw: Draw
    learned: Learned | None = None
    cells: int = CELLS
    missed: tuple[Outcome, ...] = ()
    slower: bool = False
    planned: int = SESSIONS
    sizes: int = SIZES
    affected: int | None = None


F, P = Outcome.FAIL, Outcome.PASS
FAMILY = (
    Row("normal: rounds 1 %", normal(0.01, 0.0)),
    Row("normal: rounds 7 %, sessions 1 %", normal(0.07, 0.01)),
    Row("normal: rounds 1 %, sessions 3 %", normal(0.01, 0.03)),
    Row("heavy tails (t2): rounds and sessions 1 %", heavy(0.01, 0.01)),
    Row("heavy tails (t2): rounds 0.2 %, sessions 2 %", heavy(0.002, 0.02)),
    Row("a quarter of windows up to 60 % longer, else 1 %", disturbed_windows(0.25, 0.6)),
    Row("half of windows up to 60 % longer, else 1 %", disturbed_windows(0.5, 0.6)),
    Row("modes: 6 % slower with p = 0.3, rounds 0.2 %", modes(0.3)),
    Row("modes: 6 % slower with p = 0.5, rounds 0.2 %", modes(0.5)),
    Row("modes: p = 0.5 in 2 of the 12 cells", modes(0.5, 2), affected=2),
    Row("the same, stale calibration: sessions 0.3 %", modes(0.5, 2), learned(0.003), affected=2),
    Row("drift of 10 % over a session", drift(0.1)),
    Row("disturbed: 5 % of sessions five times as noisy", disturbed(0.05)),
    Row("rounds 7 %, sessions 1 %, six times the rounds from the 4th session", refined(6)),
    Row("the same, stale calibration: sessions 0.3 %", refined(6), learned(0.003)),
    Row("one cell 3 times as noisy as the others", louder(3.0), affected=SIZES),
    Row("one cell 5 times as noisy as the others", louder(5.0), affected=SIZES),
    Row("half of the cells 3 times as noisy as the others", louder(3.0, 6), affected=6),
    Row("half of the cells 1.7 times as noisy as the others", louder(1.7, 6), affected=6),
    Row("stale calibration: sessions 0.3 %, now 3 %", normal(0.01, 0.03), learned(0.003)),
    Row("stale calibration: sessions 0.3 %, now 5 %", normal(0.01, 0.05), learned(0.003)),
    Row("stale calibration: sessions 0.3 %, now modes with p = 0.5", modes(0.5), learned(0.003)),
    Row("calibration of a noisier machine: 3 %, here 0.3 %", normal(0.01, 0.003), learned(0.03)),
    Row("bias between checkouts of 1 %, drawn every session", biased(0.01, every_session=True)),
    Row("bias between checkouts of 0.6 % that stays for the run", biased(0.006, every_session=False)),
    Row("bias between checkouts of 1 % that stays for the run", biased(0.01, every_session=False), missed=(F,)),
    Row("mixture: a third of processes slow, 5 % on average", mixture(1 / 3, MARGIN), missed=(P,), slower=True),
    Row("mixture: a fifth of processes slow, 10 % on average", mixture(1 / 5, math.log(1.1)), slower=True),
    Row("30 % of the candidate's windows a third longer, 9 % on average", uneven(0.3, 1 / 3), slower=True),
    Row("30 % of the candidate's windows 18 % longer, 5 % on average", uneven(0.3, 0.177), missed=(P,), slower=True),
    Row("one cell: 30 % of the candidate's windows a third longer", uneven(0.3, 1 / 3), cells=1, slower=True),
    Row("one cell: rounds 1 %, sessions 3 %", normal(0.01, 0.03), cells=1),
    Row("one cell: modes with p = 0.5", modes(0.5), cells=1),
    Row("one cell: mixture, a third of processes, 5 %", mixture(1 / 3, MARGIN), None, 1, (P,), slower=True),
    Row("one cell: mixture, a fifth of processes, 10 %", mixture(1 / 5, math.log(1.1)), None, 1, (P,), slower=True),
    Row("one cell, stale calibration: 1 %, now 3 %", normal(0.03, 0.03), learned(0.01), cells=1),
    Row("one cell, stale calibration: 0.3 %, now 3 %", normal(0.01, 0.03), learned(0.003), cells=1),
    Row("one cell, stale calibration: 0.3 %, now modes with p = 0.5", modes(0.5), learned(0.003), cells=1),
    Row("one cell, 36 planned: rounds 7 %, sessions 1 %", normal(0.07, 0.01), cells=1, planned=36),
    Row("one cell, 36 planned: rounds 1 %, sessions 3 %", normal(0.01, 0.03), cells=1, planned=36),
    Row("one cell, 36 planned: rounds and sessions 1 %, heavy tails (t2)", heavy(0.01, 0.01), cells=1, planned=36),
    Row("one cell, 36 planned: modes with p = 0.5", modes(0.5), cells=1, planned=36),
    Row("one cell, 36 planned, stale calibration: 0.3 %, now 3 %", normal(0.01, 0.03), learned(0.003), 1, planned=36),
    Row("one cell, 36 planned, stale calibration, now modes", modes(0.5), learned(0.003), 1, planned=36),
    Row("four world sizes of one cell: modes with p = 0.5", modes(0.5), cells=4, sizes=4),
    Row("the same, stale calibration: 0.3 %, now 3 %", normal(0.01, 0.03), learned(0.003), 4, sizes=4),
    Row("the same, stale calibration: 0.3 %, now modes", modes(0.5), learned(0.003), 4, sizes=4),
    Row("three world sizes of one trainer, strong and weak: modes with p = 0.5", both_modes(0.5), cells=6, sizes=6),
    Row("the same, stale calibration: 0.3 %", both_modes(0.5), learned(0.003), 6, sizes=6),
)


def located(windows: Floats) -> tuple[Floats, Floats, int]:
    """Return what `suite.verdict.Middle.of` does of every session: value, variance, degrees of freedom of that."""
    kept, adjusted = halved(windows)
    h, count = kept.shape[-1], windows.shape[-1]
    (own, other), squares = kept.mean(axis=-1), adjusted.var(axis=-1).sum(axis=0) * count
    return own - other, squares / (h * (h - 1)), 2 * (h - 1)


def halved(windows: Floats) -> tuple[Floats, Floats]:
    """Return the faster half of the last axis, and the sorted windows of which the slower ones are set to its last."""
    ordered, h = np.sort(windows, axis=-1), half_of(windows.shape[-1])
    return ordered[..., :h], np.minimum(ordered, ordered[..., h - 1 : h])


def decide(
    windows: Floats, sizes: int, comparisons: int, calibrated: Learned | None = None, *, pooled: bool = True
) -> npt.NDArray[np.int_]:
    """Return each cell's outcome as an index of `OUTCOMES`, as `suite.verdict.paired` decides it.

    Args:
        windows: ln(seconds a step) of both sides in all planned sessions, shape (2, runs, cells, sessions, rounds).
        sizes: world sizes; cell i has number i % sizes.
        comparisons: how many of the run can fail.
        calibrated: what a calibration says.
        pooled: whether the other cells of a world size count; without it, the rule errs too often in some rows.
    """
    (y, w2, f), all_windows = located(windows), (windows[0] - windows[1]).mean(axis=-1)
    runs, cells, planned = y.shape
    alpha = ALPHA_FAIL / comparisons
    same_size = (np.subtract.outer(np.arange(cells), np.arange(cells)) % sizes == 0) & ~np.eye(cells, dtype=bool)
    outcome, suspicious = np.zeros((runs, cells), dtype=int), np.zeros((runs, cells), dtype=bool)
    squares, dfs, within = np.zeros((runs, cells)), np.zeros((runs, cells)), np.zeros((runs, cells))
    for n in range(FIRST_LOOK if pooled else 2, planned + 1):
        undecided = outcome == 0
        mean, own = y[..., :n].mean(axis=-1), y[..., :n].var(axis=-1, ddof=1)
        squares = np.where(undecided, (n - 1) * own, squares)  # a decided cell has no further sessions
        dfs = np.where(undecided, n - 1.0, dfs)
        within = np.where(undecided, w2[..., :n].mean(axis=-1), within)
        prior, prior_df, least_fail = np.zeros_like(own), np.zeros_like(own), np.zeros_like(own)
        if pooled:
            ratio = within[:, :, None] / within[:, None, :]
            peers = same_size & (ratio <= ALIKE) & (ratio >= 1 / ALIKE)
            of_others, df_of_others = (np.einsum("rij,rj->ri", peers, each) for each in (squares, dfs))
            prior, prior_df = of_others / np.maximum(df_of_others, 1.0), np.minimum(df_of_others, MOST_DF)
            alone = fewest_alone(ALPHA_FAIL / (1 if sizes < cells else cells))
            least_fail = np.where(df_of_others > 0, 0, alone)
        if calibrated is not None:
            predicted = calibrated.tau2 + w2[..., :n].mean(axis=-1)
            within_var = 2 * (w2[..., :n] ** 2).sum(axis=-1) / f / n**2
            uncertainty = calibrated.tau2_var + 2 * calibrated.tau2**2 / KAPPA + within_var
            predicted_df = np.minimum(MOST_DF if pooled else 6.0, 2 * predicted**2 / uncertainty)
            larger = predicted > prior
            prior, prior_df = np.where(larger, predicted, prior), np.where(larger, predicted_df, prior_df)
        df = prior_df + n - 1
        error = np.sqrt(np.maximum((prior_df * prior + (n - 1) * own) / df, own) / n)
        share, half = spending(n, planned), mean >= MARGIN / 2
        crossing = half & (mean - _half_width(df, error, alpha * share) > 0)
        alarming = crossing if calibrated else half & (mean - _half_width(df, error, SUSPICION * alpha) > 0)
        settled = n >= planned or mean + _half_width(df, error, SETTLED) < MARGIN / 2
        fails = undecided & crossing & suspicious & (n >= least_fail)
        passes = (
            undecided & ~fails & settled & (mean < MARGIN / 2) & (all_windows[..., :n].mean(axis=-1) < UNEVEN * MARGIN)
        )
        passes &= mean + _half_width(df, error, ALPHA_PASS * share) < MARGIN
        outcome = np.where(fails, OUTCOMES.index(F), np.where(passes, OUTCOMES.index(P), outcome))
        suspicious |= alarming
    return outcome


def _half_width(df: Floats, error: Floats, alpha: float) -> Floats:
    if alpha <= 0:
        return np.full_like(error, np.inf)
    few, places = np.unique(df, return_inverse=True)  # most of a simulation's time is that of `stdtrit`
    width: Floats = stdtrit(few, 1 - alpha)[places].reshape(df.shape) * error
    return width


def slowed(windows: Floats, shift: float) -> Floats:
    """Return the windows with the candidate slower by so much."""
    return windows + np.array([shift, 0.0])[:, None, None, None, None]


class Rates(NamedTuple):
    """What a rule does under one noise.

    Attributes:
        any_fail: runs with any FAIL, of `runs` in which nothing is slower.
        wrong_pass: cells that PASS, of `slower` that have the noise and are slower by the tolerance.
        clears: share of unchanged cells that PASS.
        finds: share of cells that FAIL where they are 10 % slower.
    """

    any_fail: int
    runs: int
    wrong_pass: int
    slower: int
    clears: float
    finds: float


def rates(row: Row, runs: int = RUNS, *, pooled: bool = True, seed: int = 1) -> Rates:
    """Simulate a row; cells of one run are independent, so that each counts for a wrong PASS."""
    rng, affected = np.random.default_rng(seed), row.affected or row.cells
    unchanged, at_margin, slower = (
        decide(
            slowed(row.draw(rng, (count, row.cells, row.planned, ROUNDS)), shift),
            min(row.sizes, row.cells),
            row.cells,
            row.learned,
            pooled=pooled,
        )
        for shift, count in (
            (0.0, runs),
            (MARGIN, max(1, runs // affected)),
            (math.log(1.1), max(1, runs // row.cells)),
        )
    )
    fails, passes = OUTCOMES.index(F), OUTCOMES.index(P)
    return Rates(
        int((unchanged == fails).any(axis=1).sum()),
        runs,
        int((at_margin[:, :affected] == passes).sum()),
        at_margin[:, :affected].size,
        float((unchanged == passes).mean()),
        float((slower == fails).mean()),
    )


def exceeds(count: int, trials: int, bound: float) -> bool:
    """Whether so many events contradict a rate of at most `bound` (exact binomial, one-sided, 0.1 %)."""
    return bool(stats.binomtest(count, trials, bound, alternative="greater").pvalue < 0.001)


def t(df: float, alpha: float) -> float:
    """Return the quantile of Student's t that a value exceeds with probability `alpha`."""
    return float(stats.t.ppf(1 - alpha, df))


def windows_of(sides: npt.NDArray[np.float64]) -> list[Windows]:
    """Return sessions, from an array of shape (2, sessions, windows): candidate and base, ln(seconds a step)."""
    return [Windows(own, other) for own, other in zip(*sides.tolist(), strict=True)]


def middles_of(sides: npt.NDArray[np.float64]) -> list[Middle]:
    return [Middle.of(windows) for windows in windows_of(sides)]


def table(rows: Sequence[Row] = FAMILY) -> str:
    """Return the family's error rates as Markdown; a promise that is known to be missed is in bold."""
    lines = ["| noise | any FAIL | wrong PASS | PASS unchanged | FAIL at 10 % |", "|---|---|---|---|---|"]
    for row in rows:
        found = rates(row)
        shown = {F: found.any_fail / found.runs, P: found.wrong_pass / found.slower}
        errors = [f"**{rate:.2%}**" if of in row.missed else f"{rate:.2%}" for of, rate in shown.items()]
        figures = [*errors, f"{found.clears:.2f}", f"{found.finds:.2f}"]
        if row.slower:
            figures = ["-", errors[1], "-", "-"]
        lines.append(f"| {row.name} | {' | '.join(figures)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", metavar="TEXT", help="only rows whose name contains it")
    asked = parser.parse_args()
    print(table([row for row in FAMILY if asked.rows in row.name]))


if __name__ == "__main__":
    main()
