"""A cell in other tools: JUnit and the files of pytest-benchmark; and the items of a training script."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from suite import options
from suite.benchmarks import test_all_reduce
from suite.benchmarks.replay import CLOCK, replay
from suite.benchmarks.test_scaling import lacks_baseline, properties
from suite.checks.script import again, explain, world_size
from suite.cli import pytest_run
from suite.plan.cells import CollectiveCell
from suite.processes.jobs import ScriptRun
from suite.records.files import read_model
from suite.records.record import CellRecord, Record
from suite.render import markdown
from suite.room import devices
from suite.room.quiet import available_cores
from suite.script.items import ITEMS, Verdict
from suite.script.main import run_as_main
from tests.support import records, stand_in
from tests.support.project import Project

TWO = "test_scaling[ddp-lenet-strong-2]"


def told(**changes: object) -> dict[str, str]:
    """The properties of a cell; `changes` replace fields of its record."""
    found = properties(CellRecord.model_validate(records.cell(**changes)))
    assert len(dict(found)) == len(found), "no name twice"
    return dict(found)


class TestProperties:
    """The properties of a cell; those without a value are left out."""

    def test_a_cell_without_figures_has_only_its_verdict(self) -> None:
        nothing = {"sec_per_epoch": None, "samples_per_s": None}
        assert told(outcome="ERROR", reason="rank 1: signal 9 (SIGKILL)", **nothing) == {
            "verdict": "ERROR",
            "reason": "rank 1: signal 9 (SIGKILL)",
        }

    def test_figures_are_plain_numbers_and_notes_are_kept(self) -> None:
        figures = {"efficiency": records.interval(0.8125), "speedup": records.interval(1.6), "accuracy": 0.97}
        missing = [records.missing("efficiency", "needs 2 devices"), records.missing("speedup", "not timed")]
        notes = {f"{each['figure']}_note": each["why"] for each in missing} | {"warning": "gap widened, nothing slower"}
        expected = {"sec_per_epoch": "13", "samples_per_s": "4600", "efficiency": "0.8125", "speedup": "1.6"}
        expected |= {"slowdown": "1.01235", "accuracy": "0.9700", **notes}
        shown = told(**figures, missing=missing, warning=notes["warning"], slowdown=records.interval(1.0123456))
        assert expected.items() <= shown.items()
        assert "warning" not in told()

    def test_the_largest_cause_of_lost_time_is_the_candidates(self) -> None:
        falls = [records.waterfall("base", exchange=0.5), records.waterfall("candidate", exchange=0.0056)]
        found = told(waterfalls=falls)
        assert (found["largest_cause"], found["largest_cause_s"]) == ("exchange", "0.0056")
        assert found["lost_time"] == falls[1]["sentence"]

    def test_inseparable_causes_are_one_property(self) -> None:
        assert told(waterfalls=[records.waterfall(exchange=0.0)])["largest_cause"] == "small batch"
        fall = records.waterfall()
        fall["bars"] = [bar for bar in fall["bars"] if len(bar["causes"]) > 1]
        assert told(waterfalls=[fall])["largest_cause"] == "contention + imbalance"

    @pytest.mark.parametrize("kept", [(), ("overhead",)], ids=["no bars", "one that saves time"])
    def test_where_nothing_was_lost_no_cause_is_named(self, kept: tuple[str, ...]) -> None:
        fall = records.waterfall()
        fall["bars"] = [bar for bar in fall["bars"] if tuple(bar["causes"]) == kept]
        assert len(fall["bars"]) == len(kept)
        assert not {"largest_cause", "largest_cause_s", "lost_time"} & told(waterfalls=[fall]).keys()


def measured(folder: Path, name: str, *cells: str) -> Record:
    """Run cells in a folder, of which pytest-benchmark and JUnit get files of this name, and return the record."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("PYTEST_XDIST_WORKER", raising=False)  # beside which pytest-benchmark writes no file
        (folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
        files = [f"--benchmark-json={name}.json", f"--junitxml={name}.xml", "-p", "no:cacheprovider"]
        ended = pytest_run.run(["-p", stand_in.__name__, *cells, *files])
    assert ended.status == 0
    assert ended.run is not None
    return ended.run.record


def benchmarks(folder: Path, name: str = "run") -> list[Any]:
    return json.loads((folder / f"{name}.json").read_text())["benchmarks"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with two runs in it, the second one 10 % slower: their JUnit and pytest-benchmark files."""
    here = tmp_path_factory.mktemp("project")
    for name, step_s in (("before", "0.0100"), ("after", "0.0110")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(stand_in.STEP_S, step_s)
            patch.setattr(devices, "available_cores", lambda: [0, 1])  # on one core, two workers have no efficiency
            patch.setenv(markdown.VARIABLE, str(here / "job.md"))
            measured(here, name, "--scaling-devices", "cpu:2", "--scaling-trainer", "ddp", "-k", "lenet-strong")
    return here


def pytest_benchmark(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest_benchmark", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.filterwarnings("ignore:Benchmark fixture was not used")
def test_a_cell_that_was_not_timed_hands_nothing_over(benchmark: Any) -> None:
    """Such as one that the budget had no room for: it is skipped with its reason, and no failure."""
    replay(benchmark, [], {"cell": "ddp-lenet-strong-2"})
    assert not benchmark.extra_info


def test_junit_names_the_run_and_its_report_folder(folder: Path) -> None:
    cases = {case.get("name"): case for case in ElementTree.parse(folder / "after.xml").iter("testcase")}
    found = {entry.get("name"): entry.get("value") for entry in cases[TWO].iter("property")}
    assert found["verdict"] == "NO BASELINE"
    assert float(str(found["efficiency"])) == pytest.approx(stand_in.EFFICIENCY, rel=1e-3)
    report = folder / str(found["report"])
    record = read_model(report / "record.json", Record)
    assert record.run_id == found["run_id"]
    [cell] = [cell for cell in record.cells if cell.id in TWO]
    assert found["sec_per_epoch"] == f"{cell.sec_per_epoch.estimate:.6g}", "of this run, not of the one before"
    assert (report / "summary.md").is_file()


def test_a_github_jobs_page_has_the_summaries_of_both_runs(folder: Path) -> None:
    summaries = [path.read_text() for path in folder.glob("reports/*/runs/*/summary.md")]
    assert len(summaries) == 2
    page = (folder / "job.md").read_text()
    assert all(summary in page for summary in summaries)
    assert page.count("# Scaling: ") == 2


def test_trainers_with_the_same_class_name_are_told_apart_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.py", "b.py"):
        (tmp_path / name).touch()
    cells = ["--scaling-devices=cpu:2", "--scaling-trainer=a.py:Mine,b.py:Mine", "-k", "lenet-strong-2"]
    ids = ["a.Mine-lenet-strong-2", "b.Mine-lenet-strong-2"]
    assert [cell.id for cell in measured(tmp_path, "run", *cells).cells] == ids
    assert [case.get("name") for case in ElementTree.parse("run.xml").iter("testcase")] == [
        f"test_scaling[{name}]" for name in ids
    ]
    assert [benchmark["extra_info"]["cell"] for benchmark in benchmarks(tmp_path)] == ids
    table = [line for line in capsys.readouterr().out.splitlines() if line.split()[1:3] == ["lenet", "strong"]]
    assert [line.split()[0] for line in table] == ["a.Mine", "b.Mine"]


def test_an_oversubscribed_cell_is_marked_for_other_tools(tmp_path: Path) -> None:
    above = len(available_cores()) + 1
    cells = [f"--scaling-devices=cpu:{above}", f"--scaling-world-sizes=1,{above}", "-k", "lenet-strong"]
    measured(tmp_path, "run", "--scaling-trainer=ddp", *cells)
    marked = {each["extra_info"]["cell"]: each["extra_info"]["oversubscribed"] for each in benchmarks(tmp_path)}
    assert marked == {"ddp-lenet-strong-1": False, f"ddp-lenet-strong-{above}": True}
    cases = ElementTree.parse(tmp_path / "run.xml").iter("testcase")
    found = [{entry.get("name"): entry.get("value") for entry in case.iter("property")} for case in cases]
    assert [each.get("oversubscribed") for each in found] == [None, "true"]


@pytest.mark.benchmark(timer=CLOCK)
def test_an_oversubscribed_collective_is_marked_for_other_tools(benchmark: Any, request: pytest.FixtureRequest) -> None:
    record = records.make(collectives=[records.collective(oversubscribed=True)])
    run: Any = SimpleNamespace(record=record, collective=lambda _: record.collectives[0])
    test_all_reduce.test_all_reduce(CollectiveCell("gloo", 2), run, benchmark, request)
    assert benchmark.extra_info["oversubscribed"] is True
    assert ("oversubscribed", "true") in request.node.user_properties


@pytest.mark.filterwarnings("ignore:Benchmark fixture was not used")
def test_an_oversubscribed_collective_that_failed_is_marked_too(benchmark: Any, request: pytest.FixtureRequest) -> None:
    failed = records.collective(oversubscribed=True, points=[], error="rank 1: gone")
    record = records.make(collectives=[failed | {"alpha_s": None, "beta_s_per_byte": None}])
    run: Any = SimpleNamespace(record=record, collective=lambda _: record.collectives[0])
    with pytest.raises(pytest.fail.Exception, match=r"^ERROR \(oversubscribed\): rank 1: gone"):
        test_all_reduce.test_all_reduce(CollectiveCell("gloo", 2), run, benchmark, request)
    assert request.node.user_properties == [("oversubscribed", "true")]


def test_the_samples_are_what_was_measured(folder: Path) -> None:
    steps = {}
    for name in ("before", "after"):
        timed = benchmarks(folder, name)
        assert {benchmark["group"] for benchmark in timed} == {"scaling: seconds a step"}
        [two] = [benchmark for benchmark in timed if benchmark["name"] == TWO]
        assert two["stats"]["rounds"] == len(two["stats"]["data"]) > 1
        steps[name] = two["stats"]["mean"]
    assert steps["before"] == pytest.approx(0.01 / 2 / stand_in.EFFICIENCY, rel=0.01)
    assert steps["after"] / steps["before"] == pytest.approx(1.1, rel=1e-3)


def test_pytest_benchmark_compares_two_of_our_files(folder: Path) -> None:
    done = pytest_benchmark(folder, "compare", "before.json", "after.json", "--columns=mean", "--sort=fullname")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("test_scaling[ddp-lenet-strong-2]")]
    assert sorted(row[1] for row in rows) == ["(after)", "(before)"]
    [slower] = [row for row in rows if row[1] == "(after)"]
    [faster] = [row for row in rows if row[1] == "(before)"]
    assert float(slower[2]) / float(faster[2]) == pytest.approx(1.1, rel=1e-3)


def test_pytest_benchmark_draws_our_files(folder: Path) -> None:
    pytest.importorskip("pygal", reason="pytest-benchmark draws with pygal: install pytest-benchmark[histogram]")
    done = pytest_benchmark(folder, "compare", "before.json", "after.json", "--histogram=drawn", "--sort=fullname")
    assert done.returncode == 0, done.stderr
    [drawn] = folder.glob("drawn*.svg")
    picture = ElementTree.parse(drawn)
    assert picture.getroot().tag.endswith("svg")
    text = " ".join("".join(element.itertext()) for element in picture.iter())
    assert all(f"ddp-lenet-strong-{k}" in text for k in (1, 2))


@pytest.mark.parametrize(
    ("rules", "lacks"), [([], True), (["floor"], True), (["floor", "stored"], False), (["time"], False)]
)
def test_a_cell_with_a_floor_alone_has_no_baseline(rules: list[str], lacks: bool) -> None:
    """`--scaling-require-baseline` fails it, also where the floor is undecided."""
    checks = [records.check(rule=rule, outcome="INCONCLUSIVE") for rule in rules]
    [cell] = records.make(cells=[records.cell(outcome="INCONCLUSIVE", checks=checks)]).cells
    assert lacks_baseline(cell) is lacks


SCRIPT = "--scaling-script=train.py --batch_size {batch}"


@pytest.fixture(autouse=True)
def train(project: Project) -> None:
    (project.path / "train.py").write_text("raise SystemExit\n")


def checks(project: Project, *arguments: str) -> list[str]:
    return project.collected("-m", "correctness", *arguments, package="suite.checks")


def test_a_script_has_its_items_and_no_trainer_is_checked_beside_it(project: Project) -> None:
    items = checks(project, SCRIPT, "--scaling-batch=8")
    assert items == [f"test_script[train-{item}]" for item in ITEMS]


def test_a_trainer_that_is_named_is_checked_too(project: Project) -> None:
    items = checks(project, SCRIPT, "--scaling-batch=8", "--scaling-trainer=single")
    assert {item.partition("[")[0] for item in items} == {"test_script", "test_correctness"}


def test_without_a_script_there_is_no_item(project: Project) -> None:
    assert not any("test_script" in item for item in checks(project))


def test_the_header_names_the_scripts(project: Project) -> None:
    result = project.inline("-m", "correctness", "--collect-only", SCRIPT, "--scaling-batch=8", package="suite.checks")
    result.stdout.fnmatch_lines(["correctness: scripts train"])
    assert not any(line.startswith("correctness: trainers") for line in result.outlines)


def test_a_script_that_is_not_there_any_more_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no script .*/gone\.py; check the path, or compare"):
        run_as_main(ScriptRun(words=("gone.py",), directory=str(tmp_path), environment={}))


def test_a_failure_ends_with_the_command_of_its_item_alone(project: Project) -> None:
    config = project.config("-m", "correctness", SCRIPT, "--scaling-batch=8", "-k", "replicas or data")
    settings = options.read(config)
    [script] = settings.scripts
    shown = "-k 'train-data]'"
    assert again(settings, script, "data").endswith(shown)
    assert "replicas" not in again(settings, script, "data")
    said = explain(settings, script, "data", Verdict("rows are shared; split them", ("no sampler",)))
    assert said.splitlines()[:2] == ["script 'train', data: rows are shared; split them", "  looks like: no sampler"]
    assert said.endswith(shown)


@pytest.mark.parametrize(("sizes", "k"), [("1", 2), ("1,2", 2), ("1,2,3,4", 3)])
def test_a_script_is_recorded_on_two_or_three_ranks(sizes: str, k: int, project: Project) -> None:
    arguments = [SCRIPT, "--scaling-batch=8", "--scaling-devices=cpu:4", f"--scaling-world-sizes={sizes}"]
    assert world_size(project.settings(*arguments)) == k


def test_a_module_that_is_skipped_ends_no_run(project: Project) -> None:
    (project.path / "test_skipped.py").write_text("import pytest\npytest.skip('here', allow_module_level=True)\n")
    result = project.inline(package="test_skipped.py")
    result.assert_outcomes(skipped=1)
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()
