"""A session's windows and what it adds to the run, with groups that only answer."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from suite.base.sides import SidePool
from suite.checks.bench import Bench
from suite.plan.cells import Arm, Cell
from suite.plan.scripts import Script
from suite.plan.workloads import of_script
from suite.processes.failure import LauncherEnded, WorkerFailure
from suite.processes.jobs import Connected, SetUp, Timed
from suite.records.counters import RankMemory
from suite.records.record import Window
from suite.room.devices import Devices
from suite.run.blocks import MOST
from suite.run.groups import Groups
from suite.run.observations import Session
from suite.run.plan import FIRST_STEP_TIMEOUT_S
from suite.run.session import MAX_STEPS, Next, Sessions
from suite.run.timer import WINDOW_S
from tests.support import learners
from tests.support.answering import BASE, ONE, OWN, Answering, Pool, Still, sessions, time_blocks, warm_up
from tests.support.measurements import FED, LENET, arm, cell, job, run_of, settings, trained


def test_arms_that_are_compared_run_windows_of_equal_work() -> None:
    run = run_of(cell(2))
    warm_up(run, Answering({OWN.id: 0.010, BASE.id: 0.002, ONE.id: 0.001}), OWN, BASE, ONE)
    assert run.steps[OWN] == run.steps[BASE] == WINDOW_S / 0.010, "no window is longer because another arm is faster"
    assert run.steps[ONE] == 120


def test_a_script_that_divides_its_minibatch_itself_is_named_once() -> None:
    script = of_script(Script(name="train", command="train.py {batch}", batch=64))
    own = Arm("candidate", "train", "train", "strong", 2)
    run = run_of(Cell("train", "train", "strong", 2), config=settings(workloads=(script,)))
    group = Answering({})
    several = sessions(run, group)
    run.work |= {own: (16.0, 1.0), own.on_one: (64.0, 1.0)}
    [note] = several._divided_twice([own.on_one, own])
    assert note.startswith("script 'train', strong: in an update a rank of 2 has 16 rows and one device 64")
    run.notes.append(note)
    assert not list(several._divided_twice([own.on_one, own]))


@pytest.mark.parametrize(("first_s", "second_s"), [(0.010, 0.002), (0.002, 0.010)])
def test_an_arm_keeps_its_windows_when_a_base_comes_later(first_s: float, second_s: float) -> None:
    run = run_of(cell(2))
    warm_up(run, Answering({OWN.id: first_s}))
    before = run.steps[OWN]
    warm_up(run, Answering({OWN.id: second_s, BASE.id: second_s}), OWN, BASE)
    assert run.steps[OWN] == run.steps[BASE] == before


@pytest.mark.parametrize(
    ("step_s", "cold_s", "steps"),
    [(0.001, 0.0, 120), (0.001, 0.5, 120), (0.001, 3.0, 120), (0.001, 40.0, 120), (1e-6, 0.0, MAX_STEPS)],
)
def test_the_steps_of_a_window_follow_from_warm_steps_and_are_bounded(step_s: float, cold_s: float, steps: int) -> None:
    """The first step on a GPU loads kernels or compiles, which can take longer than all blocks."""
    run = run_of(cell(2))
    several, _ = warm_up(run, Answering({OWN.id: step_s}, cold_s=cold_s))
    assert run.steps[OWN] == steps
    assert several.step_s[OWN] == pytest.approx(step_s)


def test_a_long_step_is_repeated_until_it_is_known_and_then_once_a_session() -> None:
    group = Answering({OWN.id: 5.0})
    several, groups = warm_up(run_of(cell(2)), group)
    assert [steps for _, steps, _ in group.asked] == [1, 1]
    several._warm_up(groups, [OWN])
    assert [steps for _, steps, _ in group.asked] == [1, 1, 1]


@pytest.mark.parametrize(
    ("step_s", "cold_s", "windows"),
    [(0.010, 0.0, [1]), (0.012, 0.0, [1]), (0.010, 0.3, [1, 1]), (0.020, 0.0, [1, 1]), (0.020, 0.3, [1, 1, 1])],
)
def test_an_arm_that_is_known_is_warm_when_a_step_takes_no_longer(
    step_s: float, cold_s: float, windows: list[int]
) -> None:
    """Its processes are new in every session, and so is their cold first step."""
    several, _ = warm_up(run_of(cell(2)), Answering({OWN.id: 0.010}))
    anew = Answering({OWN.id: step_s}, cold_s=cold_s)
    several._warm_up(Groups(Session(1), {OWN: anew}), [OWN])  # type: ignore[dict-item]
    assert [steps for _, steps, _ in anew.asked] == windows


def test_names_of_a_sides_groups_have_another_length_in_every_session() -> None:
    """Arguments and environment of its workers are of another size too."""
    run, pool = run_of(cell(2), jobs={OWN: job(OWN)}), Pool(Answering({}))
    made = Sessions(run, {"candidate": pool}, random.Random(1), None, lambda: 1.0, lambda line: None)  # type: ignore[arg-type, dict-item]
    for number in range(20):
        made._start(Groups(Session(number)), [OWN], "session")
    assert len({len(name) for name in pool.names}) > 10


@pytest.mark.parametrize(("kind", "lead_in"), [("cpu", 0), ("cuda", 25)])
def test_windows_on_gpus_follow_untimed_steps(kind: str, lead_in: int) -> None:
    """50 ms of them: the GPU waited while other arms ran, and has lowered its clocks."""
    names = ("cuda:0", "cuda:1") if kind == "cuda" else ("cpu", "cpu")
    group = Answering({OWN.id: 0.002})
    time_blocks(1, *warm_up(run_of(cell(2), config=settings(devices=Devices(kind, names, ()))), group))
    assert [asked[1:] for asked in group.asked if asked[1] == 60] == [(60, lead_in)] * 2
    warm_ups = {untimed for _, steps, untimed in group.asked if steps != 60}
    assert warm_ups == {min(lead_in, 1)}, "a window on a GPU begins with memory that its first step asks for anew"


@pytest.mark.parametrize(("step_s", "steps"), [(0.0005, MAX_STEPS), (0.011, 12), (0.02, 8), (0.5, 4)])
def test_windows_that_a_loader_feeds_have_whole_turns_of_its_processes(step_s: float, steps: int) -> None:
    """Each process is at the same point of its work when a window ends as when it began."""
    run, group = run_of(cell(2), config=settings(workloads=(FED,))), Answering({OWN.id: step_s})
    time_blocks(1, *warm_up(run, group))
    assert run.steps[OWN] == steps
    first, *others = group.asked
    assert first[1:] == (1, 0), "whatever a first step takes, it has the deadline of one"
    assert {(asked % 4, lead_in) for _, asked, lead_in in others} == {(0, 4)}


def test_a_heavy_net_with_a_loader_has_longer_deadlines_for_its_turns() -> None:
    """Eight steps of 30 s are no hang; where data are in memory, one step has the deadline of one."""
    run, group = run_of(cell(2), config=settings(workloads=(FED,))), Answering({OWN.id: 30.0})
    warm_up(run, group)
    first_s, *others_s = group.deadlines
    assert first_s <= FIRST_STEP_TIMEOUT_S
    assert min(others_s) > 8 * 30.0


def test_the_peak_memory_of_an_arm_is_that_of_its_timed_windows() -> None:
    """A first step may need more, to try kernels; it is not timed."""
    run, group = run_of(cell(2)), Answering({OWN.id: 0.002})
    group.resident = iter([900, 800, 5, 7, 6, 4])
    time_blocks(2, *warm_up(run, group))
    assert run.memory[OWN] == (RankMemory(resident_bytes=7),)


@pytest.mark.parametrize(("kind", "asked"), [("cpu", 0), ("cuda", 1)])
def test_how_nccl_connected_an_arm_is_asked_once_and_on_gpus_alone(kind: str, asked: int) -> None:
    class Tells(Answering):
        told = 0

        def request(self, kind: type[Any], command: str, *rest: Any, **told: Any) -> list[Any]:
            if kind is not Connected:
                return super().request(kind, command, *rest, **told)
            self.told += 1
            return [Connected(("P2P/CUMEM", "2 channels")), Connected(("P2P/CUMEM", "SHM/direct", "2 channels"))]

    group = Tells({OWN.id: 0.01, ONE.id: 0.01})
    devices = Devices(kind, tuple(f"{kind}:{index}" for index in range(2)), ())
    several, groups = warm_up(run_of(cell(2), config=settings(devices=devices)), group, OWN, ONE)
    for _ in range(2):
        several._ask_transports(groups, [OWN, ONE])
    assert group.told == asked
    several._ask_transports(Groups(Session(0)), [BASE])  # it never started, so nothing is known of its steps
    said = {OWN: ("P2P/CUMEM", "2 channels", "SHM/direct")}
    assert several._run.transports == (said if asked else {})


@pytest.mark.parametrize(("told", "kept"), [((3, 5), (3, 5)), ((3, None), ()), ((None, None), ())])
def test_a_window_has_the_share_of_others_where_every_rank_tells_it(
    told: tuple[int | None, ...], kept: tuple[int, ...]
) -> None:
    class Tells(Answering):
        def request(self, kind: type[Timed], *asked: Any, **more: Any) -> list[Timed]:
            [answer] = super().request(kind, *asked, **more)
            return [replace(answer, others_ns=others) for others in told]

    several, groups = warm_up(run_of(cell(2)), Tells({OWN.id: 0.01}))
    time_blocks(2, several, groups)
    assert {window.others_ns for window in groups.session.windows} == {kept}


class Disturbed(Answering):
    """A group whose windows take half as long again where others disturb them, as `pattern` says over and over."""

    def __init__(self, pattern: Sequence[bool]) -> None:
        super().__init__({OWN.id: 0.01})
        self.pattern = itertools.cycle(pattern)

    def request(self, *asked: Any, **more: Any) -> list[Timed]:
        [answer], disturbed = super().request(*asked, **more), next(self.pattern)
        others_ns = disturbed * answer.duration_ns // 2
        return [replace(answer, duration_ns=answer.duration_ns + others_ns, others_ns=others_ns)]


@pytest.mark.parametrize(
    ("pattern", "asked", "last_ms"),
    [
        ([False], 10, {120}),
        ([False, False, True, False], 13, {120}),
        ([False, True, True, False], 14, {120, 180}),
        ([True], 14, {180}),
    ],
    ids=["never", "every fourth", "twice in a row", "always"],
)
def test_a_window_that_others_disturbed_is_timed_again_at_once(
    pattern: list[bool], asked: int, last_ms: set[int]
) -> None:
    """Up to twice, and by two for every five windows of the session so far; the first times are kept."""
    several, groups = warm_up(run_of(cell(2)), Answering({OWN.id: 0.01}))
    group = Disturbed(pattern)
    groups.by_arm[OWN], several._clock = group, lambda: group.now  # type: ignore[assignment]
    time_blocks(5, several, groups)
    windows = groups.session.windows
    assert (len(windows), len(group.asked)) == (10, asked)
    assert {max(window.duration_ns) // 10**6 for window in windows} == last_ms
    again = [window for window in windows if window.first is not None]
    assert all(window.unselected.disturbed for window in again)
    assert bool(again) == (asked > 10)


def test_the_clocks_of_the_devices_that_worked_are_read_when_their_window_ends() -> None:
    """Of two devices, the second rests while the other times its own cell."""
    names = ("cuda:0", "cuda:1")
    run = run_of(cell(1), cell(2), config=settings(devices=Devices("cuda", names, ())))
    several, groups = warm_up(run, Answering({OWN.id: 0.5, ONE.id: 0.5}), OWN, ONE)
    seen = list[tuple[str, ...]]()
    several._blocks, several._meter = 1, Still()  # type: ignore[assignment]
    several._meter.worked = seen.append  # type: ignore[method-assign, assignment]
    several._time(groups, [(OWN,), (ONE,)], several._clock())
    worked = {OWN.id: names, ONE.id: names[:1]}
    assert seen == [worked[window.arm] for window in groups.session.windows]
    assert set(seen) == set(worked.values())


def test_a_session_whose_launcher_ends_leaves_no_time_and_no_memory() -> None:
    class Ends(Answering):
        def request(self, *asked: Any, **told: Any) -> list[Timed]:
            if len(self.asked) == 4:
                raise LauncherEnded("the launcher has ended")
            return super().request(*asked, **told)

    run = run_of(cell(2), jobs={OWN: job(OWN)}, memory={OWN: (RankMemory(resident_bytes=1),)})
    measured = sessions(run, Ends({OWN.id: 0.002}))
    measured._meter = Still()  # type: ignore[assignment]
    measured.run(Next([(OWN,)]))
    assert (run.sessions, len(run.discarded)) == ([], 1)
    [discarded] = run.discarded
    assert discarded.windows
    assert discarded.waiting_s == pytest.approx(0.02), "for the templates of both pools"
    assert discarded.loading_s == 2.5
    assert run.memory == {OWN: (RankMemory(resident_bytes=1),)}


class TestApart:
    """Nets that are trained when all timing is over."""

    def test_an_arm_that_fails_there_is_lost_and_no_session_is_added(self) -> None:
        run, failure = (
            run_of(cell(2), jobs={OWN: job(OWN), ONE: job(ONE)}),
            WorkerFailure("group", "the loss is not finite"),
        )
        measured = sessions(run, Answering({}))
        measured.train_apart([OWN, ONE], lambda groups: groups.session.failures.update({OWN: failure}))
        assert run.lost == {OWN: failure}
        assert (run.sessions, run.discarded) == ([], [])

    def test_an_arm_whose_processes_do_not_start_keeps_what_it_has(self) -> None:
        class Fails(Answering):
            def collect(self, *_: object) -> list[SetUp]:
                raise WorkerFailure("group", "rank 0: gone")

        run, seen = run_of(cell(2), jobs={OWN: job(OWN)}), list[Groups]()
        sessions(run, Fails({})).train_apart([OWN], seen.append)
        assert run.lost == {}
        assert [(groups.by_arm, list(groups.session.failures)) for groups in seen] == [({}, [OWN])]

    def test_it_is_repeated_once_where_the_launcher_ends(self) -> None:
        run, nets = run_of(cell(2), jobs={OWN: job(OWN)}), list[int]()

        def train(groups: Groups) -> None:
            nets.append(len(run.accuracies))
            run.accuracies.append(trained(0.9, 2))
            if len(nets) == 1:
                raise LauncherEnded("the launcher has ended")

        sessions(run, Answering({})).train_apart([OWN], train)
        assert nets == [0, 0], "what the first try trained does not count"
        assert len(run.accuracies) == 1

    def test_what_was_lost_before_an_interrupt_is_known(self) -> None:
        run, failure = run_of(cell(2), jobs={OWN: job(OWN)}), WorkerFailure("group", "the loss is not finite")

        def train(groups: Groups) -> None:
            groups.session.failures[OWN] = failure
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            sessions(run, Answering({})).train_apart([OWN], train)
        assert run.lost == {OWN: failure}


def test_an_arm_whose_parameters_are_not_finite_is_lost(bench: Bench, tmp_path: Path) -> None:
    """Real ranks that return no loss. The other arms go on."""
    spoilt, fine = arm(2, trainer="tests.support.learners:DivergesSilently"), arm(2, trainer="ddp")
    dataset = learners.prepared(tmp_path)
    jobs = {each: replace(learners.job(each.trainer, 2), dataset=dataset) for each in (spoilt, fine)}
    run, left = run_of(cell(2), jobs=jobs), list[Arm]()
    pools = {"candidate": SidePool(bench.pool)}
    made = Sessions(run, pools, random.Random(1), Still(), lambda: 5.0, lambda line: None)  # type: ignore[arg-type]
    made.run(Next([(spoilt,), (fine,)], afterwards=[lambda groups: left.extend(groups.by_arm)]))
    [session] = run.sessions
    assert {lost: failure.cause for lost, failure in session.failures.items()} == {
        spoilt: f"rank 0: parameter 'fc.weight' of {spoilt.trainer} is not finite after the session's steps; "
        "lower lr, or choose another init"
    }
    assert left == [fine]
    assert {window.arm for window in session.windows} == {spoilt.id, fine.id}, "it was checked after the timing"


def test_a_model_that_changes_from_session_to_session_costs_nothing() -> None:
    run = run_of(cell(2), jobs={OWN: job(OWN)})
    for gradient_bytes in (8, 12):
        group = Answering({}, gradient_bytes)
        sessions(run, group)._start(Groups(Session(0)), [OWN], "session")
    assert run.gradient_bytes == {OWN: 8}
    assert run.sample_flop == {OWN: 80}


class TestRounds:
    """How much of a session is timing."""

    @pytest.mark.parametrize(("more_s", "blocks"), [(-5.0, 3), (2.5, 10), (1e6, MOST)])
    def test_time_left_is_for_more_blocks_and_not_for_fewer(self, more_s: float, blocks: int) -> None:
        """A block takes 240 ms."""
        several, groups = warm_up(run_of(cell(2)), Answering({OWN.id: 0.01}))
        time_blocks(3, several, groups, more_s=more_s)
        assert len({window.block for window in groups.session.windows}) == blocks
        assert groups.session.filling_s == pytest.approx((blocks - 3) * 0.24)

    def test_more_blocks_are_not_what_a_session_costs(self) -> None:
        run, window = run_of(cell(2)), Window(arm=OWN.id, block=0, duration_ns=(1,))
        run.sessions.append(Session(0, wall_s=20.0, filling_s=15.0, windows=[window]))
        assert run.session_s == 5.0

    @pytest.mark.parametrize(
        ("left_s", "blocks"), [(21.0, None), (24.0, 2), (30.0, 4), (60.0, 8), (1e6, 8)], ids=lambda value: str(value)
    )
    def test_sessions_fit_into_the_budget_with_fewer_blocks(self, left_s: float, blocks: int | None) -> None:
        """Three sessions, of which one took 15 s: 5 s, and 10 blocks in 10 s; a tenth of the rest is kept."""
        run, window = run_of(cell(2)), Window(arm=OWN.id, block=0, duration_ns=(1,))
        run.sessions.append(Session(0, wall_s=17.0, timing_s=12.0, filling_s=2.0, windows=[window]))
        measured = sessions(run, Answering({}))
        measured.left_s, measured._blocks = (lambda: left_s), 10
        assert measured.fit() == ((blocks and left_s * 0.9 // (5 + blocks)) or 0)
        assert measured._blocks == (blocks or 10)

    def test_training_leaves_less_of_the_budget_to_timing(self) -> None:
        run = run_of(cell(2), steps={OWN: 100})
        measured = sessions(run, Answering({}))
        measured.left_s, measured.step_s = (lambda: 170.0), {OWN: 0.01}
        measured.cold_s = {OWN: 0.01}
        groups, start_s, blocks = Groups(Session(0), {OWN: Answering({})}), 10.0, dict[float, int]()
        for training_s in (0.0, 100.0):
            measured.replan_blocks(training_s)
            blocks[training_s] = measured._plan_blocks(groups, start_s - 1.01)  # without the warm-up
        assert 4 * (start_s + 2 * blocks[100.0]) <= 80.0
        assert blocks[100.0] < blocks[0.0]

    def test_templates_that_several_sessions_load_at_once_cost_each_of_them_the_same(self) -> None:
        run, window = run_of(cell(2)), Window(arm=OWN.id, block=0, duration_ns=(1,))
        for waiting_s in (0.0, 6.0):
            wall_s = 5.0 + waiting_s
            run.sessions.append(Session(0, wall_s=wall_s, waiting_s=waiting_s, loading_s=3.0, windows=[window]))
            assert run.session_s == 8.0


def test_workers_get_what_is_left_of_the_budget_to_start() -> None:
    """Or 60 s where less is left. It counts from the launch, so several that hang cost the time of one."""
    run = run_of(cell(2), jobs={OWN: job(OWN)}, clock=lambda: 119.0, begun_s=0.0)
    group = Answering({})
    sessions(run, group)._start(Groups(Session(0)), [OWN], "session")
    assert group.start_timeout_s == 60.0
    assert group.deadlines == [60.0], "of the set-up"


@pytest.mark.parametrize(("compiled", "first_s"), [(False, 120.0), (True, 600.0)])
def test_a_first_step_that_compiles_has_more_time(compiled: bool, first_s: float) -> None:
    """All ranks compile at once, in a cache of their own."""
    config = settings(budget_s=900.0, workloads=(LENET.model_copy(update={"compile": compiled}),))
    run = run_of(cell(2), config=config, clock=lambda: 50.0, begun_s=0.0)
    group = Answering({OWN.id: 0.01})
    sessions(run, group)._warm_up(Groups(Session(0), {OWN: group}), [OWN])
    assert set(group.deadlines) == {first_s}


def test_first_steps_get_what_is_left_of_the_budget() -> None:
    run = run_of(cell(2), clock=lambda: 50.0, begun_s=0.0)
    group = Answering({OWN.id: 0.01})
    sessions(run, group)._warm_up(Groups(Session(0), {OWN: group}), [OWN])
    assert set(group.deadlines) == {run.plan.config.budget.seconds - 50.0}
