"""A slow tail or a second mode is named under an equal middle; equal builds are rarely said to have one."""

from __future__ import annotations

import numpy as np
import pytest

from docs.evidence import tails
from docs.evidence.family import Row, normal
from docs.evidence.tails import NOISES, ROUNDS, Mode
from suite.verdict import Windows
from suite.verdict.outcome import ALPHA_WARN
from suite.verdict.tail import tail
from tests.support.rates import exceeds
from tests.support.windows import windows_of

RUNS = 500


@pytest.mark.parametrize("row", NOISES, ids=lambda row: row.name)
def test_equal_builds_are_rarely_said_to_have_a_slower_tail(row: Row) -> None:
    """In whole runs, over all cells, however many sessions they took."""
    wrong = tails.false_warnings(row, RUNS)
    assert not any(exceeds(count, RUNS, ALPHA_WARN) for count in wrong), wrong


def test_a_tail_of_the_rounds_alone_would_be_named_too_often() -> None:
    """The rows can find a rule that takes rounds for the unit: some processes have tails for a whole session."""
    rng = np.random.default_rng(1)
    rounds = tails.unlucky(0.1, 0.5, 0.3)(rng, (RUNS, 1, 3, ROUNDS))
    ratios = rounds[0] - rounds[1]
    every = (ratios - np.median(ratios, axis=-1, keepdims=True)).reshape(RUNS, -1)
    wrong = every.mean(axis=-1) > 2.4 * every.std(axis=-1) / every.shape[-1] ** 0.5
    assert exceeds(int(wrong.sum()), RUNS, ALPHA_WARN)
    assert not exceeds(int(tails.warned(rounds, 1).sum()), RUNS, ALPHA_WARN)


@pytest.mark.parametrize(("sessions", "least"), [(6, 0.6), (10, 0.95)])
def test_a_second_mode_of_a_tenth_of_the_rounds_is_named(sessions: int, least: float) -> None:
    assert tails.named(Mode(0.1, 0.3), sessions, 1) >= least


@pytest.mark.parametrize("mode", [Mode(0.0, 0.0), Mode(0.1, 0.3), Mode(0.2, 0.3, 0.07)])
def test_the_simulated_rule_is_the_rule(mode: Mode) -> None:
    rng = np.random.default_rng(2)
    windows = normal(mode.round_sd, 0.01)(rng, (40, 1, 6, ROUNDS))
    windows[0] += mode.slower * (rng.random(windows[0].shape) < mode.share)
    judged = [tail(windows_of(windows[:, run, 0]), 3) for run in range(40)]
    assert [bool(each.said) for each in judged if each] == tails.warned(windows, 3)[:, 0].tolist()


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
