"""From windows to rounds, sessions and ratios: what is paired, and what is left out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from suite.plan.cells import Arm
from suite.records.record import Timing, Window
from suite.run import samples
from suite.run.observations import Observations
from tests.support.measurements import STEPS, add_session, add_sessions, arm, cell, forth_and_back, run_of, settings

OWN, BASE, PIN = arm(), arm(side="base"), arm(side="pinned")
OTHER, OTHERS_BASE = arm(trainer="scratch"), arm(trainer="scratch", side="base")


def quiet_and_busy(busy: set[int], times: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)) -> Observations:
    """Return a run of one session; block n takes `times[n]` seconds a step."""
    run = run_of(cell())
    add_session(run, [[(OWN, step_s)] * 2 for step_s in times], busy)
    return run


def test_slowest_rank_counts_and_a_window_holds_many_steps() -> None:
    run = run_of(cell())
    session = add_session(run, [[(OWN, 1.0)]])
    session.windows[0] = Window(arm=OWN.id, block=0, duration_ns=(3 * STEPS * 10**9, 5 * STEPS * 10**9))
    assert samples.over_sessions(run, OWN) == [pytest.approx(math.log(5.0))]
    assert samples.step_samples_s(run, OWN) == [pytest.approx(5.0)]


def test_round_pairs_neighbours() -> None:
    """A machine that doubles its time from visit to visit: only neighbours see the same machine."""
    run = run_of(cell())
    add_session(
        run, [[(OWN, 1.0), (BASE, 1.0), (BASE, 2.0), (OWN, 2.2)], [(BASE, 4.0), (OWN, 4.4), (OWN, 8.0), (BASE, 8.0)]]
    )
    [rounds] = samples.contrast(run, OWN, BASE)
    assert sorted(rounds) == pytest.approx([0.0, 0.0, math.log(1.1), math.log(1.1)])


def test_each_of_three_sides_is_paired_with_the_candidate() -> None:
    run = run_of(cell())
    add_session(run, [forth_and_back({BASE: 1.0, PIN: 5.0, OWN: 1.1})])
    assert samples.contrast(run, OWN, BASE) == [pytest.approx([math.log(1.1)] * 2)]
    assert samples.contrast(run, OWN, PIN) == [pytest.approx([math.log(1.1 / 5)] * 2)]


def test_cells_that_share_a_base_are_paired_with_its_nearest_window() -> None:
    """The base is timed four times in every block; the machine is twice as slow for the second cell."""
    run = run_of(cell(), cell(trainer="scratch"))
    block = [(OWN, 1.1), (BASE, 1.0), (BASE, 2.0), (OTHER, 2.4)]
    add_session(run, [[*block, *reversed(block)]])
    assert samples.contrast(run, OWN, BASE) == [pytest.approx([math.log(1.1)] * 2)]
    assert samples.contrast(run, OTHER, BASE) == [pytest.approx([math.log(1.2)] * 2)]


def test_a_machine_that_drifts_slows_no_cell_between_two_windows_of_a_shared_base() -> None:
    """Every window takes 1 % longer than the one before, and the second cell is between two of the base's."""
    run = run_of(cell(), cell(trainer="scratch"))
    order = [OWN, BASE, OTHER, BASE]
    add_session(run, [[(arm, 1.01**place) for place, arm in enumerate([*order, *reversed(order)])]])
    for own in (OWN, OTHER):
        [rounds] = samples.contrast(run, own, BASE)
        assert len(rounds) == 2
        assert sum(rounds) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("busy", "left_out", "location"),
    [
        (set(), set(), math.log(8.0) / 2),
        ({2, 3}, {2, 3}, math.log(2.0) / 2),
        ({0, 1, 3}, set(), math.log(8.0) / 2),
        ({0, 1, 2, 3}, set(), math.log(8.0) / 2),
    ],
)
def test_disturbed_blocks_are_left_out_unless_they_are_most(
    busy: set[int], left_out: set[int], location: float
) -> None:
    run = quiet_and_busy(busy)
    assert run.sessions[0].left_out == left_out
    assert run.sessions[0].to_record().left_out == tuple(sorted(left_out))
    assert samples.over_sessions(run, OWN) == [pytest.approx(location)]
    assert samples.step_samples_s(run, OWN) == pytest.approx([1, 1, 2, 2, 4, 4, 8, 8]), "raw samples hold all blocks"


@pytest.mark.parametrize("times", [(1.0, 1.0, 1.0, 1.0), (1.0, 1e6, 1e-6, 1.0), (1e6, 1.0, 1.0, 1.0)])
def test_times_do_not_decide_which_blocks_are_left_out(times: tuple[float, ...]) -> None:
    assert quiet_and_busy({0}, times).sessions[0].left_out == {0}


def test_interrupted_block_without_conditions_counts() -> None:
    run = quiet_and_busy({0})
    run.sessions[0].conditions.pop()
    assert run.sessions[0].left_out == {0}


def test_session_without_both_arms_has_no_ratio() -> None:
    run = run_of(cell())
    add_sessions(run, {OWN: 1.0}, count=2)
    add_sessions(run, {OWN: 1.2, BASE: 1.0}, count=3)
    assert len(samples.over_sessions(run, OWN)) == 5
    assert len(samples.log_ratios(run, OWN, BASE)) == 3
    assert samples.contrast(run, OWN, OTHERS_BASE) == []
    assert samples.over_sessions(run, OTHER) == []


@pytest.mark.parametrize(("mode", "efficiency"), [("strong", 0.8), ("weak", 1.6)])
def test_efficiency_compares_with_the_trainer_on_one_device(mode: str, efficiency: float) -> None:
    """t_1 / (k t_k) where both share a batch, t_1 / t_k where each has its own."""
    many, one = arm(mode=mode), arm(1)
    run = run_of(cell(mode=mode), config=settings(modes=(mode,)))
    add_session(run, [forth_and_back({one: 1.6, OTHER: 9.0, many: 1.0})])
    assert samples.log_efficiencies(run, many) == [pytest.approx(math.log(efficiency))]


def with_others(disturbed: set[int], blocks: int = 4) -> Observations:
    """Return a session of candidate and base, in which the windows at these places take twice as long."""
    run = run_of(cell())
    session = add_session(run, [forth_and_back({OWN: 1.1, BASE: 1.0})] * blocks)
    for place, window in enumerate(session.windows):
        factor, share = (2, 0.5) if place in disturbed else (1, 0.01)
        duration_ns = tuple(factor * each for each in window.duration_ns)
        others_ns = tuple(round(share * each) for each in duration_ns)
        session.windows[place] = window.model_copy(update={"duration_ns": duration_ns, "others_ns": others_ns})
    return run


def test_a_round_is_left_out_with_a_window_in_which_others_had_the_cores() -> None:
    """Windows 4 and 9: a candidate's and a base's, of different rounds; the neighbour does not take their place."""
    run = with_others({4, 9})
    assert samples.contrast(run, OWN, BASE) == [pytest.approx([math.log(1.1)] * 6)]
    assert samples.over_sessions(run, OWN) == [pytest.approx(math.log(1.1))]


@pytest.mark.parametrize(("blocks", "disturbed"), [(4, range(10)), (16, range(4, 64)), (1, [0])])
def test_every_round_counts_where_too_few_are_undisturbed(blocks: int, disturbed: Sequence[int]) -> None:
    """Three of eight, two of 32, one of two."""
    [rounds] = samples.contrast(with_others(set(disturbed), blocks), OWN, BASE)
    assert len(rounds) == 2 * blocks


@pytest.mark.parametrize("silent", [OWN, BASE])
def test_every_round_counts_where_one_side_does_not_tell(silent: Arm) -> None:
    """One with child processes; otherwise its own disturbed windows would stay, and the other side's would not."""
    run = with_others({4, 9})
    windows = run.sessions[0].windows
    for place, window in enumerate(windows):
        if window.arm == silent.id:
            windows[place] = window.model_copy(update={"others_ns": ()})
    assert len(samples.contrast(run, OWN, BASE)[0]) == 8


@pytest.mark.parametrize(("share", "rounds"), [(1, 32), (2, 24)])
def test_every_round_counts_where_one_side_is_disturbed_far_more_often(share: int, rounds: int) -> None:
    """It may do so itself. Windows of the candidate alone, or of both sides, of eight rounds or sixteen."""
    own = [place for place in range(64) if place % 4 in (0, 3)]
    disturbed = own[:20] if share == 1 else own[:4] + [place + 1 for place in own[4:8:2]] + [17, 18]
    assert len(samples.contrast(with_others(set(disturbed), 16), OWN, BASE)[0]) == rounds


def timed_again(told: bool = True, own: Sequence[int] = (4, 12), base: Sequence[int] = (5, 9)) -> Observations:
    """Return `with_others`, whose disturbed windows were timed again undisturbed."""
    run, undisturbed = with_others({*own, *base}, 16), with_others(set(), 16).sessions[0].windows
    windows = run.sessions[0].windows
    for place, window in enumerate(windows):
        if window.disturbed:
            first = Timing(duration_ns=window.duration_ns, others_ns=window.others_ns)
            windows[place] = undisturbed[place].model_copy(update={"first": first})
        if not told and window.arm == BASE.id:
            windows[place] = undisturbed[place].model_copy(update={"others_ns": ()})
    return run


def test_a_window_that_was_timed_again_counts_with_its_last_times() -> None:
    run = timed_again()
    assert samples.contrast(run, OWN, BASE) == [pytest.approx([math.log(1.1)] * 32)]
    assert samples.over_sessions(run, OWN) == [pytest.approx(math.log(1.1))]
    assert sorted(samples.step_samples_s(run, OWN)) == pytest.approx([1.1] * 30 + [2.2] * 2), "raw ones are the first"


@pytest.mark.parametrize(("told", "own"), [(False, (4, 12)), (True, range(0, 36, 4))], ids=["one side", "far more"])
def test_first_times_count_where_the_last_would_favour_a_side(told: bool, own: Sequence[int]) -> None:
    """A side does not tell for how long others had its cores, or is disturbed far more often and may do so itself."""
    run = timed_again(told, own, ())
    [rounds] = samples.contrast(run, OWN, BASE)
    assert len(rounds) == 32
    assert sum(value > math.log(2.0) for value in rounds) == len(own)


@pytest.mark.parametrize(("undisturbed", "rounds"), [(0, 32), (7, 32), (8, 8), (32, 32)])
def test_last_times_count_however_often_windows_were_disturbed_at_first(undisturbed: int, rounds: int) -> None:
    """All were at first, and some again; a quarter of undisturbed rounds is enough to leave out the others."""
    run, again = with_others(set(range(64)), 16), with_others(set(range(2 * undisturbed, 64)), 16)
    windows = run.sessions[0].windows
    for place, window in enumerate(windows):
        longer = 3 if window.arm == OWN.id else 1
        first = window.model_copy(update={"duration_ns": tuple(longer * each for each in window.duration_ns)})
        windows[place] = again.sessions[0].windows[place].model_copy(update={"first": first})
    assert samples.contrast(run, OWN, BASE) == [pytest.approx([math.log(1.1)] * rounds)]


def shared_base(own: int, base: int) -> Observations:
    """Return 32 windows of the candidate and 288 of a base that other cells share; so many of each were disturbed."""
    run = run_of(cell())
    session = add_session(run, [[(OWN, 1.1), *[(BASE, 1.0)] * 18, (OWN, 1.1)]] * 16)
    for timed, count in ((OWN, own), (BASE, base)):
        places = [place for place, window in enumerate(session.windows) if window.arm == timed.id]
        disturbed = places[:: len(places) // count][:count] if count else []
        for place in places:
            duration_ns = session.windows[place].duration_ns
            others_ns = tuple(round((0.5 if place in disturbed else 0.01) * each) for each in duration_ns)
            session.windows[place] = session.windows[place].model_copy(update={"others_ns": others_ns})
    return run


@pytest.mark.parametrize(("own", "base", "left_out"), [(4, 36, True), (20, 20, False), (0, 0, False)])
def test_a_shared_base_is_disturbed_as_often_by_the_share_of_its_windows(own: int, base: int, left_out: bool) -> None:
    """An eighth of both; 20 windows of both, which are most of the candidate's and few of the base's."""
    [rounds] = samples.contrast(shared_base(own, base), OWN, BASE)
    assert (len(rounds) < 32) is left_out


def test_what_a_session_shows_does_not_change_with_later_ones() -> None:
    """In the first session both sides are disturbed alike, in the second the candidate far more often."""
    run = with_others({1, 4, 6, 7}, 16)
    [before] = samples.contrast(run, OWN, BASE)
    later = with_others({place for place in range(64) if place % 4 in (0, 3)}, 16).sessions[0]
    run.sessions.append(replace(later, number=1))
    after = samples.contrast(run, OWN, BASE)
    assert [len(rounds) for rounds in after] == [len(before), 32]
    assert len(before) < 32
