"""What the sessions of one cell decide: both error bounds of the contract, and how long a verdict takes, simulated.

A campaign is sessions of rounds. The noise is what machines do: heavy tails, a spread between sessions, a drift within
them, sessions that something disturbs. The machine is calibrated here, and in the rows of the family of noise that
docs/verdict.md names also not at all, or wrongly. `tests.support.family` decides many campaigns at once, as
`verdict.paired` does one. `python -m docs.evidence.designs` at 85bc9f57 has a wider grid, and the designs that were not
chosen.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cache

import numpy
import pytest
from scipy import stats

from suite.records.calibration import spread_of
from suite.verdict import ALPHA_FAIL, ALPHA_PASS, Learned, Middle, Outcome, Terms, paired, surplus
from tests.support import family
from tests.support.family import FAMILY, OUTCOMES, Draw, Row, exceeds, middles_of, normal, windows_of
from tests.support.project import REPOSITORY

TOLERANCE = 0.05
MARGIN = math.log1p(TOLERANCE)
ROUNDS, PLANNED, CALIBRATED = 24, 8, 40
RUNS = 2000

NOISES = {
    "rounds 1 %": normal(0.01, 0.0),
    "rounds 1 %, sessions 3 %": normal(0.01, 0.03),
    "rounds 10 %, sessions 3 %": normal(0.10, 0.03),
    "rounds 3 %, sessions 1 %, heavy tails": family.heavy(0.03, 0.01),
    "rounds 7 %, heavy tails": family.heavy(0.07, 0.0),
    "drift": family.drift(0.1),
    "disturbed": family.disturbed(0.05),
}


def calibrated(draw: Draw, rng: numpy.random.Generator) -> Learned:
    """Return what calibrating on this machine teaches."""
    spread = spread_of(windows_of(draw(rng, (1, 1, CALIBRATED, ROUNDS))[:, 0, 0]))
    return Learned(spread.tau**2, spread.tau2_var)


@pytest.mark.parametrize("cells", [1, 24])
@pytest.mark.parametrize("draw", NOISES.values(), ids=NOISES)
def test_calibrated_machines_rarely_fail_unchanged_cells_and_rarely_pass_slower_ones(draw: Draw, cells: int) -> None:
    """Every forty cells share a calibration, as runs of one machine do; the family below has stale ones, too."""
    rng, calibrations = numpy.random.default_rng(1), 15
    alarms, passes, runs = 0, 0, max(2, 40 // cells)
    for _ in range(calibrations):
        learned = calibrated(draw, rng)
        windows = draw(rng, (runs, cells, PLANNED, ROUNDS))
        decided = family.decide(windows, cells, cells, learned)
        alarms += int((decided == OUTCOMES.index(Outcome.FAIL)).any(axis=1).sum())
        slower = family.decide(family.slowed(windows, MARGIN), cells, cells, learned)
        passes += int((slower == OUTCOMES.index(Outcome.PASS)).sum())
    assert not exceeds(alarms, calibrations * runs, ALPHA_FAIL)
    assert not exceeds(passes, calibrations * runs * cells, ALPHA_PASS)


def test_a_rule_that_takes_rounds_as_independent_is_caught() -> None:
    """Rounds as independent observations raise alarms on nearly half of unchanged builds."""
    own, base = normal(0.01, 0.03)(numpy.random.default_rng(3), (300, 1, 3, ROUNDS)).reshape(2, 300, -1)
    alarms = stats.ttest_1samp(own - base, 0.0, axis=1, alternative="greater").pvalue < ALPHA_FAIL
    assert exceeds(int(alarms.sum()), 300, 0.2)


def sessions_until_decided(draw: Draw, delta: float, campaigns: int) -> float:
    """Return how many sessions a calibrated campaign takes on average."""
    rng, taken = numpy.random.default_rng(5), 0
    learned = calibrated(draw, rng)
    windows = family.slowed(draw(rng, (campaigns, 1, PLANNED, ROUNDS)), delta)
    for campaign in range(campaigns):
        sessions = middles_of(windows[:, campaign, 0])
        looks = (
            paired(sessions[:n], Terms(TOLERANCE, 1, PLANNED, 18.0), learned).outcome for n in range(1, PLANNED + 1)
        )
        taken += next((n for n, found in enumerate(looks, 1) if found in (Outcome.PASS, Outcome.FAIL)), PLANNED)
    return taken / campaigns


@cache
def best_fixed_size(draw: Draw) -> int:
    """Sessions of the smallest t test that finds the margin with 95 % power at 1 %, and clears equal code likewise."""
    middles, _, _ = family.located(draw(numpy.random.default_rng(6), (4000, 1, 1, ROUNDS)))
    sd = float(numpy.std(middles, ddof=1))

    def power(sessions: int, alpha: float) -> float:
        shift = MARGIN * math.sqrt(sessions) / sd
        return float(stats.nct.sf(stats.t.ppf(1 - alpha, sessions - 1), sessions - 1, shift))

    return next(n for n in range(2, 200) if power(n, ALPHA_FAIL) >= 0.95 and power(n, ALPHA_PASS) >= 0.95)


QUIET = [normal(0.03, 0.01), family.heavy(0.07, 0.0), normal(0.07, 0.01), normal(0.03, 0.02)]


@pytest.mark.parametrize("draw", QUIET, ids=["usual", "heavy tails", "loud rounds", "loud sessions"])
@pytest.mark.parametrize("delta", [0.0, MARGIN, 2 * MARGIN], ids=["unchanged", "margin", "twice"])
def test_a_verdict_takes_no_more_than_a_third_longer_than_the_best_fixed_size(draw: Draw, delta: float) -> None:
    """Sessions are equally long, so their number is the time. The fixed size knows the spread, which ours learns."""
    assert sessions_until_decided(draw, delta, 200) <= 1.3 * best_fixed_size(draw)


@pytest.mark.parametrize("deltas", [(-0.2, -0.21, -0.19, -0.2), (0.0100, 0.0101, 0.0099, 0.01)])
def test_a_faster_candidate_or_a_small_certain_slowdown_passes(deltas: Sequence[float]) -> None:
    """FAIL also needs an estimate of half the margin: 1 % slower with certainty is no alarm at 5 %."""
    assert paired([Middle(delta) for delta in deltas], Terms(0.05, 1, 4, 10.0)).outcome is Outcome.PASS


def test_equal_cells_rarely_look_slower_than_their_rounds_explain() -> None:
    """2,000 cells of rounds of 7 % and sessions of 1 %: a waterfall for nothing costs seconds, not a verdict."""
    windows = normal(0.07, 0.01)(numpy.random.default_rng(1), (2000, 1, 2, 16))[:, :, 0]
    assert sum(surplus(middles_of(windows[:, cell]), 0.05) > 0 for cell in range(2000)) < 40


@pytest.mark.parametrize("row", FAMILY, ids=lambda row: row.name)
def test_error_rates(row: Row) -> None:
    """Rows that are said to miss a promise in docs/verdict.md are not held to it."""
    shown = family.rates(row, RUNS)
    alarms = exceeds(shown.any_fail, shown.runs, ALPHA_FAIL)
    passes = exceeds(shown.wrong_pass, shown.slower, ALPHA_PASS)
    if Outcome.FAIL not in row.missed and not row.slower:
        assert not alarms, f"any FAIL in {shown.any_fail} of {shown.runs} runs"
    if Outcome.PASS not in row.missed:
        assert not passes, f"wrong PASS in {shown.wrong_pass} of {shown.slower} cells"


def test_the_page_has_every_row_that_misses_a_promise_and_says_so() -> None:
    """Of the family's rows the page may leave out those that keep both promises."""
    page = (REPOSITORY / "docs/verdict.md").read_text(encoding="utf-8")
    [_, table] = re.split(r"(?=^\| noise \|)", page, flags=re.MULTILINE)
    head, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.split("\n\n")[0].splitlines()]
    fail, wrong = head.index("any FAIL"), head.index("wrong PASS")
    shown = {(row[0], row[fail].startswith("**"), row[wrong].startswith("**")) for row in rows}
    known = {(row.name, Outcome.FAIL in row.missed, Outcome.PASS in row.missed) for row in FAMILY}
    assert {row for row in known if any(row[1:])} <= shown <= known
    assert f"all {len(FAMILY)} rows" in " ".join(page.split())


def test_modes_and_stale_calibrations_raised_alarms_while_cells_were_judged_alone() -> None:
    """The rule without the other cells fails the rows that were measured with it: the rows can find that."""
    for name in ("modes: 6 % slower with p = 0.5, rounds 0.2 %", "stale calibration: sessions 0.3 %, now 3 %"):
        shown = family.rates(next(row for row in FAMILY if row.name == name), RUNS, pooled=False)
        assert exceeds(shown.any_fail, shown.runs, ALPHA_FAIL)


@pytest.mark.nightly
def test_the_simulated_rule_of_cells_alone_in_their_world_sizes_is_the_rule() -> None:
    rng, cells, planned = numpy.random.default_rng(4), 4, 6
    windows = family.slowed(family.modes(0.5)(rng, (200, cells, planned, 8)), 0.06)
    for run, outcomes in enumerate(family.decide(windows, cells, cells)):
        sessions = [middles_of(windows[:, run, cell]) for cell in range(cells)]
        judged = [paired(middles, Terms(0.05, cells, planned, 1.0, alone=cells)).outcome for middles in sessions]
        assert judged == [OUTCOMES[outcome] for outcome in outcomes]


@pytest.mark.parametrize("learned", [None, family.learned(0.003), family.learned(0.03)], ids=["", "low", "high"])
@pytest.mark.parametrize("shift", [0.0, 0.1])
def test_the_simulated_rule_is_the_rule(learned: Learned | None, shift: float) -> None:
    """Sessions arrive one by one, and a decided cell has no more of them."""
    rng, sizes, planned = numpy.random.default_rng(3), 2, 6
    drawn = normal(0.02, 0.03)(rng, (12, 6, planned, 8))
    drawn[:, 6:] *= numpy.array([1.0, 1.0, 1.9, 1.9, 0.3, 0.3])[:, None, None]  # not all scatter alike
    windows = family.slowed(drawn, shift)
    expected = family.decide(windows, sizes, 6, learned)
    for number, outcomes in enumerate(expected):
        run = [middles_of(windows[:, number, cell]) for cell in range(6)]
        seen: list[list[Middle]] = [[] for _ in run]
        judged = [Outcome.INCONCLUSIVE] * len(run)
        for session in range(planned):
            for cell, sessions in enumerate(run):
                if judged[cell] is Outcome.INCONCLUSIVE:
                    seen[cell].append(sessions[session])
            for cell in range(len(run)):
                peers = [seen[c] for c in range(cell % sizes, len(run), sizes) if c != cell]
                judged[cell] = paired(seen[cell], Terms(0.05, 6, planned, 1.0), learned, peers).outcome
        assert judged == [OUTCOMES[outcome] for outcome in outcomes]
    assert {OUTCOMES[outcome] for outcome in expected.flat} >= ({Outcome.FAIL} if shift else {Outcome.PASS})
