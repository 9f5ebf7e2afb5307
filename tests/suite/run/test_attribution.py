"""Where the time went: which variants of which arms are timed, what becomes of failures; planted causes for real."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from docs.evidence.causes import WORKLOADS
from docs.evidence.planted_causes import DELAY_S
from suite.plan import cells
from suite.plan.base import Base
from suite.plan.cells import PLAIN, Arm, Cell, Side
from suite.processes.failure import WorkerFailure
from suite.records.record import WaterfallRecord
from suite.room.quiet import available_cores
from suite.run import attribution, results
from suite.run.attribution import MAX_PAIRS, Target
from suite.run.observations import Observations
from suite.run.session import Crew, Sessions
from suite.verdict import Outcome
from tests.support.measurements import QUIET, add_sessions, arm, cell, measurement, order, settings
from tests.support.project import REPOSITORY, Project

TWO, WEAK = cell(2), cell(2, mode="weak")
OWN, ONE, INDEPENDENT = arm(2), arm(1), arm(2, trainer=PLAIN)

# Milliseconds a step of one device on 256 samples; everything else follows from it and from what a test adds.
ONE_MS = 40.0


class Scripted:
    """In the place of a group of workers: answers probes as a machine would whose losses are known.

    Attributes:
        lost_ms: by cause.
        broken: (trainer, variant) that end the group.
        asked: every variant that was asked for, by trainer, in order.
    """

    def __init__(self, arms: Sequence[Arm], lost_ms: dict[str, float], broken: Sequence[str] = ()) -> None:
        self.arms = {arm.id: arm for arm in arms}
        self.lost_ms, self.broken = lost_ms, broken
        self.asked: list[str] = []

    def request(
        self, command: str, timeout_s: float, *, name: str, steps: int, variant: dict[str, Any]
    ) -> list[dict[str, Any]]:
        assert command == "probe"
        assert timeout_s >= 20
        arm, point = self.arms[name], point_of(self.arms[name], variant)
        self.asked.append(point)
        if point in self.broken:
            raise WorkerFailure("group", f"rank 0: {point} went wrong")
        lost = {"small batch": 0.0, "contention": 0.0, "overhead": 0.0, "exchange": 0.0, "feed": 0.0} | self.lost_ms
        ms = ONE_MS if arm.mode == "weak" or (arm.world_size == 1 and variant["share"] == 1) else ONE_MS / 2
        if ms < ONE_MS:
            ms += lost["small batch"]
        if arm.world_size == 2 and not variant["alone"]:
            ms += lost["contention"]
        if arm.trainer != PLAIN and arm.world_size == 2:
            ms += lost["overhead"] + variant["exchange"] * lost["exchange"]
        ms += lost["feed"] * (not variant["resident"])
        answer = {"duration_ns": round(ms * 1e6) * steps}
        ranks = arm.world_size
        return [answer, *[{"duration_ns": None} if variant["alone"] else answer] * (ranks - 1)]


def point_of(arm: Arm, variant: dict[str, Any]) -> str:
    if arm.trainer == PLAIN:
        return "plain_alone" if variant["alone"] else "plain"
    if arm.world_size == 1:
        return "part" if variant["share"] > 1 else "one_resident" if variant["resident"] else "one"
    if not variant["exchange"]:
        return "unsynced"
    return "resident" if variant["resident"] else "step"


def prepared(
    *measured: Cell, unsynced: bool = True, sides: Sequence[Side] = ("candidate",), **changes: Any
) -> Observations:
    """A run whose sessions have timed these cells."""
    run = measurement(*measured, **changes)
    add_sessions(run, {run.plan.own(each): 0.03 for each in measured})
    for session in run.sessions:
        session.probes.clear()
    for side in sides:
        for trainer in ("ddp", PLAIN):
            run.trainers[side, trainer] = {"unsynced": unsynced, "processes": "per-device"}
    for each in measured:
        for side in sides:
            for timed in Target(each, side).arms(run).values():
                run.orders[timed] = order(timed)
    run.gradient_bytes[OWN] = 516_272
    return run


def take_apart(
    run: Observations,
    *wanted: Target,
    lost_ms: dict[str, float] | None = None,
    broken: Sequence[str] = (),
    left_s: float = 100.0,
) -> Scripted:
    """Probe after every session of the run."""
    sessions = Sessions({}, {}, random.Random(0), None, lambda: left_s, lambda line: None)  # type: ignore[arg-type]
    sessions.step_s = {OWN: 0.02}
    group = Scripted(attribution.arms(run, wanted), lost_ms or {}, broken)
    for session in run.sessions:
        crew = Crew(session, dict.fromkeys(attribution.arms(run, wanted), group))  # type: ignore[arg-type]
        attribution.probing(run, sessions, wanted, lambda line: None)(crew)
    return group


def only(run: Observations, which: Cell = TWO) -> WaterfallRecord:
    [found] = attribution.waterfalls(run, which)
    return found


def bars_ms(found: WaterfallRecord) -> dict[str, float]:
    return {"+".join(bar.causes): round(bar.step_s.estimate * 1e3, 6) for bar in found.bars}


class TestTargets:
    """Which cells have a waterfall, and what has to live for it."""

    def test_several_devices_of_their_own_have_a_waterfall(self) -> None:
        run = measurement(cell(1), TWO, WEAK)
        assert attribution.targets(run, run.plan.cells, ["candidate"]) == [
            Target(TWO, "candidate"),
            Target(WEAK, "candidate"),
        ]

    def test_strong_and_weak_share_processes_and_the_one_device(self) -> None:
        run = measurement(TWO, WEAK)
        found = attribution.arms(run, attribution.targets(run, run.plan.cells, ["candidate"]))
        assert found.count(ONE) == 1
        assert INDEPENDENT in found
        assert cells.arm("candidate", PLAIN, WEAK) in found


class TestProbing:
    """From windows of a machine whose losses are known to their bars."""

    @pytest.mark.parametrize("cause", ["small batch", "contention", "overhead", "exchange"])
    def test_what_a_machine_loses_is_found_under_its_name(self, cause: str) -> None:
        run = prepared(TWO)
        take_apart(run, Target(TWO, "candidate"), lost_ms={cause: 6.0})
        expected = dict.fromkeys(("small batch", "contention", "imbalance", "overhead", "exchange", "feed"), 0.0)
        assert bars_ms(only(run)) == pytest.approx({**expected, cause: 6.0}, abs=1e-3)
        assert only(run).sessions == len(run.sessions)

    def test_a_feed_that_does_not_get_faster_with_devices_costs_the_rest_of_its_share(self) -> None:
        run = prepared(TWO)
        take_apart(run, Target(TWO, "candidate"), lost_ms={"feed": 6.0})
        assert bars_ms(only(run))["feed"] == pytest.approx(3.0, abs=1e-3)

    def test_every_variant_is_warmed_up_and_then_timed_forwards_and_backwards(self) -> None:
        run = prepared(TWO)
        del run.sessions[1:]
        asked = take_apart(run, Target(TWO, "candidate")).asked
        first, *rounds = (asked[start : start + 8] for start in range(0, len(asked), 8))
        assert rounds == [first, first[::-1]] * MAX_PAIRS
        assert len(run.sessions[0].probes) == 8 * 2 * MAX_PAIRS

    def test_waterfalls_share_a_sessions_time_and_a_spent_budget_leaves_a_pair_of_rounds(self) -> None:
        shared, spent = prepared(TWO, WEAK), prepared(TWO)
        take_apart(shared, *(Target(one, "candidate") for one in (TWO, WEAK)))
        take_apart(spent, Target(TWO, "candidate"), left_s=-1.0)
        rounds = [1 + max(probe.round for probe in run.sessions[0].probes) for run in (shared, spent)]
        assert 2 < rounds[0] < 2 * MAX_PAIRS
        assert rounds[1] == 2

    def test_weak_scaling_needs_no_part_of_the_batch(self) -> None:
        run = prepared(WEAK)
        assert "part" not in take_apart(run, Target(WEAK, "candidate"), lost_ms={"exchange": 4.0}).asked
        assert only(run, WEAK).ideal_s.estimate == pytest.approx(ONE_MS / 1e3)
        assert bars_ms(only(run, WEAK))["exchange"] == pytest.approx(4.0, abs=1e-3)

    def test_a_trainer_without_step_unsynced_has_one_bar_for_two_causes_and_says_why(self) -> None:
        run = prepared(TWO, unsynced=False)
        group = take_apart(run, Target(TWO, "candidate"), lost_ms={"exchange": 4.0, "overhead": 2.0})
        assert "unsynced" not in group.asked
        assert bars_ms(only(run))["overhead+exchange"] == pytest.approx(6.0, abs=1e-3)
        assert only(run).notes == ("ddp has no step_unsynced, so its overhead and its exchange are one bar",)

    def test_a_variant_that_breaks_costs_its_own_bar_and_is_not_tried_again(self) -> None:
        run = prepared(TWO)
        group = take_apart(run, Target(TWO, "candidate"), lost_ms={"exchange": 4.0}, broken=("unsynced",))
        assert group.asked.count("unsynced") == 1
        assert run.lost == {}
        assert bars_ms(only(run))["overhead+exchange"] == pytest.approx(4.0, abs=1e-3)
        assert "unsynced went wrong" in " ".join(only(run).notes)

    @pytest.mark.parametrize(
        ("point", "lost"),
        [("step", OWN), ("resident", OWN), ("one", ONE), ("one_resident", ONE)]
        + [(point, None) for point in ("unsynced", "part", "plain", "plain_alone")],
    )
    def test_a_candidate_that_fails_in_a_real_training_step_is_lost_and_in_a_variant_it_is_not(
        self, point: str, lost: Arm | None
    ) -> None:
        run = prepared(cell(1), TWO)
        take_apart(run, Target(TWO, "candidate"), broken=(point,))
        assert {arm: failure.cause for arm, failure in run.lost.items()} == (
            {lost: f"rank 0: {point} went wrong"} if lost else {}
        )
        assert [found.outcome is Outcome.ERROR for found in results.to_record(run).cells] == [lost == ONE, lost == OWN]

    def test_a_base_that_fails_while_it_is_taken_apart_leaves_what_was_found_beside_it(self) -> None:
        bases: dict[Side, Base] = {"base": Base("trainer", "ddp", trainer="ddp")}
        run = prepared(TWO, sides=("base",), bases=bases, beside=[TWO])
        take_apart(run, Target(TWO, "base"), broken=("step",))
        assert run.lost == {}

    def test_what_would_not_fit_into_the_budget_is_left_out_and_says_so(self) -> None:
        run = prepared(TWO, config=settings(min_sessions=1))
        first = run.sessions[0]
        take_apart(run, Target(TWO, "candidate"), left_s=-1.0)
        assert [session.number for session in run.sessions if session.probes] == [first.number]
        run.sessions[0].probes.clear()
        assert "the budget did not leave" in attribution.note(run, TWO)

    def test_sessions_that_take_place_whatever_the_budget_is_are_all_used(self) -> None:
        run = prepared(TWO)
        take_apart(run, Target(TWO, "candidate"), left_s=-1.0)
        assert all(session.probes for session in run.sessions[:4])

    def test_a_trainer_that_never_ran_is_not_asked(self) -> None:
        run = prepared(TWO)
        run.trainers.pop(("candidate", "ddp"))
        run.lost[OWN] = WorkerFailure("group", "rank 0: gone")
        assert take_apart(run, Target(TWO, "candidate")).asked == []
        assert results.to_record(run).cells[0].waterfalls == ()

    def test_the_order_is_drawn_anew_in_every_session(self) -> None:
        run = prepared(TWO)
        take_apart(run, Target(TWO, "candidate"))
        orders = {tuple(probe.point for probe in session.probes) for session in run.sessions}
        assert len(orders) > 1


class TestRecord:
    """What a reader is told."""

    def test_the_sentence_knows_the_cell(self) -> None:
        run = prepared(TWO)
        take_apart(run, Target(TWO, "candidate"), lost_ms={"exchange": 5.0})
        assert only(run).sentence == (
            "Exchanging lenet's 0.5 MB of gradients costs 5.0 ms a step (20 %); "
            "batch 128 per device is still efficient."
        )

    def test_other_processes_are_named_where_they_were_seen(self) -> None:
        run = prepared(TWO)
        for session in run.sessions:
            session.conditions = [QUIET.model_copy(update={"foreign": 0.9})]
        take_apart(run, Target(TWO, "candidate"), lost_ms={"contention": 5.0})
        assert "other processes used 90% of a core" in only(run).sentence

    def test_after_a_fail_the_base_stands_beside_and_what_grew_is_said(self) -> None:
        run = prepared(TWO)
        run.bases = {"base": Base("trainer", "ddp", trainer="ddp")}
        both: tuple[Side, ...] = ("candidate", "base")
        for side in both:
            for trainer in ("ddp", PLAIN):
                run.trainers.setdefault((side, trainer), {"unsynced": True})
            for timed in Target(TWO, side).arms(run).values():
                run.orders[timed] = order(timed)
        take_apart(run, Target(TWO, "base"), lost_ms={"exchange": 5.0})
        take_apart(run, Target(TWO, "candidate"), lost_ms={"exchange": 9.0})
        candidate, base = attribution.waterfalls(run, TWO)
        assert (candidate.side, base.side) == both
        assert candidate.sentence.startswith(
            "Against the base, exchange takes 4.0 [4.0, 4.0] ms a step longer; the whole takes 4.0 [4.0, 4.0] ms a step"
        )
        assert "longer" not in base.sentence

    def test_probes_and_waterfalls_are_in_the_record_and_come_back(self) -> None:
        run = prepared(TWO)
        take_apart(run, Target(TWO, "candidate"), lost_ms={"exchange": 5.0})
        kept = results.to_record(run)
        again = type(kept).model_validate_json(kept.model_dump_json())
        assert again.cells[0].waterfalls == attribution.waterfalls(run, TWO)
        assert len(again.sessions[0].probes) == 8 * 2 * MAX_PAIRS
        assert next(found for found in again.arms if found.id == OWN.id).gradient_bytes == 516_272


@pytest.mark.end_to_end
@pytest.mark.skipif(len(available_cores()) < 2, reason="two ranks need two cores")
def test_planted_causes_are_named_first_and_bars_sum_to_the_gap(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One session of real ranks: a delayed exchange, a late rank, and replicas that are given their work late.

    Each plant is a sleep of more than a step, so that no neighbour on the machine costs as much.
    """
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    (project.path / "pyproject.toml").write_text(WORKLOADS)
    planted = {"DelayedExchange": "exchange", "SlowRank": "imbalance", "LateDispatch": "overhead"}
    trainers = [f"--scaling-trainer=docs.evidence.planted_causes:{name}" for name in planted]
    result = project.pytest(
        "-m", "scaling", "-k", "test_scaling", "--scaling-devices", "cpu:2", "--scaling-world-sizes", "2",
        "--scaling-mode", "strong", "--scaling-workload", "images", "--scaling-budget", "1", *trainers,
    )  # fmt: skip
    assert result.ret == 0
    [record] = project.records()
    found = {cells.short(each.trainer): each.waterfalls[0] for each in record.cells}
    named = {name: max(made.bars, key=lambda bar: bar.step_s.estimate).causes for name, made in found.items()}
    assert named == {name: (cause,) for name, cause in planted.items()}
    for made in found.values():
        gap = made.measured_s.estimate - made.ideal_s.estimate
        assert sum(bar.step_s.estimate for bar in made.bars) == pytest.approx(gap, rel=1e-9)
    sleeping = next(bar for bar in found["DelayedExchange"].bars if bar.causes == ("exchange",))
    assert sleeping.step_s.estimate > 0.9 * DELAY_S  # as long as it was held up, at least
