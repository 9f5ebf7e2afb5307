"""Where the time went: which variants of which arms are timed, what failures cost."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from suite.plan import cells
from suite.plan.cells import PLAIN, Arm, Cell, Side
from suite.plan.scripts import Script
from suite.plan.workloads import of_script
from suite.processes.failure import WorkerFailure
from suite.processes.jobs import Probed
from suite.properties.answers import About
from suite.records.record import Probe, WaterfallRecord
from suite.run import attribution, results
from suite.run.groups import Groups
from suite.run.observations import Comparison, Observations
from suite.run.session import Sessions
from suite.run.variants import Target
from suite.verdict import Outcome
from tests.support.measurements import AGAINST, FED, QUIET, add_sessions, arm, cell, job, run_of, settings, why_missing

TWO, WEAK = cell(2), cell(2, mode="weak")
SCRIPT = Cell("train", "train", "weak", 2)
OWN, ONE, INDEPENDENT = arm(2), arm(1), arm(2, trainer=PLAIN)
TARGET, WEAK_TARGET, BASE_TARGET = Target(TWO, "candidate"), Target(WEAK, "candidate"), Target(TWO, "base")
COMPARISON = Comparison({"base": AGAINST}, (TWO,))

# Milliseconds a step of one device on 256 samples; every other time follows from it and from what a test adds.
ONE_MS = 40.0
PAIRS = 4  # of rounds in a session: the windows of one side's eight variants take 0.52 s, and a side has 5 s


class Scripted:
    """Replaces a group of workers: answers probes like a machine that loses `lost_ms` milliseconds by cause."""

    def __init__(
        self,
        arms: Sequence[Arm],
        lost_ms: dict[str, float],
        broken: Sequence[str] = (),
        cold_ms: float = 0.0,
        *,
        hangs: bool = False,
        disturbed: int = 0,
        extra_s: float = 0.0,
    ) -> None:
        self.arms = {arm.id: arm for arm in arms}
        self.lost_ms, self.broken = lost_ms, broken  # variants that end the group
        self.cold_ms = cold_ms  # of every variant's first window
        self.hangs = hangs  # what is broken
        self.disturbed = disturbed  # so many of four windows of "step", the first of them; they take half as long again
        self.extra_s, self.now = extra_s, 0.0  # that every window takes of the time, beside its steps
        self.deadlines: list[float] = []
        self.asked: list[str] = []  # variants, in order
        self.windows: dict[str, set[tuple[int, int]]] = {}  # of each, untimed steps and steps

    def request(
        self, kind: type[Probed], command: str, timeout_s: float, *, name: str, steps: int, variant: dict[str, Any]
    ) -> list[Probed]:
        assert command == "probe"
        assert timeout_s >= 20
        self.deadlines.append(timeout_s)
        arm, point = self.arms[name], point_of(self.arms[name], variant)
        self.asked.append(point)
        self.windows.setdefault(point, set()).add((variant["lead_in"], steps))
        if point in self.broken:
            raise WorkerFailure("group", f"rank 0: {point} went wrong", timed_out=self.hangs)
        lost = {"small batch": 0.0, "contention": 0.0, "overhead": 0.0, "exchange": 0.0, "feed": 0.0} | self.lost_ms
        ms = ONE_MS if arm.mode == "weak" or (arm.world_size == 1 and variant["share"] == 1) else ONE_MS / 2
        if ms < ONE_MS:
            ms += lost["small batch"]
        if arm.world_size == 2 and not variant["alone"]:
            ms += lost["contention"]
        if arm.trainer != PLAIN and arm.world_size == 2:
            ms += lost["overhead"] + variant["exchange"] * lost["exchange"]
        ms += lost["feed"] * (not variant["resident"])
        cold_ms = self.cold_ms if self.asked.count(point) == 1 else 0.0
        others_ms = ms / 2 if point == "step" and (self.asked.count(point) - 1) % 4 < self.disturbed else 0.0
        duration_ns = round((ms + others_ms) * 1e6) * steps + round(cold_ms * 1e6)
        self.now += duration_ns / 1e9 + self.extra_s
        answer = kind(duration_ns=duration_ns, others_ns=round(others_ms * 1e6) * steps)
        return [answer, *[kind(duration_ns=None) if variant["alone"] else answer] * (arm.world_size - 1)]


def point_of(arm: Arm, variant: dict[str, Any]) -> str:
    if arm.trainer == PLAIN:
        return "plain_alone" if variant["alone"] else "plain"
    if arm.world_size == 1:
        return "part" if variant["share"] > 1 else "one_resident" if variant["resident"] else "one"
    if not variant["exchange"]:
        return "unsynced"
    return "resident" if variant["resident"] else "step"


def timed(*measured: Cell, unsynced: bool = True, **changes: Any) -> Observations:
    """Return a run whose sessions have timed these cells."""
    run = run_of(*measured, **changes)
    add_sessions(run, {run.plan.own(each): 0.03 for each in measured})
    sides: list[Side] = ["candidate", *run.comparison.bases]
    for side in sides:
        for trainer in dict.fromkeys([*(each.trainer for each in measured), PLAIN]):
            run.trainers[side, trainer] = About(processes="per-device", unsynced=unsynced)
        for each in measured:
            run.jobs |= {needed: job(needed) for needed in Target(each, side).arms(run).values()}
    run.gradient_bytes[OWN] = 516_272
    return run


def probe(
    run: Observations,
    *wanted: Target,
    lost_ms: dict[str, float] | None = None,
    broken: Sequence[str] = (),
    left_s: float = 100.0,
    cold_ms: float = 0.0,
    hangs: bool = False,
    disturbed: int = 0,
    extra_s: float = 0.0,
) -> Scripted:
    """Measure waterfalls after every session of the run, by the group's clock unless the run has another."""
    sessions = Sessions(run, {}, random.Random(0), None, lambda: left_s - group.now, lambda line: None)  # type: ignore[arg-type]
    sessions.step_s = {OWN: 0.02}
    arms = attribution.arms(run, wanted)
    group = Scripted(arms, lost_ms or {}, broken, cold_ms, hangs=hangs, disturbed=disturbed, extra_s=extra_s)
    if run.plan.clock is time.monotonic:
        run.plan = replace(run.plan, clock=lambda: group.now, begun_s=0.0)
    for session in run.sessions:
        groups = Groups(session, dict.fromkeys(arms, group))  # type: ignore[arg-type]
        attribution.probing(run, sessions, wanted, lambda line: None)(groups)
    return group


def taken_in(run: Observations, session: int = 0) -> tuple[Probe, ...]:
    """Return the probes of a session, as the run's record has them."""
    return run.sessions[session].to_record().probes


def only(run: Observations, which: Cell = TWO) -> WaterfallRecord:
    [fall] = attribution.waterfalls(run, which, failed=False)
    return fall


def bars_ms(fall: WaterfallRecord) -> dict[str, float]:
    return {"+".join(bar.causes): round(bar.step_s.estimate * 1e3, 6) for bar in fall.bars}


def test_cells_on_several_devices_have_a_waterfall_and_share_what_it_needs() -> None:
    run = run_of(cell(1), TWO, WEAK)
    targets = attribution.targets(run, run.plan.cells, ["candidate"])
    assert targets == [TARGET, WEAK_TARGET]
    weak = arm(2, mode="weak")
    assert attribution.arms(run, targets) == [ONE, INDEPENDENT, OWN, cells.arm("candidate", PLAIN, WEAK), weak]


class TestBars:
    """From windows of a machine whose losses are known to their bars."""

    @pytest.mark.parametrize(
        ("cause", "expected_ms"),
        [("small batch", 6.0), ("contention", 6.0), ("overhead", 6.0), ("exchange", 6.0), ("feed", 3.0)],
    )
    def test_planted_loss_is_found_under_its_name(self, cause: str, expected_ms: float) -> None:
        """A feed that does not get faster with devices costs the rest of its share, half of it on two."""
        run = timed(TWO)
        probe(run, TARGET, lost_ms={cause: 6.0})
        expected = dict.fromkeys(("small batch", "contention", "imbalance", "overhead", "exchange", "feed"), 0.0)
        assert bars_ms(only(run)) == pytest.approx({**expected, cause: expected_ms}, abs=1e-3)
        assert only(run).sessions == len(run.sessions)

    def test_weak_scaling_needs_no_part_of_the_batch(self) -> None:
        run = timed(WEAK)
        assert "part" not in probe(run, WEAK_TARGET, lost_ms={"exchange": 4.0}).asked
        assert only(run, WEAK).ideal_s.estimate == pytest.approx(ONE_MS / 1e3)
        assert bars_ms(only(run, WEAK))["exchange"] == pytest.approx(4.0, abs=1e-3)

    def test_trainers_with_the_same_class_name_keep_their_own(self) -> None:
        twins = [cell(2, trainer=trainer) for trainer in ("a.py:Mine", "b.py:Mine")]
        run = timed(*twins)
        for twin, lost_ms in zip(twins, (4.0, 7.0), strict=True):
            probe(run, Target(twin, "candidate"), lost_ms={"exchange": lost_ms})
        assert [bars_ms(only(run, twin))["exchange"] for twin in twins] == pytest.approx([4.0, 7.0], abs=1e-3)
        assert [each.waterfalls[0].bars for each in results.to_record(run).cells] == [
            only(run, twin).bars for twin in twins
        ]

    @pytest.mark.parametrize(
        ("unsynced", "broken", "asked", "note"),
        [
            (False, (), 0, "ddp has no step_unsynced, so its overhead and its exchange are one bar"),
            (True, ("unsynced",), 1, "unsynced of candidate:ddp:lenet:strong:2 could not be timed: rank 0: unsynced"),
        ],
        ids=["the trainer lacks it", "it breaks"],
    )
    def test_missing_variant_merges_its_bars_and_says_why(
        self, unsynced: bool, broken: tuple[str, ...], asked: int, note: str
    ) -> None:
        run = timed(TWO, unsynced=unsynced)
        group = probe(run, TARGET, lost_ms={"exchange": 4.0, "overhead": 2.0}, broken=broken)
        assert group.asked.count("unsynced") == asked, "what broke is not tried again"
        assert bars_ms(only(run))["overhead+exchange"] == pytest.approx(6.0, abs=1e-3)
        [said] = only(run).notes
        assert said.startswith(note)
        assert run.lost == {}


class TestRounds:
    """How often the variants are timed, and in which order."""

    def test_variants_are_warmed_up_and_then_timed_forwards_and_backwards(self) -> None:
        run = timed(TWO)
        del run.sessions[1:]
        asked = probe(run, TARGET).asked
        warming, asked = asked[:16], asked[16:]
        first, *rounds = (asked[start : start + 8] for start in range(0, len(asked), 8))
        assert warming[::2] == warming[1::2] == first
        assert [first, *rounds] == [first, first[::-1]] * PAIRS
        assert len(taken_in(run)) == 8 * 2 * PAIRS

    @pytest.mark.parametrize("cold_ms", [400.0, 3000.0])
    def test_windows_have_as_many_steps_after_a_cold_first_one(self, cold_ms: float) -> None:
        """A part of the batch has new shapes, for which a GPU's libraries choose kernels and compilers compile."""
        warm, cold = timed(TWO), timed(TWO)
        probe(warm, TARGET)
        probe(cold, TARGET, cold_ms=cold_ms)
        assert [taken.steps for taken in taken_in(cold)] == [taken.steps for taken in taken_in(warm)]

    @pytest.mark.parametrize(("budget_s", "probed"), [(28.0, 0), (30.0, 4)])
    def test_with_a_base_a_cell_has_a_tenth_of_the_budget(self, budget_s: float, probed: int) -> None:
        """Sixteen variants of 60 ms take 2.9 s; long steps must not make a comparison many times longer."""
        run = timed(TWO, config=settings(against=AGAINST, budget_s=budget_s), comparison=COMPARISON)
        probe(run, TARGET, BASE_TARGET)
        assert sum(bool(session.probes) for session in run.sessions) == probed
        assert ("the budget did not leave the 3 s" in why_missing(attribution.why_none(run, TWO))) == (not probed)

    @pytest.mark.parametrize(("disturbed", "lost_ms"), [(0, 0.0), (1, 0.0), (2, 0.0), (4, 10.0)])
    def test_a_window_that_others_disturbed_is_timed_again(self, disturbed: int, lost_ms: float) -> None:
        """Where all are disturbed, that is how the machine is."""
        run = timed(TWO)
        asked = probe(run, TARGET, disturbed=disturbed).asked
        assert bars_ms(only(run))["feed"] == pytest.approx(lost_ms, abs=1e-3)
        assert (len(asked) > len(run.sessions) * (16 + 16 * PAIRS)) == (disturbed > 0)

    def test_variants_with_a_feed_have_whole_turns_of_the_loaders_processes(self) -> None:
        windows = probe(timed(TWO, config=settings(workloads=(FED,))), TARGET).windows
        assert windows["one"] == {(0, 1), (4, 4), (4, 8)}, "two to warm up"
        assert windows["step"] == {(0, 1), (4, 4), (4, 12)}
        assert windows["resident"] == {(0, 1), (0, 2), (0, 3)}

    @pytest.mark.parametrize(("dirty", "kept"), [(0, True), (1, True), (2, False)])
    def test_a_scripts_window_that_holds_something_else_is_taken_again_or_left_out(
        self, dirty: int, kept: bool
    ) -> None:
        """So many windows in a row hold an evaluation."""

        class Evaluates(Scripted):
            def request(self, *asked: Any, **told: Any) -> list[Probed]:
                answers = super().request(*asked, **told)
                place = len(self.asked) % (dirty + 1)
                return [replace(answer, unclean="an evaluation" if place else "") for answer in answers]

        run = timed(SCRIPT, config=settings(workloads=(of_script(Script(name="train", command="train.py")),)))
        target = Target(SCRIPT, "candidate")
        group = Evaluates(attribution.arms(run, [target]), {})
        groups = Groups(run.sessions[0], dict.fromkeys(group.arms.values(), group))  # type: ignore[arg-type]
        taken = attribution._Variant(run, groups, target, "apart").window(3, 0, 60.0)
        assert (taken is not None) == kept
        assert not run.lost

    def test_order_is_drawn_for_every_session(self) -> None:
        run = timed(TWO)
        probe(run, TARGET)
        assert len({tuple(taken.point for taken in taken_in(run, number)) for number in range(len(run.sessions))}) > 1

    def test_variants_of_candidate_and_base_are_neighbours(self) -> None:
        """What passes on the machine meanwhile meets both sides; which of them is first turns from round to round."""
        run = timed(TWO, comparison=COMPARISON)
        probe(run, TARGET, BASE_TARGET)
        taken = [(probe.point, probe.side) for probe in taken_in(run)]
        assert len(taken) == 2 * 8 * 2 * PAIRS
        for (point, side), (next_point, next_side) in zip(taken[::2], taken[1::2], strict=True):
            assert (point, {side, next_side}) == (next_point, {"candidate", "base"})
        assert taken[:16] == taken[31:15:-1]

    def test_waterfalls_share_the_time_of_a_session(self) -> None:
        run = timed(TWO, WEAK)
        probe(run, TARGET, WEAK_TARGET)
        assert 2 <= 1 + max(taken.round for taken in taken_in(run)) < 2 * PAIRS

    @pytest.mark.parametrize(
        ("fixed", "budget_s", "probed"), [(True, 1.0, 0), (True, 60.0, 1), (False, 1.0, 4), (False, 60.0, 4)]
    )
    def test_spent_budget_leaves_two_rounds_in_the_sessions_that_always_take_place(
        self, fixed: bool, budget_s: float, probed: int
    ) -> None:
        """A budget of the user's own has one such session, where the waterfalls take no longer than the budget."""
        run = timed(TWO, config=settings(fixed=fixed, budget_s=budget_s))
        probe(run, TARGET, left_s=-1.0)
        assert [len(taken_in(run, number)) for number in range(4)] == [16] * probed + [0] * (4 - probed)
        for session in run.sessions:
            session.probes.clear()
        assert ("the budget did not leave" in why_missing(attribution.why_none(run, TWO))) == (probed < 4)


class TestBudget:
    """How many cells are taken apart: as many as the budget has time for, the largest world sizes first."""

    CELLS = (cell(2), cell(4), cell(8), cell(8, mode="weak"))

    def taken_apart(
        self, extra_s: float, left_s: float, sessions: int = 4, **changes: Any
    ) -> tuple[Observations, list[set[int]]]:
        """Return the run, and the world sizes of which cells were taken apart in each of its sessions."""
        run = timed(*self.CELLS, config=settings(**changes))
        del run.sessions[sessions:]
        probe(run, *[Target(each, "candidate") for each in self.CELLS], extra_s=extra_s, left_s=left_s)
        return run, [{each.world_size for each in session.probes} for session in run.sessions]

    def test_a_profiles_budget_bounds_them_in_the_sessions_that_always_take_place(self) -> None:
        """Windows take a second more than their steps, and a cell 38 s. Four sessions have half a minute each."""
        run, sizes = self.taken_apart(1.0, left_s=70.0, budget_s=180.0, sessions=1)
        assert sizes == [{8}]
        late = attribution.left_out(run)
        assert [each.world_size for each in late] == [2, 4, 8]
        notes = {each: why_missing(attribution.why_none(run, each)) for each in self.CELLS}
        assert [each for each in self.CELLS if notes[each]] == [each for each in self.CELLS if each in late]
        assert notes[cell(2)].startswith("the budget did not leave the 3")

    def test_one_of_the_largest_is_taken_apart_whatever_it_takes(self) -> None:
        _, sizes = self.taken_apart(10.0, left_s=-100.0, budget_s=180.0)
        assert sizes == [{8}] * 4

    def test_all_are_where_the_budget_has_time(self) -> None:
        run, sizes = self.taken_apart(0.0, left_s=100.0, budget_s=180.0)
        assert sizes == [{2, 4, 8}] * 4
        assert attribution.left_out(run) == []

    def test_a_users_budget_bounds_them_by_the_time_that_they_really_take(self) -> None:
        """The first session may have all of it, and later ones what is left."""
        run, sizes = self.taken_apart(1.0, left_s=80.0, budget_s=90.0, fixed=True)
        assert sizes == [{8}, set(), set(), set()]
        assert attribution.left_out(run) == [cell(2), cell(4)]

    def test_beside_a_base_three_cells_have_a_tenth_each(self) -> None:
        """Windows of both sides take 50 s a cell, and three may take 100 s together: the slowest come first."""
        comparison = Comparison({"base": AGAINST}, self.CELLS)
        run = timed(*self.CELLS, config=settings(against=AGAINST, budget_s=333.0), comparison=comparison)
        wanted = [Target(each, side) for each in self.CELLS for side in attribution.SIDES]
        probe(run, *wanted, extra_s=0.7, left_s=500.0)
        assert [len(session.probes) for session in run.sessions] == [2] * 4
        assert {each for session in run.sessions for each in session.probes} == set(self.CELLS[:2])

    def test_what_cannot_fit_is_named_before_the_first_session_and_not_started(self) -> None:
        run = run_of(*self.CELLS, config=settings(budget_s=180.0))
        timed_run = timed(*self.CELLS, config=settings(budget_s=180.0))
        run.trainers, run.jobs = timed_run.trainers, timed_run.jobs
        sessions = Sessions(run, {}, random.Random(0), None, lambda: 180.0, lambda line: None)  # type: ignore[arg-type]
        wanted = [Target(each, "candidate") for each in self.CELLS]
        assert attribution.carried(run, sessions, wanted, session_s=20.0) == wanted
        kept = attribution.carried(run, sessions, wanted, session_s=88.0)
        assert {target.cell.world_size for target in kept} == {8}
        assert attribution.left_out(run)[:2] == [cell(2), cell(4)]


class TestFailures:
    """What a failed probe costs."""

    @pytest.mark.parametrize(
        ("point", "lost"),
        [("step", OWN), ("resident", OWN), ("one", ONE), ("one_resident", ONE)]
        + [(point, None) for point in ("unsynced", "part", "plain", "plain_alone")],
    )
    def test_candidate_is_lost_in_a_real_training_step_and_not_in_a_variant(self, point: str, lost: Arm | None) -> None:
        run = timed(cell(1), TWO)
        probe(run, TARGET, broken=(point,))
        causes = {arm: failure.cause for arm, failure in run.lost.items()}
        assert causes == ({lost: f"rank 0: {point} went wrong"} if lost else {})
        assert [each.outcome is Outcome.ERROR for each in results.to_record(run).cells] == [lost == ONE, lost == OWN]

    @pytest.mark.parametrize(
        ("target", "point", "lost"),
        [
            (TARGET, "step", {OWN}),
            (TARGET, "unsynced", set()),
            (BASE_TARGET, "step", set()),
        ],
    )
    def test_beside_a_base_only_the_candidates_own_step_can_be_an_error(
        self, target: Target, point: str, lost: set[Arm]
    ) -> None:
        """Cells that look slower are taken apart while they are still judged; of the base only blocks count."""
        run = timed(TWO, comparison=COMPARISON)
        probe(run, target, broken=(point,))
        assert run.lost.keys() == lost
        assert (results.to_record(run).cells[0].outcome is Outcome.ERROR) is bool(lost)

    def test_variant_that_hangs_is_tried_at_one_world_size(self) -> None:
        four = cell(4)
        run = timed(TWO, four)
        assert (
            probe(run, TARGET, Target(four, "candidate"), broken=("unsynced",), hangs=True).asked.count("unsynced") == 1
        )
        for each in (TWO, four):
            [said] = only(run, each).notes
            assert said.startswith(f"unsynced of candidate:ddp:lenet:strong:{each.world_size} could not be timed: ")
        assert run.lost == {}

    def test_first_window_gets_what_is_left_of_the_budget(self) -> None:
        run = timed(TWO, clock=lambda: 119.0, begun_s=0.0)
        assert max(probe(run, TARGET).deadlines) == 60.0

    def test_lost_trainer_is_not_asked(self) -> None:
        run = timed(TWO)
        run.trainers.pop(("candidate", "ddp"))
        run.lost[OWN] = WorkerFailure("group", "rank 0: gone")
        assert probe(run, TARGET).asked == []
        assert results.to_record(run).cells[0].waterfalls == ()


class TestRecord:
    """What a reader is told."""

    def test_sentence_names_the_model_its_gradients_and_its_batch(self) -> None:
        run = timed(TWO)
        probe(run, TARGET, lost_ms={"exchange": 5.0})
        assert only(run).sentence == (
            "Exchanging lenet's 0.5 MB of gradients costs 5.0 ms a step (20 %); "
            "batch 128 per device is still efficient."
        )

    @pytest.mark.parametrize(("foreign", "named"), [(0.9, True), (0.05, False)])
    def test_sentence_names_other_processes_above_the_limit(self, foreign: float, named: bool) -> None:
        run = timed(TWO)
        for session in run.sessions:
            session.conditions = [QUIET.model_copy(update={"foreign": foreign})]
        probe(run, TARGET, lost_ms={"contention": 5.0})
        assert ("other processes used 90% of a core" in only(run).sentence) is named

    def test_failed_cell_has_both_waterfalls_and_what_grew(self) -> None:
        run = timed(TWO, comparison=COMPARISON)
        probe(run, BASE_TARGET, lost_ms={"exchange": 5.0})
        probe(run, TARGET, lost_ms={"exchange": 9.0})
        candidate, base = attribution.waterfalls(run, TWO, failed=True)
        assert (candidate.side, base.side) == ("candidate", "base")
        assert candidate.sentence.startswith(
            "Against the base, exchange takes 4.0 [4.0, 4.0] ms a step longer; the whole takes 4.0 [4.0, 4.0] ms a step"
        )
        assert "longer" not in base.sentence
        assert "Against" not in attribution.waterfalls(run, TWO, failed=False)[0].sentence

    @pytest.mark.parametrize(
        ("exchange_ms", "said"),
        [
            (6.0, "exchange takes 1.0 [1.0, 1.0] ms a step longer than the base's (20% longer), after 4 sessions"),
            (5.1, ""),
            (4.0, ""),
        ],
        ids=["longer", "too little to say", "shorter"],
    )
    def test_part_that_grew_in_a_cell_that_passes_is_a_warning(self, exchange_ms: float, said: str) -> None:
        run = timed(TWO, config=settings(against=AGAINST), comparison=COMPARISON)
        run.sessions.clear()
        add_sessions(run, {OWN: 0.03, arm(2, side="base"): 0.03})
        probe(run, BASE_TARGET, lost_ms={"exchange": 5.0})
        probe(run, TARGET, lost_ms={"exchange": exchange_ms})
        [passed] = results.to_record(run).cells
        assert passed.outcome is Outcome.PASS
        assert passed.cautions == ((f"{said}; the cell does not fail by it",) if said else ())
