"""From windows to rounds, sessions and ratios: what is paired, what is left out, and what never is."""

from __future__ import annotations

import math

import pytest

from suite.records.record import Window
from suite.run import samples
from suite.run.observations import Observations
from tests.support.measurements import (
    STEPS,
    add_session,
    add_sessions,
    arm,
    cell,
    forth_and_back,
    measurement,
    settings,
)

OWN, BASE = arm(), arm(side="base")
OTHER, OTHERS_BASE = arm(trainer="scratch"), arm(trainer="scratch", side="base")


def quiet_and_busy(busy: set[int], times: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)) -> Observations:
    """One session; block n takes `times[n]` seconds a step."""
    run = measurement(cell())
    add_session(run, [[(OWN, step_s)] * 2 for step_s in times], busy)
    return run


def test_the_slowest_rank_counts_and_a_window_holds_many_steps() -> None:
    run = measurement(cell())
    session = add_session(run, [[(OWN, 1.0)]])
    session.windows[0] = Window(arm=OWN.id, block=0, duration_ns=(3 * STEPS * 10**9, 5 * STEPS * 10**9))
    assert samples.over_sessions(run, OWN) == [pytest.approx(math.log(5.0))]
    assert samples.step_samples_s(run, OWN) == [pytest.approx(5.0)]


def test_rounds_pair_what_was_timed_next_to_each_other() -> None:
    """A machine that doubles its time from visit to visit: only neighbours see the same machine."""
    run = measurement(cell())
    add_session(
        run, [[(OWN, 1.0), (BASE, 1.0), (BASE, 2.0), (OWN, 2.2)], [(BASE, 4.0), (OWN, 4.4), (OWN, 8.0), (BASE, 8.0)]]
    )
    [rounds] = samples.contrast(run, OWN, BASE)
    assert sorted(rounds) == pytest.approx([0.0, 0.0, math.log(1.1), math.log(1.1)])
    crossed = [math.log(own / base) for own, base in ((1.0, 2.0), (2.2, 1.0), (4.4, 8.0), (8.0, 4.0))]
    assert sorted(rounds) != pytest.approx(sorted(crossed))


def test_a_third_side_does_not_come_between() -> None:
    pinned = arm(side="pinned")
    run = measurement(cell())
    add_session(run, [forth_and_back({BASE: 1.0, pinned: 5.0, OWN: 1.1})])
    assert samples.contrast(run, OWN, BASE) == [pytest.approx([math.log(1.1)] * 2)]
    assert samples.contrast(run, OWN, pinned) == [pytest.approx([math.log(1.1 / 5)] * 2)]


def test_two_cells_with_one_base_are_each_paired_with_its_window_beside_them() -> None:
    """Both stand next to it in every block, so it is timed four times; the machine is twice as slow for the second."""
    run = measurement(cell(), cell(trainer="scratch"))
    block = [(OWN, 1.1), (BASE, 1.0), (BASE, 2.0), (OTHER, 2.4)]
    add_session(run, [[*block, *reversed(block)]])
    assert samples.contrast(run, OWN, BASE) == [pytest.approx([math.log(1.1)] * 2)]
    assert samples.contrast(run, OTHER, BASE) == [pytest.approx([math.log(1.2)] * 2)]


def test_disturbed_blocks_are_left_out() -> None:
    assert samples.over_sessions(quiet_and_busy({2, 3}), OWN) == [pytest.approx(math.log(2.0) / 2)]
    assert samples.over_sessions(quiet_and_busy(set()), OWN) == [pytest.approx((math.log(2.0) + math.log(4.0)) / 2)]


@pytest.mark.parametrize(
    ("busy", "left_out"), [({0}, {0}), ({0, 3}, {0, 3}), ({0, 1, 3}, set()), ({0, 1, 2, 3}, set())]
)
def test_where_most_blocks_are_disturbed_all_of_them_count(busy: set[int], left_out: set[int]) -> None:
    run = quiet_and_busy(busy)
    assert run.sessions[0].left_out == left_out
    assert run.sessions[0].to_record().left_out == tuple(sorted(left_out))


@pytest.mark.parametrize("times", [(1.0, 1.0, 1.0, 1.0), (1.0, 1e6, 1e-6, 1.0), (1e6, 1.0, 1.0, 1.0)])
def test_which_blocks_count_is_never_read_from_their_times(times: tuple[float, ...]) -> None:
    assert quiet_and_busy({0}, times).sessions[0].left_out == {0}


def test_a_block_cut_short_has_no_conditions_and_counts() -> None:
    """An interrupt comes before the second reading of the machine."""
    run = quiet_and_busy({0})
    run.sessions[0].conditions.pop()
    assert run.sessions[0].left_out == {0}


def test_raw_samples_hold_everything_disturbed_or_not() -> None:
    assert samples.step_samples_s(quiet_and_busy({2, 3}), OWN) == pytest.approx([1, 1, 2, 2, 4, 4, 8, 8])


def test_sessions_without_both_are_no_sample_of_their_ratio() -> None:
    run = measurement(cell())
    add_sessions(run, {OWN: 1.0}, count=2)
    add_sessions(run, {OWN: 1.2, BASE: 1.0}, count=3)
    assert len(samples.over_sessions(run, OWN)) == 5
    assert len(samples.log_ratios(run, OWN, BASE)) == 3
    assert samples.contrast(run, OWN, OTHERS_BASE) == []
    assert samples.over_sessions(run, OTHER) == []


@pytest.mark.parametrize(("mode", "efficiency"), [("strong", 0.8), ("weak", 1.6)])
def test_efficiency_is_against_the_same_trainer_on_one_device(mode: str, efficiency: float) -> None:
    """t_1 / (k t_k) where both share a batch, t_1 / t_k where each has one."""
    many, one = arm(mode=mode), arm(1)
    run = measurement(cell(mode=mode), config=settings(modes=(mode,)))
    add_session(run, [forth_and_back({one: 1.6, OTHER: 9.0, many: 1.0})])
    assert samples.log_efficiencies(run, many, one, mode) == [pytest.approx(math.log(efficiency))]
