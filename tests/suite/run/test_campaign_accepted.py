"""The decisions of a campaign against accepted runs, whose commits are rebuilt. No process is started."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from suite.plan.cells import Arm, Cell
from suite.plan.floors import Floor
from suite.run import schedule
from suite.run.observations import Observations
from suite.verdict import Outcome
from tests.support.campaigns import ALONE, BASE, EQUAL, ONE, OWN, PIN, TWO, WEAK, World
from tests.support.measurements import accepted_run, arm, baseline, cell, settings
from tests.support.repositories import Repository


class TestAgainstAcceptedRuns:
    """Cells next to the rebuilt commits of accepted runs; the first sessions also time what the figures need."""

    @pytest.fixture(autouse=True)
    def _repository(self, tmp_path: Path) -> None:
        self.world, self.repository = World(), Repository(tmp_path / "project")
        self.commit = self.repository.commit({"a.py": "a = 1\n"})

    def measure(self, *cells: Cell, commits: Sequence[str] = (), **changes: Any) -> Observations:
        """Measure against three accepted runs, of the repository's commit unless `commits` has others."""
        commits = commits or [self.commit] * 3
        kept = [
            accepted_run({TWO: s, ONE: 2 * s}, number, commit)
            for number, (s, commit) in enumerate(zip((0.5, 0.501, 0.499), commits, strict=True))
        ]
        return self.world.measure(
            *cells, config=settings(root=self.repository.path, **changes), baseline=baseline(*kept)
        )

    def test_floor_is_not_judged_before_the_comparison_has_a_plan(self) -> None:
        """The efficiency of .5 is far below the floor; after the three sessions of figures no look was planned."""
        self.world.step_s = {arm(1): 1.0, OWN: 1.0, BASE: 1.0, arm(1, side="base"): 1.0}
        kept = [accepted_run({TWO: 1.0}, 0, self.commit)]
        config = settings(root=self.repository.path, budget_s=1000.0)
        floors = {TWO: Floor(efficiency=0.9)}
        run = self.world.measure(TWO, config=config, baseline=baseline(*kept), floors=floors)
        assert (len(self.world.timed), run.planned) == (4, 100)
        assert self.world.outcomes() == [Outcome.FAIL]

    @pytest.mark.parametrize(("runs", "extra"), [(4, set()), (5, {arm(1, side="base")})])
    def test_the_accepted_commit_is_timed_on_one_device_to_judge_the_machine(self, runs: int, extra: set[Arm]) -> None:
        kept = [accepted_run({TWO: 0.5}, number, self.commit) for number in range(runs)]
        self.world.measure(TWO, config=settings(root=self.repository.path, budget_s=1000.0), baseline=baseline(*kept))
        assert self.world.timed[-1] == {OWN, BASE} | extra

    def test_a_cell_that_looks_slower_has_no_other_plan(self) -> None:
        """It is taken apart in the second session, before the plan is made."""
        planned = []
        for own in (0.5, 0.6):
            self.world.step_s, self.world.explaining_s = {OWN: own, BASE: 0.5}, 12.0
            planned.append(self.measure(TWO, budget_s=150.0).planned)
        assert planned == [15, 15]

    @pytest.mark.parametrize("own", [0.5, 0.6], ids=["as fast as stored", "slower than stored"])
    @pytest.mark.parametrize(("ratio", "outcome"), [(1.0, Outcome.PASS), (1.2, Outcome.FAIL)])
    def test_rebuilt_commit_decides_whatever_stored_figures_say(
        self, own: float, ratio: float, outcome: Outcome
    ) -> None:
        self.world.step_s = {OWN: own, BASE: own / ratio}
        run = self.measure(TWO, budget_s=1000.0)
        assert self.world.timed == [{OWN, BASE, *ALONE}] * 3 + [{OWN, BASE}] * (len(self.world.timed) - 3)
        assert 4 <= len(self.world.timed) < run.planned, "a clear case ends soon"
        judged = self.world.cells()[TWO.id]
        assert judged.outcome is outcome
        assert [(c.rule, c.outcome, c.counts) for c in judged.checks] == [
            ("time", outcome, True),
            ("stored", Outcome.INCONCLUSIVE, False),
            ("machine", Outcome.INCONCLUSIVE, False),
        ]
        assert judged.checks[1].ratio is not None
        assert judged.checks[1].ratio.low is not None
        assert judged.checks[1].reason.endswith(": stored times decide nothing")

    def test_the_first_session_counts_and_nets_are_trained_when_the_comparison_is_over(self) -> None:
        self.world.step_s = {OWN: 0.5, BASE: 0.5}
        run = self.measure(TWO, cell(2, "scratch"))
        assert self.world.counted == [(0, run.plan.cells)]
        assert self.world.trained == [-1]
        assert self.world.apart == [{OWN, arm(1), arm(2, "scratch"), arm(1, "scratch")}]
        assert any("the comparison is over, and" in line for line in self.world.said)
        assert len(run.sessions) == len(self.world.timed)

    @pytest.mark.parametrize("change", [{"profile": "full"}, {"accept": "yes"}], ids=str)
    def test_a_full_run_and_one_that_is_to_be_accepted_train_first_and_take_all_cells_apart(
        self, change: dict[str, Any]
    ) -> None:
        self.world.step_s = {OWN: 0.5, BASE: 0.5}
        self.measure(TWO, **change)
        assert (self.world.trained, self.world.apart) == ([0], [])
        assert (TWO.id, "candidate") in self.world.probed[0]

    def test_where_the_machine_is_judged_all_cells_are_taken_apart(self) -> None:
        """Its FAIL names the part that grew."""
        kept = [accepted_run({TWO: 0.5}, number, self.commit) for number in range(5)]
        self.world.step_s = {OWN: 0.5, BASE: 0.5}
        config = settings(root=self.repository.path, budget_s=1000.0)
        self.world.measure(TWO, config=config, baseline=baseline(*kept))
        assert self.world.probed[0] == [(TWO.id, "candidate")]
        assert self.world.trained == [-1]

    def test_a_comparison_that_takes_the_budget_trains_nothing(self) -> None:
        self.world.step_s, self.world.wobble = {OWN: 0.5, BASE: 0.5}, 0.3
        self.measure(TWO, budget_s=40.0)
        assert self.world.trained == []
        assert "the comparison with accepted commits took the budget" in self.world.cells()[TWO.id].why("accuracy")

    def test_a_net_that_diverges_after_the_comparison_is_an_error(self) -> None:
        self.world.step_s, self.world.diverges = {OWN: 0.5, BASE: 0.5}, {OWN}
        self.measure(TWO)
        assert self.world.outcomes() == [Outcome.ERROR]

    def test_cells_next_to_accepted_commits_are_taken_apart_where_they_look_slower(self) -> None:
        self.world.step_s = {OWN: 0.5, BASE: 0.5}
        self.measure(TWO, cell(2, "scratch"))
        assert self.world.probed == {number: [(cell(2, "scratch").id, "candidate")] for number in range(3)}
        assert "with --scaling-profile=full every cell does" in self.world.cells()[TWO.id].why("waterfall")

    def test_only_accepted_cells_are_compared(self) -> None:
        self.world.step_s = {OWN: 0.5, BASE: 0.5}
        run = self.measure(ONE, TWO, cell(2, "scratch"))
        assert [line for line in self.world.said if line.startswith("plan:")] == run.notes
        [plan] = (line for line in run.notes if "cell(s)" in line)
        assert plan.startswith("plan: 2 cell(s) against the accepted run run-2, rebuilt")
        assert run.comparison.cells == (ONE, TWO)
        assert self.world.timed[:4] == [{*EQUAL, *ALONE, arm(2, "scratch"), arm(1, "scratch")}] * 3 + [set(EQUAL)]
        assert self.world.outcomes() == [Outcome.PASS, Outcome.PASS, Outcome.NO_BASELINE]

    def test_every_cell_is_compared_with_its_own_of_the_rebuilt_commits(self) -> None:
        """Of the others, one has another pin than the first two cells, one another newest commit, and one both.

        With this seed the run draws the pin of the first two.
        """
        one, two, three = self.commit, *(self.repository.commit({"a.py": f"a = {n}\n"}) for n in (2, 3))
        later, earlier, apart = (cell(2, trainer) for trainer in ("later", "earlier", "apart"))
        accepted = [(one, [TWO, ONE, earlier])] * 3 + [(two, [later, earlier, apart]), (three, [TWO, ONE, later])]
        kept = [accepted_run(dict.fromkeys(cells, 1.0), n, commit) for n, (commit, cells) in enumerate(accepted)]
        self.world.step_s = {arm(2, "earlier"): 5.0}
        config = settings(root=self.repository.path, budget_s=1000.0)
        run = self.world.measure(TWO, ONE, later, earlier, apart, config=config, baseline=baseline(*kept), seed=1)
        assert run.comparison.cells == (TWO, ONE, later, earlier)
        pairs = {arm(k, side=side) for k in (1, 2) for side in ("candidate", "base", "pinned")}
        others = {arm(2, "later"), arm(2, "later", "base"), arm(2, "earlier"), arm(2, "earlier", "pinned")}
        assert self.world.timed[3] == pairs | others | {arm(1, "later", "base")}
        passed, slower, undecided = Outcome.PASS, Outcome.FAIL, Outcome.INCONCLUSIVE
        assert self.world.outcomes() == [passed, passed, passed, slower, undecided]
        [named] = [line for line in self.world.said if "not compared with all of their accepted commits" in line]
        assert f": {later.id}, {earlier.id}, {apart.id}; one run rebuilds one newest and one pinned commit" in named

    @pytest.mark.parametrize(
        ("budget_s", "of_figures", "sessions"), [(40.0, 1, 4), (90.0, 2, 9), (130.0, 3, 13), (300.0, 3, 30)]
    )
    def test_every_session_compares_and_most_do_nothing_else(
        self, budget_s: float, of_figures: int, sessions: int
    ) -> None:
        self.world.step_s, self.world.wobble = {OWN: 0.5, BASE: 0.5}, 0.3
        run = self.measure(TWO, budget_s=budget_s)
        assert run.planned == sessions
        assert self.world.timed == [{OWN, BASE, *ALONE}] * of_figures + [{OWN, BASE}] * (sessions - of_figures)

    def test_without_a_commit_to_rebuild_the_budget_narrows_the_figures(self) -> None:
        run = self.measure(TWO, commits=["1" * 40] * 3, budget_s=1e6)
        assert (len(self.world.timed), run.comparison.bases) == (schedule.MAX_SESSIONS["quick"], {})
        assert self.world.outcomes() == [Outcome.INCONCLUSIVE]

    @pytest.mark.parametrize("checked_out", [False, True], ids=["no checkout", "does not build"])
    def test_commit_that_cannot_be_measured_leaves_the_cell_inconclusive(self, checked_out: bool) -> None:
        self.world.not_there, self.world.broken = (set(), {0: {BASE}}) if checked_out else ({"base"}, {})
        self.measure(TWO, budget_s=1e6)
        assert self.world.outcomes() == [Outcome.INCONCLUSIVE]
        assert len(self.world.timed) == 3, "figures; no more sessions for a cell that they cannot decide"
        assert [OWN in timed for timed in self.world.timed] == [True] * 3
        reason = "the commit of run run-2 could not be measured: "
        assert reason in self.world.cells()[TWO.id].reason

    def test_pin_alone_gets_no_session_because_it_cannot_clear_the_cell(self) -> None:
        newest = self.repository.commit({"a.py": "a = 2\n"})
        self.world.broken = {3: {BASE}}
        self.measure(TWO, commits=[self.commit, newest, newest], budget_s=1e6)
        assert [BASE in timed for timed in self.world.timed] == [True] * 4
        assert self.world.timed[3] == {OWN, BASE, PIN}
        assert self.world.outcomes() == [Outcome.INCONCLUSIVE]

    @pytest.mark.parametrize("newest_is_gone", [False, True])
    def test_a_short_budget_judges_fewer_cells_also_where_only_the_pinned_commit_can_be_rebuilt(
        self, newest_is_gone: bool
    ) -> None:
        """A squash-merge may leave the newest accepted commit in no branch."""
        newest = "1" * 40 if newest_is_gone else self.commit
        self.measure(ONE, TWO, commits=[self.commit, newest, newest], budget_s=25.0, fixed=True)
        one = self.world.cells()[ONE.id]
        assert one.outcome is Outcome.INCONCLUSIVE
        assert "not judged: budget; 25 s are spent on 1 of 2 cells (about " in one.reason
        assert ("the commit of run run-2 cannot be rebuilt" in one.reason) == newest_is_gone
        [beyond] = [check for check in one.checks if check.rule != "stored"]
        expected = ("drift", "the pinned run run-0") if newest_is_gone else ("time", "the accepted run run-2")
        assert (beyond.rule, beyond.against.removesuffix(", rebuilt")) == expected

    @pytest.mark.parametrize("lost", [True, False], ids=["a commit that does not build", "no accepted run"])
    def test_a_floor_is_judged_also_where_nothing_is_compared(self, lost: bool) -> None:
        """Of an efficiency of .5; a FAIL takes four sessions."""
        measured = TWO if lost else cell(2, "scratch")
        self.world.step_s = {arm(1): 1.0, arm(1, "scratch"): 1.0, OWN: 1.0, BASE: 1.0, arm(2, "scratch"): 1.0}
        self.world.broken = {0: {BASE}} if lost else {}
        kept = [accepted_run({TWO: 1.0}, 0, self.commit)]
        config = settings(root=self.repository.path, budget_s=1000.0)
        floors = {measured: Floor(efficiency=0.9)}
        self.world.measure(TWO, measured, config=config, baseline=baseline(*kept), floors=floors)
        assert self.world.cells()[measured.id].outcome is Outcome.FAIL
        assert self.world.timed[-1] >= {arm(2, measured.trainer), arm(1, measured.trainer)}

    def test_cells_that_will_be_beyond_the_budget_are_in_the_first_plan(self) -> None:
        self.measure(ONE, TWO, budget_s=15.0, fixed=True)
        [first, *_] = (number for number, line in enumerate(self.world.said) if "no room for them" in line)
        assert f"for them: {ONE.id}" in self.world.said[first]
        assert not any("in all" in line for line in self.world.said[first + 1 : first + 3]), "in the plan shown first"

    def test_a_cell_beyond_the_budget_keeps_what_its_base_showed(self) -> None:
        """It was measured beside it in the first session, before the budget had no more room."""
        self.world.step_s = {**EQUAL, arm(1): 1.1}
        run = self.measure(ONE, TWO, budget_s=25.0, fixed=True)
        one = self.world.cells()[ONE.id]
        assert (run.comparison.over_budget, run.comparison.judged) == ((ONE,), (TWO,))
        assert "not judged: budget; 25 s are spent on 1 of 2 cells (about " in one.reason
        assert "was not measured here" not in one.reason
        assert one.slowdown is not None
        assert one.slowdown.estimate == pytest.approx(1.1, rel=0.03)

    def test_the_first_session_that_only_compares_needs_less_of_the_budget(self) -> None:
        """After a first session of 20 s, 17 s are left; without the plain trainer on one device, 12 s are enough."""
        self.world.step_s, self.world.session_s = {OWN: 0.5, BASE: 0.5}, (20.0, 12.0)
        self.measure(TWO, budget_s=37.0, fixed=True)
        assert len(self.world.timed) == 2

    def test_the_plan_leaves_time_for_training(self) -> None:
        self.measure(TWO, budget_s=300.0)
        assert any("min in all, and training in what they leave (" in line for line in self.world.said)
        self.measure(TWO, budget_s=300.0, profile="full")
        said = "\n".join(self.world.said)
        found = re.search(r"about (\d+) session\(s\) of (\d+) s, .* at most ([\d.]+) min of training", said)
        assert found is not None
        sessions, session_s, training_min = map(float, found.groups())
        assert training_min == pytest.approx(3.0)
        assert sessions * session_s <= 300 - 60 * training_min

    def test_lost_cell_is_not_compared(self) -> None:
        self.world.broken = {0: {OWN}}
        self.measure(TWO)
        assert self.world.outcomes() == [Outcome.ERROR]
        assert len(self.world.timed) == 1

    def test_cell_without_accepted_runs_that_another_broke_gets_a_session_more(self) -> None:
        """Strong and weak share their workers; a budget of one second has room for one session."""
        weak = arm(2, mode="weak")
        self.world.broken, self.world.shares = {0: {OWN}}, {weak: OWN}
        self.measure(TWO, WEAK, budget_s=1.0, fixed=True)
        assert weak in self.world.timed[1]
        assert OWN not in self.world.timed[1]
        assert self.world.outcomes() == [Outcome.ERROR, Outcome.NO_BASELINE]

    def test_interrupted_run_shows_what_was_accepted(self) -> None:
        self.world.step_s, self.world.interrupted_in = {OWN: 0.6}, 1
        with pytest.raises(KeyboardInterrupt):
            self.measure(TWO)
        judged = self.world.cells()[TWO.id]
        assert judged.outcome is Outcome.INCONCLUSIVE
        assert {check.rule for check in judged.checks} == {"time", "stored", "machine"}

    def test_one_session_is_enough_to_show_the_rebuilt_commit(self) -> None:
        self.world.step_s = {OWN: 0.6, BASE: 0.6}
        self.measure(TWO, budget_s=1.0, fixed=True)
        assert self.world.timed == [{OWN, BASE, *ALONE}]
        assert self.world.outcomes() == [Outcome.INCONCLUSIVE]
