"""Floors of efficiency: which one holds for a cell, what a wrong file says, and the verdict's error rates."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy
import pytest
from scipy import stats

from suite.plan.cells import Cell
from suite.plan.floors import Floor, available, resolve
from suite.verdict import ALPHA_FAIL, ALPHA_PASS, FIRST_LOOK, Outcome, spending
from suite.verdict.floor import floor
from tests.support.family import exceeds

CELL = Cell("ddp", "lenet", "strong", 4)
MARGIN = math.log1p(0.05)
TRIALS = 2000


def read(tmp_path: Path, text: str) -> tuple[Floor, ...]:
    file = tmp_path / "pyproject.toml"
    file.write_text(text)
    return available(file, ["lenet", "resnet18"])


def entries(*given: str) -> str:
    return "\n".join(f"[[tool.scaling.floors]]\n{fields}" for fields in given)


WIDE, NARROW = "efficiency = 0.9", 'workload = "lenet"\ntrainer = "ddp"\nefficiency = 0.6'
RIVALS = 'workload = "lenet"\nefficiency = 0.5', 'trainer = "ddp"\nefficiency = 0.8'


@pytest.mark.parametrize(
    ("given", "cell", "efficiency"),
    [
        ([], CELL, None),
        (['trainer = "ddp"\nworld_size = 4\nefficiency = 0.8'], CELL, 0.8),
        (['trainer = "ddp"\nworld_size = 4\nefficiency = 0.8'], Cell("ddp", "resnet18", "weak", 4), 0.8),
        (['trainer = "ddp"\nworld_size = 4\nefficiency = 0.8'], Cell("fsdp", "lenet", "strong", 4), None),
        (['trainer = "ddp"\nworld_size = 4\nefficiency = 0.8'], Cell("ddp", "lenet", "strong", 2), None),
        (['trainer = "my.py:Mine"\nefficiency = 0.8'], Cell("my.py:Mine", "lenet", "weak", 2), 0.8),
        ([WIDE, NARROW], CELL, 0.6),
        ([NARROW, WIDE], CELL, 0.6),
        ([*RIVALS, NARROW], CELL, 0.6),  # it has the keys of both
        (RIVALS, CELL, 0.8),
        (RIVALS[::-1], CELL, 0.8),
    ],
)
def test_of_the_entries_that_agree_with_a_cell_the_one_with_most_keys_holds_and_the_higher_of_two(
    tmp_path: Path, given: Sequence[str], cell: Cell, efficiency: float | None
) -> None:
    found = resolve(read(tmp_path, entries(*given)), [cell], lambda size: False).get(cell)
    assert (found and found.efficiency) == efficiency


def test_no_file_is_no_floor(tmp_path: Path) -> None:
    assert available(tmp_path / "none.toml", ["lenet"]) == ()


def test_one_device_and_oversubscribed_cells_are_never_judged(tmp_path: Path) -> None:
    given = read(tmp_path, entries("efficiency = 0.8"))
    cells = [Cell("ddp", "lenet", "strong", size) for size in (1, 2, 4)]
    assert list(resolve(given, cells, lambda size: size > 2)) == [cells[1]]
    assert list(resolve(given, cells, lambda size: False)) == cells[1:]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("", r"in pyproject.toml, counted from 0: 1.efficiency: Field required"),
        ("efficiency = 0", "1.efficiency: Input should be greater than 0"),
        ("efficiency = 80", "1.efficiency: Input should be less than or equal to 1.5"),
        ("efficiency = nan", "1.efficiency: Input should be a finite number"),
        ("efficiency = true", "1.efficiency: Input should be a valid number"),
        ("efficiency = 0.8\nworld_size = 1", "1.world_size: Input should be greater than or equal to 2"),
        ('efficiency = 0.8\nworld_size = "4"', "1.world_size: Input should be a valid integer"),
        ("efficiency = 0.8\nworldsize = 4", "1.worldsize: Extra inputs are not permitted"),
        ('efficiency = 0.8\nmode = "fast"', "1.mode: Input should be 'strong' or 'weak'"),
        ('efficiency = 0.8\nworkload = "lennet"', ": workload 'lennet': valid values are lenet, resnet18"),
        ('efficiency = 0.8\ntrainer = "dpp"', ": trainer 'dpp': valid values are single, .*module:Class"),
    ],
)
def test_a_wrong_entry_is_named_with_its_key(tmp_path: Path, fields: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(tmp_path, entries("efficiency = 0.5", fields))


@pytest.mark.parametrize("text", ["[tool.scaling.floors]\nefficiency = 0.8", "[tool.scaling]\nfloors = [0.8]"])
def test_floors_that_are_no_list_of_tables_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r"\[\[tool.scaling.floors\]\] in pyproject.toml, counted from 0: "):
        read(tmp_path, text)


def rate(
    judge: Callable[[list[float], int], Outcome],
    outcome: Outcome,
    efficiency: float,
    sd: float,
    planned: int,
    run_sd: float = 0.0,
) -> int:
    """How many simulated runs, which look after every session and keep their first decision, have this outcome."""
    rng = numpy.random.default_rng([planned, int(sd * 1000)])
    levels = math.log(efficiency) + run_sd * rng.standard_normal(TRIALS)
    runs = rng.normal(levels[:, None], sd, (TRIALS, planned)).tolist()
    return sum(judge(logs, planned) is outcome for logs in runs)


def ours(logs: list[float], planned: int) -> Outcome:
    return floor(logs, 0.8, 1, planned).outcome


@functools.cache
def quantile(probability: float, df: int) -> float:
    """Return a quantile of Student's t; scipy takes most of a simulation's time for it."""
    return float(stats.t.ppf(probability, df))


def greedy(logs: list[float], planned: int) -> Outcome:
    """Wrong: the whole error at every look."""
    for sessions in range(FIRST_LOOK, planned + 1):
        shortfall = numpy.log(0.8) - numpy.array(logs[:sessions])
        error, df = shortfall.std(ddof=1) / math.sqrt(sessions), sessions - 1
        if shortfall.mean() > quantile(1 - ALPHA_FAIL, df) * error:
            return Outcome.FAIL
        if shortfall.mean() + quantile(1 - ALPHA_PASS, df) * error < MARGIN:
            return Outcome.PASS
    return Outcome.INCONCLUSIVE


@pytest.mark.parametrize(
    ("sd", "planned", "run_sd"),
    [(0.005, 3, 0.0), (0.02, 6, 0.0), (0.033, 12, 0.0), (0.1, 6, 0.0), (0.01, 6, 0.01), (0.01, 6, 0.02)],
)
def test_both_errors_keep_their_bounds_at_any_noise_and_where_runs_differ(
    sd: float, planned: int, run_sd: float
) -> None:
    """At the floor itself, the hardest that must not fail, and at the floor less the tolerance, that must not pass.

    No session of a run can show by how much the run's own level is off.
    """
    assert not exceeds(rate(ours, Outcome.FAIL, 0.8, sd, planned, run_sd), TRIALS, ALPHA_FAIL)
    assert not exceeds(rate(ours, Outcome.PASS, 0.8 / 1.05, sd, planned, run_sd), TRIALS, ALPHA_PASS)


@pytest.mark.parametrize(("run_sd", "said", "missed"), [(0.01, 0.0, False), (0.02, 0.004, False), (0.03, 0.038, True)])
def test_a_cell_at_its_floor_fails_as_often_as_is_said(run_sd: float, said: float, missed: bool) -> None:
    """The figures of docs/verdict.md; where runs differ by more than the rule assumes, the bound is missed."""
    failed = rate(ours, Outcome.FAIL, 0.8, 0.01, 6, run_sd)
    assert stats.binomtest(failed, TRIALS, said).pvalue > 0.001
    assert exceeds(failed, TRIALS, ALPHA_FAIL) == missed


@pytest.mark.parametrize(("comparisons", "said"), [(1, 0.99), (12, 0.96)])
def test_an_efficiency_a_tenth_below_its_floor_is_found_as_often_as_is_said(comparisons: int, said: float) -> None:
    found = rate(lambda logs, n: floor(logs, 0.8, comparisons, n).outcome, Outcome.FAIL, 0.72, 0.01, 6, 0.02)
    assert found / TRIALS == pytest.approx(said, abs=0.015)


def test_a_rule_that_spends_its_error_at_every_look_or_knows_nothing_of_runs_is_caught() -> None:
    assert exceeds(rate(greedy, Outcome.FAIL, 0.8, 0.01, 6, 0.02), TRIALS, 5 * ALPHA_FAIL)
    assert exceeds(rate(greedy, Outcome.FAIL, 0.8, 0.1, 20), TRIALS, ALPHA_FAIL)
    assert exceeds(rate(greedy, Outcome.PASS, 0.8 / 1.05, 0.033, 20), TRIALS, ALPHA_PASS)


def test_clear_efficiencies_are_decided() -> None:
    assert rate(ours, Outcome.PASS, 0.85, 0.02, 6) >= 0.95 * TRIALS
    assert rate(ours, Outcome.FAIL, 0.7, 0.02, 6) >= 0.95 * TRIALS


@pytest.mark.parametrize(
    ("efficiencies", "comparisons", "outcome", "reason"),
    [
        (
            [0.7221, 0.7219, 0.722, 0.722],
            1,
            "FAIL",
            "efficiency 0.72 [0.72, 0.72], floor 0.80: below it (99% confidence)",
        ),
        ([0.723, 0.719, 0.727, 0.726], 1, "FAIL", ""),
        ([0.723, 0.719, 0.727, 0.726], 10**6, "INCONCLUSIVE", ""),  # all comparisons share the error
        ([0.7921, 0.7919, 0.792, 0.792], 1, "PASS", ""),
        ([0.1, 0.1], 1, "INCONCLUSIVE", "efficiency: 2 session(s) measured, a floor of 0.80 needs 3"),
    ],
)
def test_efficiencies_are_judged(efficiencies: list[float], comparisons: int, outcome: str, reason: str) -> None:
    """A shortfall of 1 % is within what runs differ by, one of 10 % is not."""
    found = floor([math.log(value) for value in efficiencies], 0.8, comparisons, 4)
    assert found.outcome == outcome
    assert found.reason.startswith(reason)


@pytest.mark.parametrize(("efficiency", "decided"), [(0.84, True), (0.8, False)])
def test_noise_is_inconclusive_and_says_what_would_help(efficiency: float, decided: bool) -> None:
    """At the floor itself sessions do not help: runs differ by more than the tolerance leaves."""
    noisy = floor([math.log(efficiency) + noise for noise in (0.1, -0.1, 0.1, -0.1)], 0.8, 1, 4)
    assert noisy.outcome is Outcome.INCONCLUSIVE
    assert noisy.reason.endswith("floor 0.80: neither below it nor above 0.76")
    assert math.isfinite(noisy.lacking) == decided
    assert noisy.lacking > 4


def test_an_unplanned_look_decides_nothing() -> None:
    """Four scatter too much for a decision; of two hundred the mean is clear."""
    assert spending(5, 4) == 0
    logs = [math.log(0.6) + noise for noise in (0.5, -0.5) * 100]
    assert floor(logs, 0.8, 1, 4).outcome is Outcome.INCONCLUSIVE
    assert floor(logs, 0.8, 1, 200).outcome is Outcome.FAIL


class TestConfirmation:
    """A FAIL takes a session more than the one that made the cell suspicious."""

    @pytest.mark.parametrize("planned", [3, 4, 12])
    def test_three_sessions_never_fail(self, planned: int) -> None:
        found = floor([math.log(0.1)] * 3, 0.8, 1, planned)
        assert found.outcome is Outcome.INCONCLUSIVE
        assert found.reason.endswith("floor 0.80: below it, unconfirmed")
        assert found.lacking == 1

    def test_a_fourth_session_confirms(self) -> None:
        assert floor([math.log(0.6)] * 4, 0.8, 1, 12).outcome is Outcome.FAIL

    def test_a_fourth_session_that_does_not_show_it_decides_nothing(self) -> None:
        logs = [math.log(0.7)] * 3 + [math.log(0.85)]
        assert floor(logs, 0.8, 1, 12).outcome is Outcome.INCONCLUSIVE

    def test_a_decision_stands(self) -> None:
        """Sessions that other rules of the cell ask for do not change it."""
        for level, outcome in ((0.6, Outcome.FAIL), (0.95, Outcome.PASS)):
            later = [math.log(1.5 - level)] * 8
            assert floor([math.log(level)] * 4 + later, 0.8, 1, 12).outcome is outcome

    def test_a_shortfall_of_half_the_tolerance_does_not_pass(self) -> None:
        """It may be on its way to a FAIL, which takes a session longer."""
        found = floor([math.log(0.8) - math.log(1.5) * 0.6] * 3, 0.8, 1, 12, tolerance=0.5)
        assert found.outcome is Outcome.INCONCLUSIVE
