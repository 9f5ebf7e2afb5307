"""A slow tail or a second mode is named under an equal middle; equal builds are rarely said to have one."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import stdtrit

from suite.verdict import Windows
from suite.verdict.outcome import ALPHA_WARN, WORTH
from suite.verdict.spread import MOST_DF
from suite.verdict.tail import tail
from tests.support.family import FAMILY, Draw, Floats, Row, Shape, exceeds, halved, heavy, normal, windows_of

SESSIONS, ROUNDS, RUNS = (3, 4, 6), 16, 500


def bursts(share: float, slower: float) -> Draw:
    """Return rounds of 2 % in which a share of the windows of either side is slower: other work on the machine."""

    def draw(rng: np.random.Generator, shape: Shape) -> Floats:
        return normal(0.02, 0.01)(rng, shape) + math.log1p(slower) * (rng.random((2, *shape)) < share)

    return draw


def unlucky(processes: float, share: float, slower: float) -> Draw:
    """Return rounds of 2 % in which some processes of either side have slow windows for a whole session."""

    def draw(rng: np.random.Generator, shape: Shape) -> Floats:
        hit = (rng.random((2, *shape)) < share) & (rng.random((2, *shape[:3], 1)) < processes)
        return normal(0.02, 0.01)(rng, shape) + math.log1p(slower) * hit

    return draw


# The family of docs/verdict.md as far as it is about rounds and sessions of equal builds, and noises with tails.
NOISES = (
    *(row for row in FAMILY if row.learned is None and not row.slower),
    Row("one cell: heavy tails (t2), rounds and sessions 1 %", heavy(0.01, 0.01), cells=1),
    Row("a tenth of windows 30 % slower on both sides", bursts(0.1, 0.3)),
    Row("one cell: a tenth of windows 30 % slower on both sides", bursts(0.1, 0.3), cells=1),
    Row("one cell: 3 % of windows twice as slow on both sides", bursts(0.03, 1.0), cells=1),
    Row("tails in a third of processes: a fifth of windows 30 % slower", unlucky(1 / 3, 0.2, 0.3)),
    Row("one cell: tails in a third of processes", unlucky(1 / 3, 0.2, 0.3), cells=1),
)


class Mode(NamedTuple):
    """A second mode: so many of the candidate's windows are slower by so much."""

    share: float
    slower: float
    round_sd: float = 0.02


def warned(windows: Floats, comparisons: int) -> npt.NDArray[np.bool_]:
    """Return for each cell whether `suite.verdict.tail` names a slower tail.

    Args:
        windows: ln(seconds a step) of both sides, shape (2, runs, cells, sessions, rounds).
        comparisons: cells that share the error.
    """
    count, n = windows.shape[-1], windows.shape[-2]
    (kept, adjusted), ordered = halved(windows), np.sort(windows, axis=-1)
    beyond = windows.mean(axis=-1) - kept.mean(axis=-1)
    excess = beyond[0] - beyond[1]
    mean, centre = (each.mean(axis=-1, keepdims=True) for each in (windows, adjusted))
    influences = ordered - mean - count / kept.shape[-1] * (adjusted - centre)
    w2 = (influences**2).sum(axis=-1).sum(axis=0) / (count * (count - 1))
    within, own = w2.mean(axis=-1), excess.var(axis=-1, ddof=1)
    within_df = np.minimum(MOST_DF, within**2 * n**2 * 2 * (count - 1) / (w2**2).sum(axis=-1))
    df = within_df + n - 1
    error = np.sqrt(np.maximum((within_df * within + (n - 1) * own) / df, own) / n)
    shown = excess.mean(axis=-1)
    said: npt.NDArray[np.bool_] = (shown - stdtrit(df, 1 - ALPHA_WARN / comparisons) * error > 0) & (shown >= WORTH)
    return said & ((windows[0] - windows[1]).mean(axis=(-1, -2)) > 0)


def false_warnings(row: Row) -> list[int]:
    """Return in how many runs of equal builds any cell is said to have a slower tail, for each of `SESSIONS`."""
    windows = row.draw(np.random.default_rng(4), (RUNS, row.cells, max(SESSIONS), ROUNDS))
    return [int(warned(windows[:, :, :, :n], row.cells).any(axis=1).sum()) for n in SESSIONS]


def named(mode: Mode, sessions: int, cells: int, runs: int = 2000) -> float:
    """Return in which share of runs a second mode in one of the cells is named."""
    rng = np.random.default_rng(5)
    windows = normal(mode.round_sd, 0.01)(rng, (runs, 1, sessions, ROUNDS))
    windows[0] += math.log1p(mode.slower) * (rng.random(windows[0].shape) < mode.share)
    return float(warned(windows, cells).mean())


@pytest.mark.parametrize("row", NOISES, ids=lambda row: row.name)
def test_equal_builds_are_rarely_said_to_have_a_slower_tail(row: Row) -> None:
    """In whole runs, over all cells, however many sessions they took."""
    wrong = false_warnings(row)
    assert not any(exceeds(count, RUNS, ALPHA_WARN) for count in wrong), wrong


def test_a_tail_of_the_rounds_alone_would_be_named_too_often() -> None:
    """The rows can find a rule that takes rounds for the unit: some processes have tails for a whole session."""
    rng = np.random.default_rng(1)
    rounds = unlucky(0.1, 0.5, 0.3)(rng, (RUNS, 1, 3, ROUNDS))
    ratios = rounds[0] - rounds[1]
    every = (ratios - np.median(ratios, axis=-1, keepdims=True)).reshape(RUNS, -1)
    wrong = every.mean(axis=-1) > 2.4 * every.std(axis=-1) / every.shape[-1] ** 0.5
    assert exceeds(int(wrong.sum()), RUNS, ALPHA_WARN)
    assert not exceeds(int(warned(rounds, 1).sum()), RUNS, ALPHA_WARN)


@pytest.mark.parametrize(("sessions", "least"), [(6, 0.6), (10, 0.95)])
def test_a_second_mode_of_a_tenth_of_the_rounds_is_named(sessions: int, least: float) -> None:
    assert named(Mode(0.1, 0.3), sessions, 1) >= least


@pytest.mark.parametrize("mode", [Mode(0.0, 0.0), Mode(0.1, 0.3), Mode(0.2, 0.3, 0.07)])
def test_the_simulated_rule_is_the_rule(mode: Mode) -> None:
    rng = np.random.default_rng(2)
    windows = normal(mode.round_sd, 0.01)(rng, (40, 1, 6, ROUNDS))
    windows[0] += mode.slower * (rng.random(windows[0].shape) < mode.share)
    judged = [tail(windows_of(windows[:, run, 0]), 3) for run in range(40)]
    assert [bool(each.said) for each in judged if each] == warned(windows, 3)[:, 0].tolist()


def sessions(slow: float, count: int = 4, shift: float = 0.0) -> list[Windows]:
    """Return sessions of sixteen windows around `shift`, two of which are slower by `slow`, and a base's around 0."""
    quiet = [-0.01, -0.006, -0.003, 0.0, 0.003, 0.006, 0.01] * 2
    return [
        Windows([shift + each for each in (*quiet, slow + number / 1000, slow)], [*quiet, 0.0, 0.0])
        for number in range(count)
    ]


def test_the_warning_says_what_is_slow_what_is_not_and_what_it_costs() -> None:
    judged = tail(sessions(0.3), 1)
    assert judged is not None
    assert judged.said == (
        "a slow tail grew: the slowest tenth of its rounds is 35.1% slower than the base's next to them, the faster "
        "half 0.0% slower; on average the tail costs 3.8%, at least 0.9% (99% confidence)"
    )
    assert judged.ratio.low is not None
    assert 1 < judged.ratio.low < judged.ratio.estimate


def test_a_smaller_or_shorter_tail_and_a_slower_middle_are_not_named() -> None:
    assert tail(sessions(0.3, count=2), 1) is None
    for rounds in (sessions(0.05), sessions(-0.3), sessions(0.0, shift=0.2)):
        judged = tail(rounds, 1)
        assert judged is not None
        assert judged.said == ""


def test_cells_of_a_run_share_the_error() -> None:
    one, many = tail(sessions(0.16), 1), tail(sessions(0.16), 10_000)
    assert one is not None
    assert many is not None
    assert (bool(one.said), bool(many.said)) == (True, False)
