"""From what was seen to the figures of a cell: facts that only grow, windows that are paired, times that count."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

import pytest

from suite.plan.cells import SINGLE, Arm
from suite.plan.config import Base
from suite.processes.failure import WorkerFailure
from suite.processes.jobs import Prepared
from suite.properties.answers import About
from suite.records.record import Timing, Window
from suite.run import results, samples
from suite.run.observations import Comparison, Facts, Observations
from tests.support.measurements import (
    AGAINST,
    STEPS,
    add_session,
    add_sessions,
    arm,
    cell,
    forth_and_back,
    run_of,
    settings,
    trained,
)

PLAIN = arm(1, trainer=SINGLE)


def test_texts_have_tokens_and_a_loss_and_gpus_their_flop() -> None:
    """256 samples of 64 tokens in half a second; a loss that is not finite is left out of the mean over seeds."""
    cells, own = (cell(2), cell(1)), arm(2)
    run = run_of(*cells)
    add_sessions(run, {own: 0.5, arm(1): 0.9})
    of_texts = replace(run.jobs[own], dataset=replace(run.jobs[own].dataset, tokens=64))
    run.jobs = Facts({**run.jobs, own: of_texts})
    run.sample_flop[own] = 10**6
    for seed, loss in ((1, 1.5), (2, 1.7), (3, None)):
        run.accuracies.append(trained(0.6, 2, seed).model_copy(update={"test_loss": (2.0, loss)}))
    texts, images = results.to_record(run).cells
    assert texts.samples_per_s is not None
    assert texts.tokens_per_s is not None
    assert texts.device_flop_per_s is not None
    assert texts.tokens_per_s.estimate == pytest.approx(64 * texts.samples_per_s.estimate)
    assert texts.tokens_per_s.low == pytest.approx(64 * (texts.samples_per_s.low or math.nan))
    assert texts.device_flop_per_s.estimate == pytest.approx(10**6 * texts.samples_per_s.estimate / 2)
    assert texts.test_loss == pytest.approx(1.6)
    assert (images.tokens_per_s, images.device_flop_per_s, images.test_loss) == (None, None, None)


def test_an_arm_has_its_trainers_oracle() -> None:
    run = run_of(cell(2))
    add_sessions(run, {arm(2): 0.5})
    assert [(kept.oracle, kept.has_reference) for kept in results.to_record(run).arms] == [(None, False)]
    run.trainers["candidate", arm(2).trainer] = About(processes="one", oracle="self", has_reference=True)
    assert [(kept.oracle, kept.has_reference) for kept in results.to_record(run).arms] == [("self", True)]


def test_an_arm_has_the_seed_of_its_weights_and_of_its_order() -> None:
    run = run_of(cell(2))
    add_sessions(run, {arm(2): 0.5})
    assert [kept.seed for kept in results.to_record(run).arms] == [run.jobs[arm(2)].seed]


@pytest.mark.parametrize(
    ("timed", "lost", "against", "note"),
    [
        ([PLAIN], False, None, ""),
        ([PLAIN], False, AGAINST, ""),
        ([PLAIN], True, None, ""),
        ([], False, AGAINST, "single is not timed in a run with a base: the budget is for the comparison"),
        ([], True, None, "single on one device failed: rank 0: gone"),
        ([], False, None, "needs single on one device in the same session"),
    ],
    ids=["there", "there beside a base", "lost later", "beside a base", "lost", "another session"],
)
def test_a_missing_speedup_has_its_reason(timed: list[Arm], lost: bool, against: Base | None, note: str) -> None:
    run = run_of(cell(2), config=settings(against=against))
    add_sessions(run, dict.fromkeys([arm(2), *timed], 0.5))
    if lost:
        run.lost[PLAIN] = WorkerFailure("group", "rank 0: gone")
    [found] = results.to_record(run).cells
    assert (found.speedup is None, found.why("speedup")) == (bool(note), note)


RAISED = ["Traceback (most recent call last):\n  ...\nKeyError: 'labels'"]


@pytest.mark.parametrize(
    ("unfit", "failure", "the_users", "why"),
    [
        ("its loss is one thing", WorkerFailure("group", "not tried"), True, "its loss is one thing. "),
        ("", WorkerFailure("group", "rank 0: KeyError: 'labels'", RAISED), True, "it calls net(X) and takes the mean"),
        ("", WorkerFailure("group", "rank 0: KeyError: 'labels'", RAISED), False, None),
        ("", WorkerFailure("group", "rank 0: CUDA out of memory", RAISED), True, None),
        ("", WorkerFailure("group", "rank 0: no answer", ["rank 0, stack:\n..."], timed_out=True), True, None),
    ],
    ids=["targets", "form", "built-in workload", "memory", "hang"],
)
def test_a_workload_that_the_plain_trainer_cannot_train_is_no_fault_of_the_users(
    unfit: str, failure: WorkerFailure, the_users: bool, why: str | None
) -> None:
    dataset = Prepared(name="synthetic", folder="", train_samples=256, test_samples=100, unfit=unfit)
    run = run_of(cell(2), datasets={"auto": dataset})
    add_sessions(run, {arm(2): 0.5})
    if the_users:
        own = run.plan.workload("lenet").model_copy(update={"model": "mine.py:net"})
        run.plan = replace(run.plan, config=replace(run.plan.config, workloads=(own,)))
    run.lost[PLAIN] = failure
    [found] = results.to_record(run).cells
    if why is None:
        assert found.why("speedup") == f"single on one device failed: {failure.cause}"
        return
    start = f"the plain trainer, single, cannot train lenet, whose form may need a loss of your own: {why}"
    assert found.why("speedup").startswith(start)
    assert found.why("speedup").endswith(
        "This is no fault of your trainer; efficiency compares it with itself on one device"
    )


def ratios(run: Observations, own: Arm, base: Arm) -> list[list[float]]:
    """Return ln(t / t) of the windows that are paired, by session."""
    return [windows.log_ratios for windows in samples.by_session(run, own, base).values()]


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
    [rounds] = ratios(run, OWN, BASE)
    assert sorted(rounds) == pytest.approx([0.0, 0.0, math.log(1.1), math.log(1.1)])


def test_each_of_three_sides_is_paired_with_the_candidate() -> None:
    run = run_of(cell())
    add_session(run, [forth_and_back({BASE: 1.0, PIN: 5.0, OWN: 1.1})])
    assert ratios(run, OWN, BASE) == [pytest.approx([math.log(1.1)] * 2)]
    assert ratios(run, OWN, PIN) == [pytest.approx([math.log(1.1 / 5)] * 2)]


def test_cells_that_share_a_base_are_paired_with_its_nearest_window() -> None:
    """The base is timed four times in every block; the machine is twice as slow for the second cell."""
    run = run_of(cell(), cell(trainer="scratch"))
    block = [(OWN, 1.1), (BASE, 1.0), (BASE, 2.0), (OTHER, 2.4)]
    add_session(run, [[*block, *reversed(block)]])
    assert ratios(run, OWN, BASE) == [pytest.approx([math.log(1.1)] * 2)]
    assert ratios(run, OTHER, BASE) == [pytest.approx([math.log(1.2)] * 2)]


def test_a_machine_that_drifts_slows_no_cell_between_two_windows_of_a_shared_base() -> None:
    """Every window takes 1 % longer than the one before, and the second cell is between two of the base's."""
    run = run_of(cell(), cell(trainer="scratch"))
    order = [OWN, BASE, OTHER, BASE]
    add_session(run, [[(arm, 1.01**place) for place, arm in enumerate([*order, *reversed(order)])]])
    for own in (OWN, OTHER):
        [rounds] = ratios(run, own, BASE)
        assert len(rounds) == 2
        assert sum(rounds) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("busy", "left_out", "location"),
    [
        (set(), set(), math.log(2.0) / 2),
        ({0, 3}, {0, 3}, math.log(2.0)),
        ({0, 1, 3}, set(), math.log(2.0) / 2),
        ({0, 1, 2, 3}, set(), math.log(2.0) / 2),
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
    assert ratios(run, OWN, OTHERS_BASE) == []
    assert samples.over_sessions(run, OTHER) == []


@pytest.mark.parametrize(("mode", "efficiency"), [("strong", 0.8), ("weak", 1.6)])
def test_efficiency_compares_with_the_trainer_on_one_device(mode: str, efficiency: float) -> None:
    """t_1 / (k t_k) where both share a batch, t_1 / t_k where each has its own."""
    many, one = arm(mode=mode), arm(1)
    run = run_of(cell(mode=mode), config=settings(modes=(mode,)))
    add_session(run, [forth_and_back({one: 1.6, OTHER: 9.0, many: 1.0})])
    assert samples.log_efficiencies(run, many) == [pytest.approx(math.log(efficiency))]


def timed_again(
    own: Collection[int] = (), base: Collection[int] = (), still: Collection[int] = (), blocks: int = 8
) -> Observations:
    """Return a session of candidate and base, some of whose windows took three times as long at first.

    Args:
        own, base: which of each side's, in the order of timing.
        still: which of all places of the session were disturbed again, and took twice as long.
        blocks: of the session.
    """
    run = run_of(cell())
    session = add_session(run, [forth_and_back({OWN: 1.1, BASE: 1.0})] * blocks)
    seen = {OWN.id: 0, BASE.id: 0}
    for place, window in enumerate(session.windows):
        number, disturbed = seen[window.arm], own if window.arm == OWN.id else base
        seen[window.arm] += 1
        timing = taking(window, 2 if place in still else 1)
        first = taking(window, 3) if number in disturbed else None
        session.windows[place] = window.model_copy(update={**dict(timing), "first": first})
    return run


def taking(window: Window, factor: int) -> Timing:
    """Return the times of a window that took so many times as long, of which others had half where it is above 1."""
    duration_ns = tuple(factor * each for each in window.duration_ns)
    share = 0.5 if factor > 1 else 0.01
    return Timing(duration_ns=duration_ns, others_ns=tuple(round(share * each) for each in duration_ns))


def shown(run: Observations) -> list[float]:
    """Return what every session shows of the candidate and its base."""
    return [math.exp(ratio) for ratio in samples.log_ratios(run, OWN, BASE)]


def test_a_window_that_was_timed_again_counts_with_its_last_times() -> None:
    run = timed_again({1, 5}, {2, 3})
    assert ratios(run, OWN, BASE) == [pytest.approx([math.log(1.1)] * 16)]
    assert samples.over_sessions(run, OWN) == [pytest.approx(math.log(1.1))]
    assert sorted(samples.step_samples_s(run, OWN)) == pytest.approx([1.1] * 14 + [3.3] * 2), "raw ones are the first"


@pytest.mark.parametrize(
    ("still", "ratio"),
    [((), 1.1), (range(0, 32, 4), 1.1), (range(0, 32, 2), 1.1), (range(32), 2.2 / 2)],
    ids=["none", "half of one side", "half of both", "all"],
)
def test_windows_that_stay_disturbed_cost_nothing_while_they_are_the_slower_half(
    still: Collection[int], ratio: float
) -> None:
    assert shown(timed_again(still=still)) == [pytest.approx(ratio)]


def test_what_slows_most_windows_of_one_side_shows() -> None:
    """Three quarters of the candidate's windows take twice as long: one of two that count."""
    own = [place for place in range(32) if place % 4 in (0, 3)]
    assert shown(timed_again(still=own[:12])) == [pytest.approx(1.1 * math.sqrt(2))]


@pytest.mark.parametrize("silent", [OWN, BASE])
def test_first_times_count_where_one_side_does_not_tell(silent: Arm) -> None:
    """One with child processes; otherwise its own disturbed windows would stay, and the other side's would not."""
    run = timed_again(range(12), ())
    windows = run.sessions[0].windows
    for place, window in enumerate(windows):
        if window.arm == silent.id:
            windows[place] = window.model_copy(update={"others_ns": ()})
    assert shown(run) == [pytest.approx(1.1 * math.sqrt(3))]


@pytest.mark.parametrize(("own", "base", "first"), [(12, 0, True), (8, 0, False), (12, 10, False), (0, 12, True)])
def test_first_times_count_where_one_side_was_disturbed_far_more_often(own: int, base: int, first: bool) -> None:
    """It may do so itself. 12 and 0 of 16 differ by 3.5 standard errors, 8 and 0 by 2.8."""
    [rounds] = ratios(timed_again(range(own), range(base)), OWN, BASE)
    assert any(abs(value - math.log(1.1)) > 1 for value in rounds) is first


@pytest.mark.parametrize(("own", "base", "last"), [(4, 36, True), (20, 20, False), (0, 0, True)])
def test_a_shared_base_is_disturbed_as_often_by_the_share_of_its_windows(own: int, base: int, last: bool) -> None:
    """An eighth of both; 20 windows of both, which are most of the candidate's and few of the base's."""
    run = run_of(cell())
    session = add_session(run, [[(OWN, 1.1), *[(BASE, 1.0)] * 18, (OWN, 1.1)]] * 16)
    for timed, count in ((OWN, own), (BASE, base)):
        places = [place for place, window in enumerate(session.windows) if window.arm == timed.id]
        disturbed = places[:: len(places) // count][:count] if count else []
        for place in places:
            first = taking(session.windows[place], 3) if place in disturbed else None
            update = {**dict(taking(session.windows[place], 1)), "first": first}
            session.windows[place] = session.windows[place].model_copy(update=update)
    assert (shown(run) == [pytest.approx(1.1)]) is last


def test_what_a_session_shows_does_not_change_with_later_ones() -> None:
    """In the first session both sides are disturbed alike, in the second all windows of the candidate."""
    run = timed_again({1, 4}, {6, 7})
    [before] = shown(run)
    run.sessions.append(replace(timed_again(range(16), ()).sessions[0], number=1))
    assert shown(run) == [before, pytest.approx(3.3)]


def test_known_fact_keeps_its_value() -> None:
    facts = Facts({"a": 1})
    facts |= {"a": 1, "b": 2}
    with pytest.raises(ValueError, match="a is known as 1 and cannot become 3"):
        facts["a"] = 3
    with pytest.raises(ValueError, match="b is known as 2"):
        facts |= {"b": 3}
    assert facts == {"a": 1, "b": 2}


def test_a_cell_has_the_arms_of_the_bases_that_it_is_compared_with() -> None:
    other = cell(2, "scratch")
    bases = {"base": Base("trainer", "scratch", "scratch"), "pinned": Base("ref", "main")}
    run = run_of(cell(2), other, comparison=Comparison(bases, (cell(2), other), sides={other: ("pinned",)}))
    assert list(run.arms(cell(2)).values()) == [arm(2), arm(2, "scratch", "base"), arm(2, side="pinned")]
    assert list(run.arms(other).values()) == [arm(2, "scratch"), arm(2, "scratch", "pinned")]
