"""The commands on every output, which are those of the run."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from suite import options
from suite.cli.pytest_run import select
from suite.records.record import CellRecord, Record
from suite.render import commands, html, lead, markdown, terminal
from tests.support import records
from tests.support.pages import Page, cells_of, first_run, steps
from tests.support.project import PYPROJECT, Project


class TestRed:
    """Every cell and collective that failed has its own command, in every output."""

    RECORD = records.full(
        repeat=["-m", "scaling", "-k", "not tree", "--scaling-devices=cpu:4"],
        collectives=[records.collective(error="rank 1: out of memory")],
    )
    COMMANDS = (
        f"pytest -m scaling --scaling-devices=cpu:4 {cells_of('2')}",
        f"pytest -m scaling --scaling-devices=cpu:4 {cells_of('2', 'weak')}",
        "pytest -m scaling --scaling-devices=cpu:4 --scaling-world-sizes=2 -k '[all_reduce-gloo-2]'",
    )

    def test_each_has_one_and_no_other_cell_has(self) -> None:
        assert lead.red(self.RECORD) == [
            lead.Step("FAIL ddp-lenet-strong-2", self.COMMANDS[0]),
            lead.Step("ERROR ddp-lenet-weak-2", self.COMMANDS[1]),
            lead.Step("ERROR all_reduce-gloo-2", self.COMMANDS[2]),
        ]

    def test_terminal_summary_and_report_have_it(self) -> None:
        shown, page = terminal.render(self.RECORD, 160, color=False), Page(html.render(self.RECORD))
        summary = markdown.render(self.RECORD)
        codes = [code.text for code in page.all("code") if "main" in code.ancestors]
        assert [code for code in codes if code in self.COMMANDS] == list(self.COMMANDS), "next to its cell"
        for step in lead.red(self.RECORD):
            assert f"\n    {step.command}\n" in shown
            assert step.command.replace("[", "[") in summary

    @pytest.mark.parametrize(
        ("count", "expected"),
        [
            (3, ["--scaling-trainer=t0,t1,t2", "--scaling-world-sizes=1,2", "-k"]),
            (50, ["--scaling-trainer=t0,t1,", "--scaling-world-sizes=1,2"]),
            (500, ["--scaling-tolerance=0.1"]),
        ],
        ids=["by -k", "by options", "the whole run"],
    )
    def test_a_command_that_a_page_would_cut_measures_more_cells_instead(self, count: int, expected: list[str]) -> None:
        trainers = [f"t{number}" for number in range(count)]
        cells = records.matrix(trainers=trainers, modes=("strong",), outcome="FAIL")
        record = records.make(cells=cells[1:], repeat=["-m", "scaling", "--scaling-tolerance=0.1"])
        what = "see the FAIL again" + (", beside other cells" if "-k" not in expected else "")
        command = steps(record)[what]
        assert all(part in command for part in expected)
        assert ("-k" in command) == ("-k" in expected)
        assert f"\n{command}\n" in markdown.render(record)
        assert command in [code.text for code in Page(html.render(record)).all("code")]

    def test_a_command_that_fits_no_page_is_on_none(self) -> None:
        typed = [f"--scaling-data-root={'d' * 2_000}"]
        record = records.full(repeat=typed, collectives=[records.collective(error="hung")])
        accepted = records.make(cells=records.matrix(outcome="PASS"), repeat=typed)
        for text in (page(each) for page in (markdown.render, html.render) for each in (record, accepted)):
            assert "ddd" not in text
        assert "too long to show here" in html.render(record)
        assert markdown.render(record).count("too long to show here") == len(lead.red(record))

    def test_a_run_without_any_says_nothing_of_it(self) -> None:
        record = records.make(cells=records.matrix())
        assert ", again:" not in terminal.render(record, 160, color=False)
        assert "What failed" not in markdown.render(record)

    @pytest.mark.parametrize(("rule", "how"), [("time", "as slower"), ("accuracy", "with its FAIL")])
    def test_only_a_run_whose_time_failed_is_accepted_as_slower(self, rule: str, how: str) -> None:
        failed = records.cell(outcome="FAIL", checks=[records.check(rule=rule, outcome="FAIL")])
        record = first_run(cells=[failed])
        assert steps(record)[f"measure it again and accept it {how}"].endswith(" --scaling-accept=slower")
        text = Page(html.render(record)).section("machine")
        assert ("the slowdown is wanted" in text, "no cell became slower" in text) == (rule == "time", rule != "time")

    @pytest.mark.parametrize("changes", [{"interrupted": True}, {"collectives": [records.collective(error="hung")]}])
    def test_a_run_that_is_never_a_baseline_offers_no_accepting(self, changes: dict[str, Any]) -> None:
        record = first_run(**changes)
        assert "measure it again as the baseline" in steps(first_run())
        for text in (terminal.render(record, 160, color=False), markdown.render(record), html.render(record)):
            assert "--scaling-accept" not in text
            assert "accept a run like this one" not in text

    def test_the_command_for_a_collective_selects_it(self, project: Project) -> None:
        pytest_, *arguments = shlex.split(self.COMMANDS[2])
        assert pytest_ == "pytest"
        result = project.inline(*arguments, "--collect-only", "-q", package="suite.benchmarks")
        items = [line for line in result.outlines if "::" in line]
        assert [item.rpartition("::")[2] for item in items] == ["test_all_reduce[all_reduce-gloo-2]"]


class TestCommands:
    """Commands repeat what was typed, quoted for a shell."""

    def test_what_was_typed_is_kept_and_what_an_ini_file_says_is_not(self, project: Project) -> None:
        project.ini(scaling_tolerance="0.1")
        typed = ["-m", "scaling", "-k", "strong and not 1", "--scaling-trainer", "ddp", "--scaling-trainer", "scratch"]
        config = project.config(*typed, "--scaling-require-baseline", "--scaling-accept", "--scaling-budget", "9")
        assert options.read(config).repeat == (
            "-m", "scaling", "-k", "strong and not 1", "--scaling-trainer=ddp", "--scaling-trainer=scratch",
            "--scaling-budget=9", "--scaling-require-baseline",
        )  # fmt: skip

    def test_settings_that_were_typed_are_those_of_every_command(self, project: Project) -> None:
        (project.path / "other").mkdir()
        (project.path / "other" / "pyproject.toml").write_text(PYPROJECT.replace("tiny", "mine"))
        typed = ["--config-file=other/pyproject.toml", "--override-ini=scaling_workload=mine"]
        config = project.config("-m", "scaling", "-c", "other/pyproject.toml", "-o", "scaling_workload=mine")
        assert list(options.read(config).repeat) == ["-m", "scaling", *typed]
        cells = [records.cell(workload="mine")]
        record = records.make(cells=cells, repeat=options.read(config).repeat)
        several, one = (commands.only, commands.longer), (commands.trace, commands.sweep, commands.weak)
        made = [make(record, record.cells) for make in several] + [make(record, record.cells[0]) for make in one]
        for command in (*made, commands.accept(record), commands.correctness(record)):
            assert set(typed) <= set(shlex.split(command)), command
        again = options.read(project.config(*shlex.split(made[0])[1:]))
        assert [workload.name for workload in again.workloads] == ["mine"]

    def test_the_trace_of_a_script_has_its_command(self) -> None:
        script = ["--scaling-script=train.py --batch_size {batch}", "--scaling-batch=64"]
        cells = [records.cell(trainer="train", workload="train"), records.cell()]
        record = records.make(cells=cells, repeat=("-m", "scaling", *script))
        ofs = [shlex.split(commands.trace(record, cell)) for cell in record.cells]
        assert [[word for word in words if word in script] for words in ofs] == [script, []]

    @pytest.mark.parametrize(
        ("typed", "budget"),
        [([], []), (["-o", "scaling_budget=60", "-o", "scaling_profile=quick"], ["--scaling-budget=1800"])],
        ids=["profile", "typed"],
    )
    def test_a_longer_run_has_the_budget_of_the_full_profile(
        self, project: Project, typed: list[str], budget: list[str]
    ) -> None:
        chosen = options.read(project.config("-m", "scaling", *typed))
        record = records.make(repeat=chosen.repeat, settings=chosen.header(), own_budget=chosen.budget.fixed)
        command = shlex.split(commands.longer(record, record.cells[:1]))
        assert command == ["pytest", "-m", "scaling", *cells_of("1").split(), "--scaling-profile=full", *budget]

    def test_a_longer_run_overrides_the_budget_of_an_ini_file(self, project: Project) -> None:
        project.ini(scaling_budget="20")
        chosen = options.read(project.config("-m", "scaling"))
        record = records.make(repeat=chosen.repeat, settings=chosen.header(), own_budget=chosen.budget.fixed)
        _, *command = shlex.split(commands.longer(record, record.cells[:1]))
        again = options.read(project.config(*command))
        assert (again.profile, again.budget.seconds) == ("full", 1800.0)

    def test_other_settings_of_pytest_are_not_in_a_command(self, project: Project) -> None:
        others = ["--strict-markers", "--strict-config", "-o", "console_output_style=count"]
        config = project.config("-m", "scaling", *others)
        assert options.read(config).repeat == ("-m", "scaling")

    @pytest.mark.parametrize(
        ("markers", "expected"),
        [("gpu", "scaling"), ("gpu or end_to_end", "scaling"), ("scaling and not gpu", "'scaling and not gpu'")],
    )
    def test_a_command_for_cells_runs_no_checks_whatever_the_run_selected(self, markers: str, expected: str) -> None:
        """As docs/ci/gpu.yml does."""
        typed = ["-m", markers, "--pyargs", "suite.checks", "suite.benchmarks", "--scaling-require-devices=2"]
        record = records.make(repeat=typed, collectives=[records.collective()])
        kept = f"pytest -m {expected} --pyargs suite.benchmarks --scaling-require-devices=2"
        assert commands.only(record, record.cells[:1]) == f"{kept} {cells_of('1')}"
        found = f"{kept} --scaling-world-sizes=2 -k '[all_reduce-gloo-2]'"
        assert commands.collective(record, record.collectives[0]) == found
        assert set(typed) <= set(shlex.split(commands.accept(record))), "which repeats the run"

    def test_a_folder_may_have_the_name_of_the_marker(self) -> None:
        record = records.make(repeat=["-m", "gpu", "scaling"])
        assert commands.only(record, record.cells[:1]) == f"pytest -m scaling scaling {cells_of('1')}"

    def test_a_command_names_the_workload_whatever_the_settings_choose(self, project: Project) -> None:
        project.ini(scaling_workload="resnet18")
        record = records.make(repeat=["-m", "scaling", "--scaling-devices=cpu:2"])
        _, *arguments = shlex.split(commands.only(record, record.cells))
        assert {cell.workload for cell in select(arguments).cells} == {"lenet"}

    @pytest.mark.parametrize(
        ("make", "typed", "expected"),
        [
            (commands.correctness, ["--pyargs", "suite.benchmarks"], "pytest --pyargs suite.checks -m correctness"),
            (commands.accept, ["--pyargs", "suite.benchmarks"], "pytest --pyargs suite.benchmarks --scaling-accept"),
            (commands.accept, ["--scaling-against=ddp"], "pytest --scaling-accept"),
            (commands.accept, ["--scaling-trainer=a b; rm"], "pytest '--scaling-trainer=a b; rm' --scaling-accept"),
            (commands.accept, [], f"pytest -m scaling {cells_of('1,2')} --scaling-accept"),
        ],
        ids=["checks", "installed suite", "no base", "quoted", "older record"],
    )
    def test_a_command_repeats_the_arguments_of_the_run(
        self, make: Callable[[Record], str], typed: list[str], expected: str
    ) -> None:
        assert make(records.make(repeat=typed)) == expected

    @pytest.mark.parametrize(
        "wanted",
        ["ddp-lenet-strong-2", "ddp-lenet-strong-2 scratch-lenet-weak-1", "ddp-lenet-weak-1 ddp-lenet-weak-2"],
        ids=["one", "a diagonal", "a row"],
    )
    def test_a_command_for_some_cells_selects_those(self, wanted: str) -> None:
        cells = records.matrix(trainers=("ddp", "scratch"), world_sizes=(1, 2))
        chosen = [CellRecord.model_validate(cell) for cell in cells if cell["id"] in wanted.split()]
        record = records.make(cells=cells, repeat=["-m", "scaling", "-k", "test_scaling", "--scaling-devices=cpu:2"])
        pytest_, *arguments = shlex.split(commands.only(record, chosen))
        assert pytest_ == "pytest"
        assert sorted(cell.id for cell in select(arguments).cells) == wanted.split()

    @pytest.mark.parametrize("workload", ["my net", "größe"])
    def test_cells_that_a_keyword_cannot_name_are_measured_beside_others_and_that_is_said(
        self, project: Project, workload: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Pytest takes no space in `-k`, and escapes letters beyond ASCII in an item's name."""
        (project.path / "pyproject.toml").write_text(PYPROJECT.replace("workloads.tiny", f'workloads."{workload}"'))
        cells = [
            cell | {"id": f"ddp-{workload}-{cell['mode']}-{cell['world_size']}", "workload": workload}
            for cell in records.matrix(trainers=("ddp",), world_sizes=(1, 2), outcome="FAIL")
        ]
        diagonal = [cells[0], cells[-1]]
        monkeypatch.setattr(lead, "FEW_RED", 1)  # more than that share a command
        record = records.make(cells=diagonal, repeat=["-m", "scaling", "--scaling-devices=cpu:2"])
        _, *arguments = shlex.split(steps(record)["see the FAIL again, beside other cells"])
        items = project.inline("--collect-only", "-q", *arguments).outlines
        named = [cell["id"].encode("ascii", "backslashreplace").decode() for cell in cells]
        assert [item.partition("[")[2].rstrip("]") for item in items if "[" in item] == named

    def test_a_command_for_one_of_two_trainers_with_the_same_class_name_selects_its_cells(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The command names that trainer alone, and in such a run ids have the class name only."""
        monkeypatch.chdir(tmp_path)
        for name in ("a.py", "b.py"):
            (tmp_path / name).touch()
        cells = [
            cell | {"id": f"b.{cell['id']}"} for cell in records.matrix(trainers=("b.py:Mine",), world_sizes=(1, 2))
        ]
        chosen = [CellRecord.model_validate(cell) for cell in (cells[0], cells[-1])]
        record = records.make(cells=cells, repeat=["-m", "scaling", "--scaling-devices=cpu:2"])
        _, *arguments = shlex.split(commands.only(record, chosen))
        places = {(cell.trainer, cell.mode, cell.world_size) for cell in select(arguments).cells}
        assert places == {(cell.trainer, cell.mode, cell.world_size) for cell in chosen}
