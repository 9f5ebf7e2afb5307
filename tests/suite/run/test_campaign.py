"""The campaign's loop: how many sessions, over which arms, and when it stops; with sessions that only pretend."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from suite.base.checkout import CheckoutError
from suite.cli import calibrate
from suite.plan.base import Base
from suite.plan.cells import Arm, Cell, Side
from suite.plan.collectives import CollectiveCell
from suite.plan.config import Config
from suite.plan.floors import Floor
from suite.processes.failure import WorkerFailure
from suite.records.record import Probe, Window
from suite.room.devices import Devices
from suite.run import campaign, results
from suite.run.attribution import SESSIONS, Target
from suite.run.observations import Observations
from suite.run.session import Crew, Session
from suite.verdict import Outcome
from tests.support.measurements import (
    BLOCKS,
    QUIET,
    STEPS,
    WOBBLE,
    accepted_run,
    arm,
    baseline,
    cell,
    forth_and_back,
    measurement,
    order,
    settings,
)
from tests.support.repositories import Repository

AGAINST = Base("ref", "v1.0 (1111111)", commit="1" * 40)
ONE, TWO = cell(1), cell(2)
OWN, BASE = arm(2), arm(2, side="base")
EQUAL = {arm(1): 1.0, arm(1, side="base"): 1.0, OWN: 0.5, BASE: 0.5}


class World:
    """Stands for workers, checkouts and the clock of a run.

    Attributes:
        step_s: seconds a step of every arm; one second where nothing is said.
        wobble: candidates are this much slower in every other session, and faster in the others.
        session_s: of each session; the last one stands for all after it.
        broken: arms that fail, by the session in which they do.
        shares: arms that go with another, whose processes they share.
        interrupted_in: the session in whose first block somebody presses Ctrl-C.
        not_there: sides whose commit cannot be checked out.
        timed: the arms of every session that timed blocks.
        beside: the arms that lived beside those of every session.
        probed: of which cells and sides somebody wanted to know where the time goes, by session.
        trained: the sessions after which training was asked for.
        said: every line.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.step_s: Mapping[Arm, float] = {}
        self.wobble = WOBBLE
        self.session_s: Sequence[float] = (10.0,)
        self.broken: dict[int, set[Arm]] = {}
        self.shares: dict[Arm, Arm] = {}
        self.interrupted_in: int | None = None
        self.not_there: set[Side] = set()
        self.timed: list[set[Arm]] = []
        self.beside: list[set[Arm]] = []
        self.probed: dict[int, list[tuple[str, Side]]] = {}
        self.trained: list[int] = []
        self.said: list[str] = []

    def measure(self, *cells: Cell, config: Config | None = None, **changes: Any) -> Observations:
        """Run a campaign, from the beginning of time."""
        self.now = 0.0
        self.timed.clear()
        self.beside.clear()
        self.probed.clear()
        self.run = measurement(*cells, config=config, planned=0, _begun=0.0, **changes)
        campaign.measure(self.run, Path(), self.said.append)
        return self.run

    def outcomes(self) -> dict[str, Outcome]:
        """By cell id."""
        return {found.id: found.outcome for found in results.to_record(self.run).cells}


class Pretending:
    """In the place of `suite.run.session.Sessions`."""

    def __init__(self, world: World) -> None:
        self.world, self.current = world, Session(-1)
        self.steps: dict[Arm, int] = {}
        self.gradient_bytes: dict[Arm, int] = {}
        self.anew = 0

    def plan_anew(self) -> None:
        self.anew += 1

    def run(
        self, units: Sequence[tuple[Arm, ...]], beside: Sequence[Arm], afterwards: Sequence[Callable[[Crew], None]]
    ) -> None:
        number = self.current.number + 1
        self.current = session = Session(number, "2026-01-01T00:00:00+00:00")
        arms = [timed for unit in units for timed in unit]
        if units:
            self.world.timed.append(set(arms))
        self.world.beside.append(set(beside))
        broken = self.world.broken.get(number, set()) & {*arms, *beside}
        session.failures |= dict.fromkeys(broken, WorkerFailure("group", "rank 0: gone"))
        gone = session.failures.keys() | {a for a, b in self.world.shares.items() if b in session.failures}
        moved = {
            a: self.world.step_s.get(a, 1.0) * math.exp((-1) ** number * self.world.wobble * (a.side == "candidate"))
            for a in arms
            if a not in gone
        }
        for block in range(BLOCKS if units else 0):
            for timed, step_s in forth_and_back(moved):
                self.steps[timed] = STEPS
                session.windows.append(Window(arm=timed.id, block=block, duration_ns=(round(step_s * STEPS * 1e9),)))
            session.conditions.append(QUIET)
            if number == self.world.interrupted_in:
                raise KeyboardInterrupt
        for act in afterwards:
            act(Crew(session))
        session.wall_s = self.world.session_s[min(number, len(self.world.session_s) - 1)]
        self.world.now += session.wall_s


class PretendedSides:
    """In the place of `suite.base.sides.Sides`."""

    pools: dict[Side, Any]

    def __init__(self, world: World) -> None:
        self.world, self.pools = world, {}

    def __enter__(self) -> PretendedSides:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def add(self, side: Side, base: Base) -> tuple[str, ...]:
        if side in self.world.not_there:
            raise CheckoutError(f"base {base.label}: it cannot be checked out")
        return ()

    def clerk(self, side: Side) -> Any:
        def ask(*_: object, **__: object) -> None:
            raise WorkerFailure("clerk", "the launcher did not start")

        return types.SimpleNamespace(start_s=2.0, ask=ask)

    def dismiss_clerks(self) -> None:
        return


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Everything outside of the loop."""
    made = World()

    def prepare(run: Observations, sides: Any, arms: Sequence[Arm], say: Any) -> None:
        run.orders |= {arm: order(arm) for arm in arms if arm not in run.lost}

    def training(*_: object) -> Callable[[Crew], None]:
        return lambda crew: made.trained.append(crew.session.number)

    def probing(run: Observations, sessions: Any, wanted: Sequence[Target], say: Any) -> Callable[[Crew], None]:
        def probe(crew: Crew) -> None:
            made.probed[crew.session.number] = [(target.cell.id, target.side) for target in wanted]
            for where, side in wanted:
                taken = Probe(cell=where.id, side=side, point="step", round=0, steps=1, duration_ns=(1,))
                crew.session.probes.append(taken)

        return probe

    monkeypatch.setattr(campaign.accuracy, "training", training)
    monkeypatch.setattr(campaign.attribution, "probing", probing)
    monkeypatch.setattr(campaign, "Sessions", lambda *_: Pretending(made))
    monkeypatch.setattr(campaign, "Sides", lambda *_: PretendedSides(made))
    monkeypatch.setattr(campaign.preparing, "prepare", prepare)
    monkeypatch.setattr(campaign, "neighbours", lambda devices: ("pid 1 (make) uses 90 % of a core",))
    monkeypatch.setattr("suite.run.plan.time", types.SimpleNamespace(monotonic=lambda: made.now))
    return made


def against(**changes: Any) -> Config:
    return settings(against=AGAINST, **changes)


class TestBudget:
    """How many sessions there are."""

    @pytest.mark.parametrize(("profile", "sessions"), [("quick", 6), ("full", 20)])
    def test_alone_more_only_narrow_the_intervals(self, world: World, profile: str, sessions: int) -> None:
        world.measure(TWO, config=settings(profile=profile, budget_s=1e6))
        assert len(world.timed) == sessions
        assert world.outcomes() == {TWO.id: Outcome.NO_BASELINE}

    def test_beside_a_base_all_of_it_may_be_used(self, world: World) -> None:
        """So much noise that nothing is decided."""
        world.step_s, world.wobble = EQUAL, 0.3
        run = world.measure(TWO, config=against(budget_s=250.0))
        assert (run.planned, len(world.timed)) == (25, 25)
        assert world.outcomes() == {TWO.id: Outcome.INCONCLUSIVE}

    def test_as_many_as_its_seconds_hold(self, world: World) -> None:
        run = world.measure(TWO, config=settings(budget_s=50.0))
        assert (run.planned, len(world.timed)) == (5, 5)

    def test_a_profile_is_stretched_to_the_fewest_that_decide(self, world: World) -> None:
        world.session_s = (100.0,)
        run = world.measure(TWO, config=settings(budget_s=120.0))
        assert (run.planned, len(world.timed)) == (4, 4)

    def test_the_users_own_budget_is_not(self, world: World) -> None:
        world.session_s = (100.0,)
        run = world.measure(TWO, config=settings(budget_s=120.0, min_sessions=1))
        assert (run.planned, len(world.timed)) == (1, 1)

    def test_the_users_own_budget_is_kept_where_sessions_become_longer(self, world: World) -> None:
        """Planned from the first, which took 10 s, and fixed: error was spent by that number."""
        world.session_s = (10.0, 20.0)
        run = world.measure(TWO, config=settings(budget_s=60.0, min_sessions=1))
        assert (run.planned, len(world.timed)) == (6, 3)
        assert run.plan.elapsed_s <= 60.0

    def test_one_session_there_always_is(self, world: World) -> None:
        world.measure(TWO, config=settings(budget_s=0.1, min_sessions=1))
        assert len(world.timed) == 1

    def test_training_is_no_part_of_what_a_session_costs(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is done once, with the first session's workers."""

        def train(run: Observations, *_: object) -> Callable[[Crew], None]:
            def act(crew: Crew) -> None:
                world.trained.append(crew.session.number)
                run.training_s = 30.0

            return act

        monkeypatch.setattr(campaign.accuracy, "training", train)
        world.session_s = (40.0, 10.0)
        assert world.measure(TWO, config=settings(budget_s=80.0)).planned == 1 + 40 // 10
        assert world.trained == [0]

    def test_a_calibration_has_its_number_and_decides_nothing(self, world: World) -> None:
        world.step_s = {**EQUAL, OWN: 5.0}
        for min_sessions, budget_s in ((4, 1.0), (1, 1.0), (4, 1e6)):
            config = against(calibrate=7, explain=False, budget_s=budget_s, min_sessions=min_sessions)
            assert world.measure(ONE, TWO, config=config).planned == 7
            assert world.timed == [{arm(1), arm(1, side="base"), OWN, BASE}] * 7


class TestBesideABase:
    """Every cell next to what the user named."""

    def test_it_stops_when_all_is_clear(self, world: World) -> None:
        world.step_s = EQUAL
        run = world.measure(ONE, TWO, config=against(budget_s=1000.0))
        assert set(world.outcomes().values()) == {Outcome.PASS}
        assert len(world.timed) < run.planned == 100

    def test_a_decided_cell_drops_out_and_the_others_go_on(self, world: World) -> None:
        world.step_s = {**EQUAL, arm(1): 2.0, OWN: 0.515}
        world.measure(ONE, TWO, config=against(budget_s=60.0))
        assert world.outcomes() == {ONE.id: Outcome.FAIL, TWO.id: Outcome.FAIL}
        assert world.timed[0] == set(EQUAL)
        assert world.timed[-1] == {OWN, BASE}

    def test_a_slowdown_fails_only_after_a_session_has_confirmed_it(self, world: World) -> None:
        world.step_s = {**EQUAL, OWN: 5.0}
        world.measure(TWO, config=against(budget_s=1000.0))
        assert world.outcomes() == {TWO.id: Outcome.FAIL}
        assert len(world.timed) >= 3

    def test_nothing_is_trained(self, world: World) -> None:
        world.measure(TWO, config=against())
        assert world.trained == []

    def test_a_floor_brings_the_one_device_it_is_measured_by(self, world: World) -> None:
        world.step_s = EQUAL
        world.measure(TWO, config=against(), floors={TWO: Floor(entry=1, efficiency=0.5)})
        assert world.timed[0] == {OWN, BASE, arm(1)}
        world.measure(TWO, config=against())
        assert world.timed[0] == {OWN, BASE}

    def test_a_commit_that_cannot_be_had_is_an_error_and_costs_no_session(self, world: World) -> None:
        world.not_there = {"base"}
        world.measure(ONE, TWO, config=against())
        assert set(world.outcomes().values()) == {Outcome.ERROR}
        assert world.timed == []

    @pytest.mark.parametrize("lost", [OWN, BASE], ids=["own", "base"])
    def test_what_breaks_is_an_error_and_the_others_go_on(self, world: World, lost: Arm) -> None:
        world.step_s, world.broken = EQUAL, {1: {lost}}
        world.measure(ONE, TWO, config=against())
        assert world.outcomes() == {ONE.id: Outcome.PASS, TWO.id: Outcome.ERROR}
        assert not {OWN, BASE} & world.timed[-1]


class TestAgainstStored:
    """Without a base: few sessions alone, and then beside the rebuilt commits of the accepted runs."""

    @pytest.fixture
    def repository(self, tmp_path: Path) -> Repository:
        made = Repository(tmp_path / "project")
        made.commit({"a.py": "a = 1\n"})
        return made

    def measure(self, world: World, repository: Repository, *cells: Cell, **changes: Any) -> Observations:
        """Three accepted runs of the repository's commit: half a second on two devices, one on one."""
        commit = repository.git("rev-parse", "HEAD")
        kept = [accepted_run({TWO: s, ONE: 2 * s}, n, commit) for n, s in enumerate((0.5, 0.501, 0.499))]
        config = settings(root=repository.path, **changes)
        return world.measure(*cells, config=config, baseline=baseline(*kept))

    @pytest.mark.parametrize("stored", [0.5, 0.6], ids=["as fast as stored", "slower than stored"])
    @pytest.mark.parametrize(("beside", "outcome"), [(1.0, Outcome.PASS), (1.2, Outcome.FAIL)])
    def test_the_rebuilt_commit_decides_whatever_stored_figures_say(
        self, world: World, repository: Repository, stored: float, beside: float, outcome: Outcome
    ) -> None:
        world.step_s = {OWN: stored, BASE: stored / beside}
        run = self.measure(world, repository, TWO, budget_s=1000.0)
        assert world.outcomes() == {TWO.id: outcome}
        assert run.alone == 3
        assert world.timed[3:] == [{OWN, BASE}] * (len(world.timed) - 3)
        assert 3 + 3 <= len(world.timed) < run.planned, "a clear case ends soon"
        [found] = results.to_record(run).cells
        assert [(c.rule, c.outcome, c.counts) for c in found.checks] == [
            ("time", outcome, True),
            ("stored", Outcome.INCONCLUSIVE, False),
            ("stored", Outcome.INCONCLUSIVE, False),
        ]
        assert found.checks[1].ratio is not None
        assert found.checks[1].ratio.low is not None

    def test_every_cell_that_was_accepted_is_measured_beside_it_and_no_other(
        self, world: World, repository: Repository
    ) -> None:
        world.step_s = {OWN: 0.5, BASE: 0.5}
        new = cell(2, "scratch")
        run = self.measure(world, repository, ONE, TWO, new)
        assert run.beside == [ONE, TWO]
        assert world.timed[3] == {OWN, BASE, arm(1), arm(1, side="base")}
        assert world.outcomes() == {ONE.id: Outcome.PASS, TWO.id: Outcome.PASS, new.id: Outcome.NO_BASELINE}

    @pytest.mark.parametrize(("budget_s", "alone"), [(40.0, 1), (90.0, 2), (1000.0, 3)])
    def test_most_of_the_budget_is_for_the_comparison(
        self, world: World, repository: Repository, budget_s: float, alone: int
    ) -> None:
        world.step_s, world.wobble = {OWN: 0.5, BASE: 0.5}, 0.3
        assert self.measure(world, repository, TWO, budget_s=budget_s).alone == alone

    def test_where_nothing_can_be_rebuilt_the_budget_narrows_the_figures(self, world: World, tmp_path: Path) -> None:
        kept = [accepted_run({TWO: s}, n) for n, s in enumerate((0.5, 0.501, 0.499))]
        world.step_s = {OWN: 0.5}
        config = settings(root=tmp_path, budget_s=1e6)
        run = world.measure(TWO, config=config, baseline=baseline(*kept))
        assert (len(world.timed), run.bases) == (campaign.MAX_SESSIONS["quick"], {})
        assert world.outcomes() == {TWO.id: Outcome.INCONCLUSIVE}

    @pytest.mark.parametrize("how", ["no checkout", "does not build"])
    def test_a_commit_that_cannot_be_rebuilt_leaves_the_cell_open(
        self, world: World, repository: Repository, how: str
    ) -> None:
        world.step_s = {OWN: 0.6}
        if how == "no checkout":
            world.not_there = {"base"}
        else:
            world.broken = {3: {BASE}}
        run = self.measure(world, repository, TWO, budget_s=1e6)
        assert world.outcomes() == {TWO.id: Outcome.INCONCLUSIVE}
        assert len(world.timed) == 3 + (how == "does not build"), "no more sessions for a cell that nothing settles"
        assert "could not be measured" in results.to_record(run).cells[0].reason

    def test_a_pin_is_not_measured_on_when_the_newest_commit_does_not_build(
        self, world: World, repository: Repository
    ) -> None:
        """Nothing that the pin could say would clear the cell."""
        oldest = repository.git("rev-parse", "HEAD")
        newest = repository.commit({"a.py": "a = 2\n"})
        kept = [accepted_run({TWO: 0.5}, n, commit) for n, commit in enumerate((oldest, newest, newest))]
        world.step_s, world.broken = {OWN: 1.0}, {3: {BASE}}
        config = settings(root=repository.path, budget_s=1e6)
        world.measure(TWO, config=config, baseline=baseline(*kept))
        assert [BASE in timed for timed in world.timed] == [False, False, False, True]
        assert world.timed[3] == {OWN, BASE, arm(2, side="pinned")}
        assert world.outcomes() == {TWO.id: Outcome.INCONCLUSIVE}

    def test_a_cell_that_is_lost_alone_is_not_measured_beside_it(self, world: World, repository: Repository) -> None:
        world.broken = {0: {OWN}}
        run = self.measure(world, repository, TWO)
        assert world.outcomes() == {TWO.id: Outcome.ERROR}
        assert (run.bases, len(world.timed)) == ({}, 1)

    def test_an_interrupted_run_shows_what_was_accepted(self, world: World, repository: Repository) -> None:
        world.step_s, world.interrupted_in = {OWN: 0.6}, 3
        with pytest.raises(KeyboardInterrupt):
            self.measure(world, repository, TWO)
        [found] = results.to_record(world.run).cells
        assert found.outcome is Outcome.INCONCLUSIVE
        assert {check.rule for check in found.checks} == {"time", "stored"}

    def test_beside_it_there_are_as_many_sessions_as_planned_from_there_on(
        self, world: World, repository: Repository
    ) -> None:
        world.step_s, world.wobble = {OWN: 0.5, BASE: 0.5}, 0.3
        run = self.measure(world, repository, TWO, budget_s=130.0)
        assert (run.alone, run.planned, len(world.timed)) == (3, 10, 13)

    def test_a_short_budget_leaves_a_doubt_and_no_alarm(self, world: World, repository: Repository) -> None:
        """The user's own: one session alone, and the one that the rebuilt commit is owed."""
        world.step_s = {OWN: 0.6, BASE: 0.6}
        self.measure(world, repository, TWO, budget_s=1.0, min_sessions=1)
        assert len(world.timed) == 2
        assert world.outcomes() == {TWO.id: Outcome.INCONCLUSIVE}

    def test_both_parts_say_their_plan_first(self, world: World, repository: Repository) -> None:
        world.step_s = {OWN: 0.6, BASE: 0.6}
        run = self.measure(world, repository, TWO)
        assert [line for line in world.said if line.startswith("plan:")] == run.notes
        plans = [number for number, line in enumerate(run.notes) if "cell(s)" in line]
        assert len(plans) == 2
        assert "beside the accepted run run-2, rebuilt" in run.notes[plans[1]]


def test_where_only_collectives_are_selected_a_worker_that_does_not_start_is_theirs_to_report(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(campaign.all_reduce, "measure", lambda pool, sweeps, *_, **__: asked.extend(sweeps) or ())
    monkeypatch.setattr(PretendedSides, "pools", {"candidate": None}, raising=False)
    monkeypatch.setattr(PretendedSides, "__init__", lambda self, world: None)
    sweep = CollectiveCell("ring", 2)
    run = world.measure(sweeps=[sweep], versions={})
    assert (asked, run.versions) == ([sweep], {})


class TestAttribution:
    """When it is asked where the time goes, and that it decides nothing."""

    PLAIN = arm(2, trainer="suite.rank.independent:Independent")

    def test_alone_the_first_sessions_do_with_the_arms_it_takes(self, world: World) -> None:
        world.measure(ONE, TWO, config=settings(budget_s=60.0))
        assert world.probed == {number: [(TWO.id, "candidate")] for number in range(SESSIONS["quick"])}
        assert world.beside[0] == {arm(1), OWN, self.PLAIN}
        assert world.beside[SESSIONS["quick"]] == set()
        assert self.PLAIN not in world.timed[0]

    def test_a_calibration_does_without(self, world: World) -> None:
        itself = calibrate.itself(settings(), 4)
        assert itself.calibrate == 4
        world.measure(ONE, TWO, config=replace(itself, against=None))
        assert world.probed == {}

    def test_one_device_and_shared_devices_have_nothing_to_explain(self, world: World) -> None:
        world.measure(ONE, config=settings())
        assert world.probed == {}
        shared = Devices("cpu", ("cpu", "cpu"), (0,))
        world.measure(TWO, config=settings(devices=shared))
        assert world.probed == {}
        assert "oversubscribed" in results.to_record(world.run).cells[0].waterfall_note

    def test_beside_a_base_what_fails_is_taken_apart_on_both_sides_when_it_is_decided(self, world: World) -> None:
        world.step_s = {**EQUAL, OWN: 1.0}
        world.measure(ONE, TWO, config=against(budget_s=300.0))
        assert world.outcomes() == {ONE.id: Outcome.PASS, TWO.id: Outcome.FAIL}
        judged = len(world.timed)
        assert list(world.probed) == [judged + number for number in range(SESSIONS["quick"])]
        assert world.probed[judged] == [(TWO.id, "candidate"), (TWO.id, "base")]
        assert any("taking their steps apart" in line for line in world.said)

    def test_beside_a_base_what_passes_is_not_and_says_why(self, world: World) -> None:
        world.step_s = EQUAL
        world.measure(ONE, TWO, config=against(budget_s=300.0))
        assert world.probed == {}
        notes = {found.id: found.waterfall_note for found in results.to_record(world.run).cells}
        assert notes[ONE.id] == ""
        assert "only what fails" in notes[TWO.id]

    def test_the_budget_holds(self, world: World) -> None:
        """Three sessions decide, and of the fourth's ten seconds five are left."""
        world.step_s = {**EQUAL, OWN: 5.0}
        world.measure(TWO, config=against(budget_s=35.0, min_sessions=1))
        assert world.outcomes() == {TWO.id: Outcome.FAIL}
        assert world.probed == {}
        assert "raise --scaling-budget" in results.to_record(world.run).cells[0].waterfall_note

    def test_what_breaks_over_it_leaves_the_verdict(self, world: World) -> None:
        world.step_s = {**EQUAL, OWN: 5.0}
        world.measure(TWO, config=against(budget_s=300.0))
        decided_in = min(world.probed)
        world.broken = {decided_in: {OWN}}
        world.measure(TWO, config=against(budget_s=300.0))
        assert world.outcomes() == {TWO.id: Outcome.FAIL}


class TestLosses:
    """What does not come to an end."""

    def test_an_arm_whose_processes_another_broke_is_owed_a_session(self, world: World) -> None:
        """Strong and weak share their workers; a second of budget has room for one session."""
        weak, strong = arm(2, mode="weak"), OWN
        world.broken, world.shares = {0: {strong}}, {weak: strong}
        world.measure(TWO, cell(2, mode="weak"), config=settings(budget_s=1.0, min_sessions=1))
        assert world.timed[1] == {weak, arm(1), arm(1, "single")}
        assert world.outcomes() == {TWO.id: Outcome.ERROR, cell(2, mode="weak").id: Outcome.NO_BASELINE}

    def test_where_everything_breaks_it_ends(self, world: World) -> None:
        world.broken = {0: {OWN, arm(1), arm(1, "single")}}
        world.measure(TWO, config=settings(budget_s=1e6))
        assert len(world.timed) == 1

    def test_an_interrupt_keeps_what_was_timed(self, world: World) -> None:
        world.interrupted_in = 1
        with pytest.raises(KeyboardInterrupt):
            world.measure(TWO)
        assert [len({w.block for w in session.windows}) for session in world.run.sessions] == [BLOCKS, 1]
        assert world.outcomes() == {TWO.id: Outcome.NO_BASELINE}

    def test_neighbours_are_named(self, world: World) -> None:
        run = world.measure(TWO)
        assert world.said[0] == "not alone: pid 1 (make) uses 90 % of a core"
        assert list(run.neighbours) == ["pid 1 (make) uses 90 % of a core"]
