"""Both error bounds over the family of noise that docs/verdict.md names, row by row, by seeded simulation."""

from __future__ import annotations

import re

import numpy as np
import pytest

from suite.verdict import ALPHA_FAIL, ALPHA_PASS, Learned, Middle, Outcome, Terms, paired
from tests.support import family
from tests.support.family import FAMILY, OUTCOMES, Row
from tests.support.project import REPOSITORY
from tests.support.rates import exceeds, middles_of

RUNS = 2000


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
    rng, cells, planned = np.random.default_rng(4), 4, 6
    windows = family.slowed(family.modes(0.5)(rng, (200, cells, planned, 8)), 0.06)
    for run, outcomes in enumerate(family.decide(windows, cells, cells)):
        sessions = [middles_of(windows[:, run, cell]) for cell in range(cells)]
        judged = [paired(middles, Terms(0.05, cells, planned, 1.0, alone=cells)).outcome for middles in sessions]
        assert judged == [OUTCOMES[outcome] for outcome in outcomes]


@pytest.mark.parametrize("learned", [None, family.learned(0.003), family.learned(0.03)], ids=["", "low", "high"])
@pytest.mark.parametrize("shift", [0.0, 0.1])
def test_the_simulated_rule_is_the_rule(learned: Learned | None, shift: float) -> None:
    """Sessions arrive one by one, and a decided cell has no more of them."""
    rng, sizes, planned = np.random.default_rng(3), 2, 6
    windows = family.slowed(family.normal(0.02, 0.03)(rng, (12, 6, planned, 8)), shift)
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
                others = (seen[c] for c in range(cell % sizes, len(run), sizes) if c != cell)
                peers = [[middle.value for middle in other] for other in others]
                judged[cell] = paired(seen[cell], Terms(0.05, 6, planned, 1.0), learned, peers).outcome
        assert judged == [OUTCOMES[outcome] for outcome in outcomes]
    assert {OUTCOMES[outcome] for outcome in expected.flat} >= ({Outcome.FAIL} if shift else {Outcome.PASS})
