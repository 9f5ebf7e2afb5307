"""The machine judged by the efficiency of accepted code: outcomes, and error rates by seeded simulation."""

from __future__ import annotations

import math
import random

import pytest

from suite.verdict.machine import machine
from suite.verdict.outcome import ALPHA_FAIL, ALPHA_PASS, Outcome
from suite.verdict.paired import FIRST_LOOK
from suite.verdict.stored import ENOUGH_RUNS

USUAL = tuple(math.log(value) for value in (0.80, 0.79, 0.81, 0.80, 0.82, 0.78))
TOLERANCE = 0.05


def judged(*efficiencies: float, accepted: tuple[float, ...] = USUAL) -> tuple[Outcome, str]:
    verdict = machine([math.log(value) for value in efficiencies], accepted, 12, tolerance=TOLERANCE)
    return verdict.outcome, verdict.reason


def test_a_link_with_a_tenth_of_its_rate_fails_the_machine_and_not_the_code() -> None:
    outcome, reason = judged(0.41, 0.40, 0.42)
    assert outcome is Outcome.FAIL
    assert reason.startswith(
        "the machine, not the code: the accepted commit has efficiency 0.41, and had 0.78 to 0.82 in 6 accepted "
        "runs: at least 4"
    )
    assert reason.endswith(" less (99% confidence)")


def test_an_efficiency_like_that_of_accepted_runs_passes() -> None:
    assert (
        judged(0.80, 0.81, 0.80, accepted=tuple(math.log(0.8) + 0.004 * (-1) ** n for n in range(8)))[0] is Outcome.PASS
    )


def test_a_faster_machine_passes() -> None:
    assert judged(0.99, 0.98, 0.99)[0] is Outcome.PASS


@pytest.mark.parametrize(
    ("sessions", "runs", "says"),
    [
        (
            FIRST_LOOK,
            ENOUGH_RUNS - 1,
            "4 accepted run(s) of this host, an hour or more apart, have it: 5",
        ),
        (FIRST_LOOK - 1, ENOUGH_RUNS, "was measured on one device and on several in 2 session(s) of this run: 3"),
    ],
)
def test_little_evidence_is_inconclusive(sessions: int, runs: int, says: str) -> None:
    outcome, reason = judged(*[0.1] * sessions, accepted=USUAL[:runs])
    assert outcome is Outcome.INCONCLUSIVE
    assert says in reason


def test_accepted_runs_that_differ_much_are_inconclusive() -> None:
    outcome, reason = judged(0.70, 0.71, 0.70, accepted=tuple(math.log(value) for value in (0.6, 0.9, 0.7, 0.8, 0.75)))
    assert outcome is Outcome.INCONCLUSIVE
    assert reason.endswith("neither clearly equal nor clearly less, because runs differ that much")


@pytest.mark.parametrize(("between", "within"), [(0.01, 0.005), (0.03, 0.02), (0.005, 0.03)])
def test_error_rates(between: float, within: float) -> None:
    """4,000 runs against ten accepted ones, of four sessions each; three standard errors of the rate are allowed."""
    rng, comparisons, runs = random.Random(1), 4, 4000

    def efficiencies(fallen: float) -> list[float]:
        level = rng.gauss(-fallen, between)
        return [rng.gauss(level, within) for _ in range(4)]

    def rate(fallen: float, wrong: Outcome) -> float:
        count = 0
        for _ in range(runs):
            accepted = [math.fsum(efficiencies(0.0)) / 4 for _ in range(10)]
            count += machine(efficiencies(fallen), accepted, comparisons, tolerance=TOLERANCE).outcome is wrong
        return count / runs

    for fallen, wrong, promised in (
        (0.0, Outcome.FAIL, ALPHA_FAIL / comparisons),
        (math.log1p(TOLERANCE), Outcome.PASS, ALPHA_PASS),
    ):
        assert rate(fallen, wrong) <= promised + 3 * math.sqrt(promised / runs)
