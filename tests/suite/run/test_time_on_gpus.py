"""What runs on GPUs take, by costs that the suite does not know: three machines, without a base and beside one."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from suite.plan.base import Base
from suite.render import lead
from suite.run import results
from suite.run.observations import Observations
from tests.support.measurements import AGAINST, accepted_run, baseline
from tests.support.repositories import Repository
from tests.support.stub_gpus import SCENES, Costs, Machine

FIRST_RUN_S, BESIDE_S = 300.0, 480.0
# Seeds; None are the costs as reasoned.
DRAWS = (None, 0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 6)))

scenes = pytest.mark.parametrize("scene", SCENES, ids=list(SCENES))
bases = pytest.mark.parametrize("base", [None, AGAINST], ids=["first run", "beside a base"])


@cache
def measured(scene: str, base: Base | None = None, seed: int | None = None) -> tuple[Machine, Observations]:
    """Return a machine after a run of its default cells, and the run, both only to read."""
    here = SCENES[scene](Costs() if seed is None else Costs.drawn(seed))
    return here, here.measure(against=base)


@scenes
@bases
@pytest.mark.parametrize("seed", DRAWS)
def test_from_the_first_session_on_the_plan_is_within_twice_of_what_the_run_takes(
    scene: str, base: Base | None, seed: int | None
) -> None:
    """Of what is still to come when it is shown; and where the first plan is kept, that one is.

    Training takes at most what the plan says of it.
    """
    here, run = measured(scene, base, seed)
    assert run.lost == {}
    assert len(run.sessions) >= 4
    shown = here.plans[-1]
    known_at_s = max(shown.at_s, here.ended_s(0))
    left_s = here.now - known_at_s
    assert left_s / 2 <= shown.total_s - known_at_s
    assert shown.least_s - known_at_s <= 2 * left_s


def test_eight_gpus_are_timed_at_every_world_size_in_four_sessions_within_five_minutes() -> None:
    here, run = measured("B")
    timed = {arm.world_size for arm in run.steps}
    assert timed == {1, 2, 4, 8}
    assert all(
        {window.arm for window in session.windows} >= {run.plan.own(each).id for each in run.plan.cells}
        for session in run.sessions[:4]
    )
    assert here.windows_s[3] <= FIRST_RUN_S


def test_a_run_beside_a_named_base_is_over_within_eight_minutes() -> None:
    here, run = measured("B", AGAINST)
    assert len(run.sessions) == run.planned == 4
    assert here.now <= BESIDE_S


@pytest.mark.parametrize("accepted", [1, 5], ids=["too few to judge the machine", "enough"])
def test_a_default_run_beside_accepted_ones_is_over_within_eight_minutes(accepted: int, tmp_path: Path) -> None:
    """Five accepted runs judge the machine, for which the first session takes cells apart."""
    repository, here = Repository(tmp_path), SCENES["B"](Costs())
    commit = repository.commit({"a.py": "a = 1\n"})
    kept = [accepted_run(dict.fromkeys(here.cells(), 0.03), number, commit) for number in range(accepted)]
    run = here.measure(root=repository.path, baseline=baseline(*kept))
    assert list(run.comparison.bases) == ["base"]
    assert bool(run.sessions[0].probes) == (accepted == 5)
    assert here.now <= BESIDE_S


@pytest.mark.parametrize("seed", DRAWS)
def test_what_the_budget_leaves_out_is_named_smallest_world_sizes_first(seed: int | None) -> None:
    """In the plan, and on the first screen, which counts what is beyond six."""
    _, run = measured("B", None, seed)
    apart = {cell for session in run.sessions for cell in session.probes}
    several = [cell for cell in run.plan.cells if cell.world_size > 1]
    assert apart
    late = [cell for cell in several if cell not in apart]
    assert max(cell.world_size for cell in late) <= min(cell.world_size for cell in apart)
    named = [line for line in run.notes if line.startswith("plan: not taken apart")][-1].rpartition(": ")[2]
    assert set(named.split(", ")) == {cell.id for cell in late}
    sizes = [int(each.rpartition("-")[2]) for each in named.split(", ")]
    assert sizes == sorted(sizes)
    facts = {fact.name: fact.lines for fact in lead.facts(results.to_record(run))}
    [line] = [line for line in facts["Held back by"] if line.startswith("not taken apart for lack of time: ")]
    assert all(size == 2 for size in sizes[:6])
    assert line.count("-2, ") >= 5


@scenes
@bases
def test_first_steps_of_a_session_take_less_than_one_after_the_other(scene: str, base: Base | None) -> None:
    """Each process loads its libraries in its first step. From the second session on it is known what fits."""
    here, run = measured(scene, base)
    groups = {arm.processes: len(run.jobs[arm].devices) for arm in run.steps}
    one_by_one_s = sum(here.costs.libraries_s + size * here.costs.links_s for size in groups.values())
    assert len(here.first_steps) == len(run.sessions)
    for session, steps in here.first_steps.items():
        times_s = [at_s for at_s, _ in steps]
        assert max(times_s) - min(times_s) < one_by_one_s * (0.5 if session else 0.7)


def test_first_steps_that_need_half_a_gpu_are_taken_alone_and_none_runs_out_of_memory() -> None:
    here = SCENES["C"](Costs())
    here.step_bytes = here.memory_bytes // 2 + 1
    run = here.measure()
    assert run.lost == {}
    assert {at_once for steps in here.first_steps.values() for _, at_once in steps} == {1}


@pytest.mark.parametrize("name", ["start_s", "context_s", "communicator_s", "libraries_s", "variant_s", "net_s"])
def test_each_cost_is_in_the_plan_after_the_first_session(name: str) -> None:
    """Five times what was reasoned, on eight GPUs."""
    here = SCENES["B"](Costs(**{name: 5 * getattr(Costs(), name)}))
    here.measure()
    assert here.plans[-1].total_s == pytest.approx(here.now, rel=0.15)
