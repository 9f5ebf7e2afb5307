"""Answers in words, in every output: what a first run measured, what holds it back, and what a verdict says."""

from __future__ import annotations

import shlex
from html import unescape
from typing import Any

import pytest

from reference.schedule import MODES
from suite.records.record import CellRecord
from suite.render import html, lead, markdown, terminal
from tests.support import records
from tests.support.pages import TYPED, Page, cells_of, facts, first_run, steps, unsure


def test_the_efficiency_inside_a_host_stands_beside_that_across_hosts() -> None:
    """Of .72 on four devices, .9 is kept inside a host and .8 across two."""
    cells = [
        records.cell(trainer="ddp", world_size=size, efficiency=efficiency)
        for size, efficiency in ((1, None), (2, records.interval(0.9)), (4, records.interval(0.72)))
    ]
    record = records.make(cells=cells)
    several = record.machine.model_copy(update={"hosts": 2, "per_host": 2})
    assert "across" not in facts(record)["Efficiency"]
    shown = facts(record.model_copy(update={"machine": several}))
    assert shown["Efficiency"].endswith("\n  ddp: 0.90 inside a host (2 devices), 0.80 across 2")


class TestFirstRun:
    """Nothing to compare with: the figures come first."""

    def test_the_title_is_about_the_cell_that_is_said_to_be_the_fastest(self) -> None:
        """Each speed-up has its own noise, and the largest need not be that of the fastest cell."""
        cells = first_run().model_dump(mode="json")["cells"]
        cells[3] |= {"samples_per_s": records.interval(9000.0), "speedup": records.interval(1.7, 0.1)}
        record = first_run(cells=cells)
        assert "runs 1.70 times as fast" in lead.title(record)
        assert "; 1.70 [1.53, 1.87] times the plain trainer on one" in facts(record)["How fast?"]

    def test_a_trainer_of_the_users_is_said_to_train_a_built_in_workload_where_none_was_named(self) -> None:
        cells = [{**each, "trainer": "mine.py:Mine"} for each in first_run().model_dump(mode="json")["cells"][:2]]
        record = first_run(cells=cells)
        assert lead.title(record).startswith("Mine on the built-in lenet runs ")
        assert facts(record)["Workload"] == "the built-in lenet; --scaling-workload names your own"
        named = record.model_copy(update={"repeat": ("--scaling-workload=lenet",)})
        assert lead.title(named).startswith("lenet runs ")
        assert "Workload" not in facts(named)
        assert "Workload" not in facts(first_run())

    def test_it_says_how_fast_how_well_what_holds_it_back_and_how_sure(self) -> None:
        found = facts(first_run())
        assert lead.title(first_run()) == "lenet runs 1.80 times as fast on 2 devices as the plain trainer on one"
        assert "Verdict" not in found
        assert "did not check gradients" in found["Is it right?"]
        assert "+0.000 in 6 cells (one pair of trainings each" in found["Is it right?"]
        assert found["How fast?"].startswith("scratch lenet strong on 2 devices: 8,308 samples/s, 7.22 [6.86, 7.58] s")
        assert "strong on 2 devices: scratch 0.90 [0.85, 0.95], data_parallel 0.90" in found["Efficiency"]
        assert found["Held back by"].splitlines() == [
            "scratch-lenet-weak-2: exchange, 11.2 [9.0, 13.4] ms a step (28 %)",
            "scratch-lenet-strong-2: exchange, 5.6 [4.5, 6.7] ms a step (16 %)",
            "not known after 4 sessions: data_parallel-lenet-strong-2",
        ]
        assert "95 % intervals over 2 sessions" in found["How sure?"]

    def test_what_had_no_time_is_named_smallest_world_sizes_first(self) -> None:
        """Other reasons for a missing waterfall are in the report alone."""
        untrained = records.missing("accuracy", "9 s do not fit")
        late, other = records.missing("waterfall", "3 s", "budget"), records.missing("waterfall", "lost")
        cells = [records.cell(id=f"ddp-lenet-strong-{k}", world_size=k, missing=[untrained, note])
                 for k, note in ((4, late), (2, late), (6, other))]  # fmt: skip
        apart = {"waterfalls": [records.waterfall()], "missing": [untrained]}
        cells.insert(0, records.cell(id="ddp-lenet-strong-8", world_size=8, **apart))
        pair = [records.accuracy(world_size=k, per_epoch=[0.9]) for k in (1, 8)]
        found = facts(first_run(cells=cells, accuracies=pair))
        assert found["Held back by"].splitlines()[-1] == (
            "not taken apart for lack of time: ddp-lenet-strong-2, ddp-lenet-strong-4"
        )
        assert (
            "Accuracy is not judged by ddp-lenet-strong-2, ddp-lenet-strong-4, ddp-lenet-strong-6, ddp-lenet-"
            in (found["Is it right?"])
        )

    def test_cells_with_causes_are_not_compared_with_one_another(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Ten thousand of them would be compared fifty million times, field by field."""
        compared = 0

        def counted(one: CellRecord, other: object) -> bool:
            nonlocal compared
            compared += 1
            return one is other

        monkeypatch.setattr(CellRecord, "__eq__", counted)
        cells = [records.cell(id=f"t{n}-lenet-strong-2", waterfalls=[records.waterfall()]) for n in range(100)]
        found = facts(records.make(cells=[*cells, records.cell(id="unsure", waterfalls=[unsure()])]))
        assert found["Held back by"].startswith("t0-lenet-strong-2: exchange, 5.6")
        assert compared < len(cells)

    def test_accuracies_are_paired_by_seed_and_the_fewest_pairs_are_said(self) -> None:
        """Only the weak cell needed more seeds, and no cell on one device was selected."""
        reached = {("strong", 1): (0.9, 0.8, 0.8), ("strong", 2): (0.89,), ("weak", 2): (0.87, 0.77, 0.77)}
        nets = [
            records.accuracy(mode=mode, world_size=k, seed=seed, per_epoch=[accuracy])
            for (mode, k), of_seeds in reached.items()
            for seed, accuracy in enumerate(of_seeds)
        ]
        cells = [records.cell(mode=mode, world_size=2, outcome="NO BASELINE") for mode in ("strong", "weak")]
        found = facts(first_run(cells=cells, accuracies=nets))
        assert "-0.030 to -0.010 in 2 cells (1 to 3 seed pairs each)" in found["Is it right?"]

    def test_accuracy_on_one_device_alone_is_said_not_to_be_judged(self) -> None:
        found = facts(records.make(cells=[records.cell(accuracy=0.97)], accuracies=[records.accuracy(world_size=1)]))
        assert "this run had neither. Accept it, or let two ranks share a device (--scaling-" in found["Is it right?"]

    def test_cells_on_several_devices_say_why_their_accuracy_is_not_judged(self) -> None:
        cells = [records.cell(accuracy=0.97)]
        missing = [records.missing("accuracy", "no time")]
        cells += [records.cell(world_size=k, mode=mode, missing=missing) for k in (2, 4) for mode in MODES]
        found = facts(records.make(cells=cells, accuracies=[records.accuracy(world_size=1)]))
        who = ", ".join(cell["id"] for cell in cells[1:])
        assert f"Accuracy is not judged by {who}: no time." in found["Is it right?"]
        assert "several devices against one" not in found["Is it right?"]

    def test_a_run_that_had_no_time_to_train_says_so(self) -> None:
        """Nothing is said where no workload has a recipe."""
        cells = [records.cell(world_size=k, missing=[records.missing("accuracy", "no time")]) for k in (1, 2)]
        said = facts(records.make(cells=cells, accuracies=[]))["Is it right?"]
        assert f"Accuracy is not judged by {cells[1]['id']}: no time." in said
        unable = [each | {"missing": [records.missing("accuracy", "none", "no recipe")]} for each in cells]
        assert "ccuracy" not in facts(records.make(cells=unable, accuracies=[]))["Is it right?"]

    def test_what_accepted_runs_say_of_accuracy_on_one_device_is_said(self) -> None:
        check = records.check(
            rule="accuracy", against="accepted runs", reason="accuracy 0.120 lower than in accepted runs"
        )
        cells = [records.cell(mode=mode, accuracy=0.8, checks=[check]) for mode in ("strong", "weak")]
        found = facts(records.make(cells=cells, accuracies=[records.accuracy(world_size=1)]))
        assert (
            f"{cells[0]['id']}, {cells[1]['id']}: accuracy 0.120 lower than in accepted runs." in found["Is it right?"]
        )
        assert "this run had neither" not in found["Is it right?"]

    @pytest.mark.parametrize(("checks", "said"), [(1, "1 check"), (26, "26 checks")])
    def test_checks_of_the_same_run_are_not_denied(self, checks: int, said: str) -> None:
        record = first_run(checks_to_come=checks)
        line = f"This run goes on with {said} of correctness; "
        assert facts(record)["Is it right?"].startswith(f"{line}pytest's closing line and JUnit give the outcome.")
        assert "check the gradients" not in steps(record)
        for text in (terminal.render(record, 160, color=False), markdown.render(record), html.render(record)):
            assert line in text
            assert "did not check gradients" not in text

    @pytest.mark.parametrize(
        ("arm", "said"),
        [
            ({"oracle": "self"}, True),
            ({"oracle": "self", "has_reference": True}, False),
            ({"oracle": "self", "side": "base"}, False),
            ({"oracle": "sgd"}, False),
            ({}, False),
        ],
    )
    def test_a_trainer_that_is_compared_with_itself_is_said_to_hide_errors(
        self, arm: dict[str, object], said: bool
    ) -> None:
        record = first_run(arms=[records.arm(**arm)])
        line = 'ddp: checks compare it with itself on one device (oracle "self"), so an error that does not depend on '
        assert (line in facts(record)["Is it right?"]) is said
        for text in (terminal.render(record, 200, color=False), markdown.render(record), unescape(html.render(record))):
            assert (line in text) is said

    def test_git_is_quoted_where_it_does_not_tell_the_commit(self) -> None:
        words = "git rev-parse: fatal: detected dubious ownership in repository at '/builds/x'"
        environment = {"versions": {}, "commit": "unknown", "dirty": False, "commit_problem": words}
        said = facts(first_run(environment=environment))["Commit"]
        assert said == f"unknown, so no later run can rebuild this one: {words}"
        assert "Commit" not in facts(first_run())

    def test_a_commit_that_git_does_not_know_is_not_compared_and_changes_are_committed_first(self) -> None:
        environment = {"versions": {}, "commit": "unknown", "dirty": False}
        assert not [what for what in steps(first_run(environment=environment)) if "compare" in what]
        found = steps(first_run(environment={**environment, "commit": "abc1234", "dirty": True, "main": "main"}))
        assert {"compare with main", "measure it again as the baseline, with all changes committed"} <= found.keys()

    def test_the_commands_are_those_of_the_run(self) -> None:
        environment = {"versions": {}, "commit": "abc1234", "dirty": False, "main": "origin/trunk"}
        assert steps(first_run(environment=environment)) == {
            "check the gradients": "pytest -m correctness",
            "measure it again as the baseline": "pytest -m scaling --scaling-world-sizes=1,2 --scaling-accept",
            "compare with origin/trunk": f"pytest {shlex.join(TYPED)} --scaling-against=ref:origin/trunk",
            "look inside a step (exchange)": f"python -m suite trace {cells_of('2', 'weak', 'scratch')}",
        }

    def test_on_several_hosts_no_command_is_offered_that_works_on_one_alone(self) -> None:
        record = first_run()
        several = record.machine.model_copy(update={"hosts": 2})
        assert "python -m suite" in " ".join(steps(record).values())
        assert "python -m suite" not in " ".join(steps(record.model_copy(update={"machine": several})).values())

    def test_every_output_leads_with_it_and_folds_the_verdicts_into_a_line(self) -> None:
        page = Page(html.render(first_run()))
        shown = terminal.render(first_run(), 160, color=False)
        for text in (shown, markdown.render(first_run()), page.one("header").text):
            assert text.index("runs 1.80 times as fast") < text.index("Right?") < text.index("pytest -m correctness")
            assert "NO BASELINE: 12 cells; accept a run like this one" in text
            assert "there is nothing to compare with" not in text.partition("About each cell")[0]

    def test_causes_that_are_not_known_are_asked_in_more_sessions(self) -> None:
        cells = records.matrix(modes=("strong",), outcome="NO BASELINE")
        cells[1]["waterfalls"] = [unsure()]
        record = first_run(cells=cells, repeat=[*TYPED, "--scaling-budget=30"])
        assert steps(record)["learn what holds it back"] == f"pytest -m scaling {cells_of('2')} --scaling-profile=full"

    @pytest.mark.parametrize(
        ("modes", "what", "expected"),
        [
            (("strong",), "keep the batch per device (weak scaling)", "pytest -m scaling {} --scaling-mode=weak {}2"),
            (("strong", "weak"), "see the accuracy with a larger batch", "python -m suite sweep {} {}1,2"),
        ],
    )
    def test_a_small_batch_is_met_with_a_larger_one(self, modes: tuple[str, ...], what: str, expected: str) -> None:
        fall = records.waterfall(exchange=0.0)
        fall["bars"][0]["step_s"] = records.interval(0.01, 0.1)
        cells = records.matrix(modes=modes, outcome="NO BASELINE")
        cells[1]["waterfalls"] = [fall]
        command = expected.format("--scaling-trainer=ddp --scaling-workload=lenet", "--scaling-world-sizes=")
        assert steps(first_run(cells=cells))[what] == command

    def test_one_device_several_slow_ones_and_no_cell_have_their_titles(self) -> None:
        missing = [records.missing("efficiency", "needs 2 devices", "one device")]
        cells = [records.cell(missing=missing, speedup=records.interval(1.0))]
        assert facts(records.make(cells=cells))["Efficiency"] == "needs 2 devices"
        assert facts(records.make(cells=cells))["Exchange"] == "not checked: one core"
        of_a_gpu = records.make(cells=cells, machine=records.MACHINE | {"gpus": ["Test GPU"]})
        assert facts(of_a_gpu)["Exchange"] == "not checked: one GPU"
        assert lead.title(records.make(cells=cells)) == "lenet on one device, 4,600 samples/s"
        cells = records.matrix(loss=0.7, outcome="NO BASELINE")
        assert (
            lead.title(first_run(cells=cells))
            == "lenet runs 0.60 times as fast on 2 devices as the plain trainer on one"
        )
        assert facts(first_run(cells=cells))["How fast?"].startswith("ddp lenet strong on 1 device: 4,615 samples/s")
        assert "Exchange" not in facts(first_run(cells=cells))
        assert lead.title(records.make(cells=[], sessions=[])) == "no cells"

    def test_the_plain_trainer_on_one_device_is_not_compared_with_itself(self) -> None:
        figures = {"speedup": records.interval(1.0), "samples_per_s": records.interval(4600.0)}
        others = [records.cell(trainer=trainer, **figures) for trainer in ("single", "ddp")]
        said = [facts(records.make(cells=[cell]))["How fast?"] for cell in others]
        assert ["times the plain trainer" in line for line in said] == [False, True]


class TestExchange:
    """Sweeps of collectives, which have no cells."""

    def test_the_best_bandwidth_on_so_many_devices_is_named_with_its_algorithm(self) -> None:
        slower = records.collective("ring", beta_s_per_byte=2e-9)
        wider = records.collective(world_size=4, oversubscribed=True)
        record = records.make(cells=[], sessions=[], collectives=[slower, records.collective(), wider])
        lines = {fact.name: fact.lines for fact in lead.facts(record)}
        reached = "GB/s of bus bandwidth at 16 MiB (gloo, latency 100 [90, 110] µs)"
        assert lines["Exchange"] == (
            f"all_reduce on 2 devices: 0.994 {reached}",
            f"all_reduce on 4 devices (oversubscribed): 1.49 {reached}",
        )
        assert "How sure?" not in lines
        assert lead.title(record) == "3 sweeps of collectives"

    def test_a_sweep_that_failed_is_counted(self) -> None:
        failed = records.collective(points=[], error="rank 1 hung")
        record = records.make(cells=[], sessions=[], collectives=[failed])
        assert lead.title(record) == "1 sweep of collectives, 1 ERROR"
        assert "Exchange" not in facts(record)


class TestMemory:
    """What an arm needs of a GPU, beside what the card has."""

    def test_the_arm_that_reserves_most_is_named(self) -> None:
        held = [{"reserved_bytes": [60 * 10**9]}, {"reserved_bytes": [64 * 10**9]}]
        arms = [records.arm("base"), records.arm(memory=held)]
        machine = {**records.MACHINE, "gpus": ["Test GPU"], "cards": [{**records.CARD, "memory_bytes": 80 * 10**9}]}
        line = "at most 64.0 GB of 80.0 GB reserved on a GPU, by candidate:ddp:lenet:strong:2"
        assert facts(records.make(arms=arms, machine=machine))["Memory"] == line

    def test_on_cpus_it_is_only_in_the_report(self) -> None:
        record = records.make(arms=[records.arm(memory=[{"resident_bytes": 300 * 10**6}] * 2)])
        assert "Memory" not in facts(record)
        assert "300.0 MB resident" in html.render(record)


class TestTransports:
    """How NCCL connected the GPUs is in the report; on the first screen only where it changed."""

    P2P, SHM = ("P2P/CUMEM", "16 channels"), ("SHM/direct", "16 channels")

    def test_other_transports_than_the_bases_are_named(self) -> None:
        record = records.make(arms=[records.arm("base", transports=self.P2P), records.arm(transports=self.SHM)])
        said = facts(record)["What changed in a step?"]
        assert said == (
            "candidate:ddp:lenet:strong:2: NCCL connected its GPUs by SHM/direct, 16 channels "
            "(against P2P/CUMEM, 16 channels of base:ddp:lenet:strong:2)"
        )

    @pytest.mark.parametrize("base", [P2P, P2P[::-1], ()])
    def test_equal_or_unknown_ones_are_only_in_the_report(self, base: tuple[str, ...]) -> None:
        record = records.make(arms=[records.arm("base", transports=base), records.arm(transports=self.P2P)])
        assert "What changed in a step?" not in facts(record)
        assert "P2P/CUMEM, 16 channels" in html.render(record)


class TestVerdict:
    """Compared with something: the verdict leads, its cells are named, and a red one has its command."""

    def test_the_gravest_comes_first_with_cells_and_reason(self) -> None:
        found = lead.facts(records.full(machine=records.MACHINE))[0]
        assert found.name == "Verdict"
        assert found.lines == (
            "FAIL: ddp-lenet-strong-2: why it is FAIL",
            "ERROR: ddp-lenet-weak-2: why it is ERROR",
            "INCONCLUSIVE: ddp-lenet-strong-4: why it is INCONCLUSIVE",
            "NO BASELINE: 1 cell",
            "PASS: 8 cells",
        )

    @pytest.mark.parametrize(
        ("against", "cell", "said"),
        [
            ("main", {}, True),
            (None, {}, False),
            ("main", {"oversubscribed": True}, False),
            ("main", {"world_size": 1}, False),
        ],
    )
    def test_a_run_with_a_base_says_that_it_does_not_judge_the_machine(
        self, against: str | None, cell: dict[str, Any], said: bool
    ) -> None:
        record = records.make(against=against, cells=[records.cell(**({"world_size": 2, "outcome": "PASS"} | cell))])
        line = "neither it nor drift is judged with --scaling-against; a run without it judges both by accepted runs"
        assert (facts(record).get("The machine") == line) is said
        for text in (terminal.render(record, 160, color=False), markdown.render(record), html.render(record)):
            assert (line in text) is said

    @pytest.mark.parametrize(("sessions", "said"), [(1, "1 session in 100 s"), (2, "2 sessions in 100 s")])
    def test_one_session_is_not_several(self, sessions: int, said: str) -> None:
        record = records.make(sessions=[records.session(number) for number in range(sessions)])
        for text in (terminal.render(record, 160, color=False), markdown.render(record), html.render(record)):
            assert said in text

    def test_what_a_step_does_more_follows_the_verdict_with_its_cells(self) -> None:
        cells = records.matrix()
        for cell in cells[:2]:
            cell["checks"] = [records.check(rule="counters", outcome="FAIL", reason="1 → 2 all_reduce a step")]
        cells[2]["checks"] = [records.check(rule="counters", reason="a step does the same")]
        record = records.make(cells=cells)
        assert [fact.name for fact in lead.facts(record)][:2] == ["Verdict", "What changed in a step?"]
        line = "ddp-lenet-strong-1, ddp-lenet-strong-2: 1 → 2 all_reduce a step (against main)"
        assert facts(record)["What changed in a step?"] == line
        assert line in markdown.render(record)
        assert line in terminal.render(record, 200, color=False)
        assert line in html.render(record)

    @pytest.mark.parametrize("many", [1, 9])
    def test_warnings_follow_the_verdict_and_none_is_lost(self, many: int) -> None:
        cells = records.matrix()
        cells[1]["cautions"] = [f"tail {number} grew" for number in range(many)]
        record = records.make(cells=cells)
        assert [fact.name for fact in lead.facts(record)][:2] == ["Verdict", "Warnings"]
        line = "ddp-lenet-strong-2: tail 0 grew"
        assert facts(record)["Warnings"].startswith(line)
        assert line in terminal.render(record, 200, color=False)
        assert line in html.render(record)
        assert f"tail {many - 1} grew" in markdown.render(record)

    def test_cells_with_the_same_reason_share_a_line(self) -> None:
        reason = "no budget was left"
        cells = records.matrix(outcome="INCONCLUSIVE", reason=reason)
        cells[0] |= {"outcome": "FAIL", "reason": "7.0% slower"}
        assert lead.verdicts(records.make(cells=cells)) == [
            "FAIL: ddp-lenet-strong-1: 7.0% slower",
            f"INCONCLUSIVE: ddp-lenet-strong-2, ddp-lenet-weak-1, ddp-lenet-weak-2: {reason}",
        ]

    @pytest.mark.parametrize(
        ("rules", "offered"),
        [
            (["stored"], False),
            (["stored", "counters"], False),
            (["stored", "accuracy"], True),
            (["time"], True),
            (["floor"], True),
            (["drift"], True),
            ([], True),
        ],
    )
    def test_more_sessions_are_offered_only_where_they_may_decide(self, rules: list[str], offered: bool) -> None:
        """Without a check, there was no time for the cell."""
        checks = [records.check(rule=rule, outcome="INCONCLUSIVE") for rule in rules]
        beside = records.check(rule="machine", outcome="INCONCLUSIVE", counts=False)
        open_, gone = (
            records.cell(world_size=size, outcome="INCONCLUSIVE", checks=found)
            for size, found in ((2, [*checks, beside]), (1, [records.check(rule="stored", outcome="INCONCLUSIVE")]))
        )
        found = steps(records.make(cells=[open_, gone], repeat=TYPED))
        expected = f"pytest -m scaling {cells_of('2')} --scaling-profile=full" if offered else None
        assert found.get("decide what is INCONCLUSIVE") == expected
        assert {"compare with main", "measure it again as the baseline"} <= found.keys()

    def test_lines_that_do_not_fit_are_counted_and_the_summary_has_all(self) -> None:
        cells = [records.cell(id=f"cell-{n}", outcome="FAIL", reason=f"{n}.0% slower") for n in range(9)]
        record = records.make(cells=cells)
        assert lead.facts(record)[0].lines[-1] == "and 4 more, below"
        assert "- FAIL: cell-8: 8.0% slower" in markdown.render(record)
        shown = terminal.render(record, 120, color=False)
        assert [shown.count(f"{n}.0% slower") for n in range(9)] == [2] + [1] * 8, "the first is in the sentence too"

    def test_lines_below_the_table_are_bounded_too(self) -> None:
        cells = [records.cell(id=f"cell-{n}", outcome="INCONCLUSIVE", reason=f"{n} s too few") for n in range(100)]
        shown = terminal.render(records.make(cells=cells), 120, color=False)
        assert f"and {100 - lead.MOST + 1 - terminal.MAX_NOTES} more; report.html has them" in shown

    @pytest.mark.parametrize(("failed", "commands"), [(1, 1), (3, 3), (4, 1)])
    def test_a_few_red_cells_have_a_command_each(self, failed: int, commands: int) -> None:
        cells = [records.cell(id=f"ddp-lenet-strong-{k}", world_size=k, outcome="FAIL") for k in range(1, failed + 1)]
        again = [what for what in steps(records.make(cells=cells)) if what.startswith("see the FAIL")]
        assert len(again) == commands
        assert ("see the FAIL of ddp-lenet-strong-3 again" in again[-1]) is (failed == 3)

    def test_red_cells_have_a_command_with_the_same_base_and_a_fail_says_what_grew(self) -> None:
        record = records.full(repeat=["-m", "scaling", "-k", "not tree", "--scaling-against=main"])
        assert steps(record)["see the FAIL again"] == f"pytest -m scaling --scaling-against=main {cells_of('2')}"
        assert "measure it" not in "".join(steps(record)), "a run with an ERROR is never a baseline"
        assert facts(record)["Held back by"] == "ddp-lenet-strong-2: the exchange costs 11.2 ms a step"
