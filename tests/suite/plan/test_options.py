"""The options: a frozen list, ini twins, and usage errors with the valid values."""

from __future__ import annotations

import fnmatch
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from suite import options
from suite.options import OPTIONS
from suite.plan.config import Budget
from suite.plugin import CONFIG, pytest_report_header
from tests.support.nvml import Scene
from tests.support.project import Project

FROZEN = [
    "devices", "world-sizes", "trainer", "script", "batch", "workload", "mode", "data-root", "tolerance", "budget",
    "against", "accept", "require-devices", "profile", "inconclusive", "counters", "require-baseline", "report-dir",
]  # fmt: skip


def test_the_list_of_options_is_frozen() -> None:
    """A new option is a decision: docs/adr first, then this list."""
    assert [option.name for option in OPTIONS] == FROZEN


def test_every_option_has_help_and_an_ini_twin(project: Project) -> None:
    found = project.inline("--help").stdout.str()
    for name in FROZEN:
        assert f"--scaling-{name}" in found
        assert f"scaling_{name.replace('-', '_')}" in found


def test_command_line_over_ini_over_default(project: Project) -> None:
    project.ini(scaling_budget="77", scaling_tolerance="0.1")
    own = project.settings()
    assert (own.budget.seconds, own.tolerance, own.profile) == (77, 0.1, "quick")
    assert project.settings("--scaling-budget", "88").budget.seconds == 88
    assert "tolerance 10.0%, profile quick, budget 77 s" in "\n".join(own.header())


@pytest.mark.usefixtures("two_cores")
def test_world_sizes_of_an_ini_file_that_the_devices_are_too_few_for_are_named(project: Project) -> None:
    project.ini(scaling_world_sizes="1,2,4,8", scaling_devices="cpu:2")
    chosen = project.settings()
    assert chosen.world_sizes == (1, 2)
    said = "scaling: not measured: world size(s) 4, 8 of the settings; there is only cpu:2"
    assert [line for line in chosen.header() if "not measured" in line] == [said]


@pytest.mark.parametrize(
    ("marker", "shown"),
    [
        ("correctness", True),
        ("correctness and gpu", True),
        ("scaling", False),
        ("not correctness", False),
        ("not (scaling or correctness)", False),
    ],
)
def test_the_header_names_the_trainers_that_are_checked(project: Project, marker: str, shown: bool) -> None:
    config = project.config("-m", marker, "--scaling-devices=cpu:2")
    config.stash[CONFIG] = options.read(config)
    checked = [line for line in pytest_report_header(config) if line.startswith("correctness: ")]
    assert [line for line in checked if "weighted" in line] == checked
    assert len(checked) == shown


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ([], "accept no, require-devices 0, require-baseline no,"),
        (["accept", "require-devices=2"], "accept yes, require-devices 2, require-baseline no,"),
        (["accept=slower", "require-baseline"], "accept slower, require-devices 0, require-baseline yes,"),
    ],
)
def test_the_header_shows_what_is_accepted_and_required(project: Project, arguments: list[str], shown: str) -> None:
    assert shown in project.settings(*(f"--scaling-{argument}" for argument in arguments)).header()[1]


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        ("not gpu and not scaling", "cpu"),
        ("not (gpu or scaling or end_to_end)", "cpu"),
        ("scaling and not(gpu)", "cpu"),
        ("gpu", "cuda"),
        ("correctness", "cuda"),
        ("end_to_end", "cuda"),
        ("scaling or not gpu", "cuda"),
        ("somebodys_own and not slow", "cuda"),
        ("(", "cuda"),
    ],
)
def test_a_run_that_leaves_gpu_items_out_is_on_cpu_workers(
    project: Project, gpus: Callable[..., Scene], expression: str, kind: str
) -> None:
    """Otherwise a plain `pytest` on a machine with GPUs would deselect every check. "(" is pytest's to refuse."""
    gpus(2)
    assert project.settings("-m", expression).devices.kind == kind
    assert project.settings("-m", expression, "--scaling-devices=cuda:2").devices.kind == "cuda"


@pytest.mark.parametrize(
    ("expression", "asks"),
    [
        ("", False),
        ("gpu", True),
        ("gpu and scaling", True),
        ("gpu or correctness", True),
        ("(gpu) and not end_to_end", True),
        ("not gpu", False),
        ("not (gpu or scaling or end_to_end)", False),
        ("not(gpu)", False),
        ("scaling or not gpu", False),
        ("scaling or correctness", False),
    ],
)
def test_gpus_are_asked_for_where_a_test_is_selected_because_it_needs_them(
    project: Project, expression: str, asks: bool
) -> None:
    assert options.asks_for_gpus(project.config("-m", expression)) is asks


@pytest.mark.parametrize(("setting", "workload"), [("cpu:2", "lenet"), ("cuda:2", "resnet18-bf16")])
def test_the_default_workload_can_occupy_the_devices(project: Project, setting: str, workload: str) -> None:
    assert [chosen.name for chosen in project.settings("--scaling-devices", setting).workloads] == [workload]


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize(
    ("arguments", "trainers", "chosen"),
    [
        ([], ("scratch", "data_parallel", "ddp"), ["lenet"]),
        (["--scaling-workload=gpt-tiny"], ("ddp_tokens",), ["gpt-tiny"]),
        (["--scaling-trainer=fsdp_tokens"], ("fsdp_tokens",), ["gpt-tiny"]),
        (["--scaling-trainer=fsdp_tokens", "--scaling-devices=cuda:2"], ("fsdp_tokens",), ["gpt"]),
        (["--scaling-trainer=single"], ("single",), ["lenet"]),
        (["--scaling-trainer=ddp,ddp_tokens"], ("ddp", "ddp_tokens"), ["lenet", "gpt-tiny"]),
    ],
)
def test_trainers_and_workloads_that_are_not_named_follow_from_the_others(
    project: Project, arguments: list[str], trainers: tuple[str, ...], chosen: list[str]
) -> None:
    config = project.settings(*arguments)
    assert config.trainers == trainers
    assert [workload.name for workload in config.workloads] == chosen


@pytest.mark.usefixtures("two_cores")
def test_built_in_trainers_of_tokens_are_not_chosen_for_data_that_only_its_user_knows(project: Project) -> None:
    with (project.path / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write('[tool.scaling.workloads.clicks]\nmodel = "clicks:make"\ndataset = "clicks:load"\n')
    assert project.settings("--scaling-workload=clicks").trainers == ("scratch", "data_parallel", "ddp")


def test_a_profile_has_a_budget_that_may_stretch_and_the_users_own_may_not(project: Project) -> None:
    full, own = project.settings("--scaling-profile", "full"), project.settings("--scaling-budget", "60")
    assert [config.budget for config in (full, own)] == [Budget(1800), Budget(60, fixed=True)]
    assert [config.budget.least_sessions for config in (full, own)] == [4, 1]


def test_the_header_shows_effective_settings(project: Project) -> None:
    result = project.inline("--collect-only", "--scaling-devices", "cpu:2", "--scaling-world-sizes", "2,1")
    result.stdout.fnmatch_lines(["scaling: devices cpu:2*, world sizes 1, 2, trainers scratch, data_parallel, ddp,*"])


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        (["--scaling-devices", "cpu:6"], "world_sizes", (1, 2, 4, 6)),
        (["--scaling-devices", "cpu:1"], "world_sizes", (1,)),
        (["--scaling-trainer", "ddp", "--scaling-trainer", "scratch,ddp"], "trainers", ("ddp", "scratch")),
    ],
)
def test_values_are_completed_and_counted_once(
    project: Project, arguments: list[str], field: str, value: object
) -> None:
    assert getattr(project.settings(*arguments), field) == value


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("devices=cpu:0", "devices 'cpu:0': the number counts devices; cpu:1 is one worker, and cuda:1 one GPU"),
        ("devices=cuda:0", "devices 'cuda:0': the number counts devices"),
        ("devices=tpu", "devices 'tpu': expected auto, cpu[[]:N[]]"),
        ("world-sizes=99999", "world size 99999 is above the * device(s) of "),
        ("world-sizes=0", "expected whole numbers from 1"),
        ("world-sizes=two", "expected whole numbers from 1"),
        ("world-sizes=²", "expected whole numbers from 1"),
        (f"world-sizes={'9' * 5000}", "expected whole numbers from 1"),
        (f"devices=cpu:{'9' * 5000}", "expected auto, cpu*"),
        ("devices=cpu:999999999999", "expected auto, cpu*"),
        ("trainer=nope", "--scaling-trainer 'nope': valid values are single, scratch, *, ddp,"),
        ("trainer=none.py:Mine", "there is no file none.py"),
        ("trainer=a:b c", "expected module:Class or path.py:Class"),
        ("workload=nope", "--scaling-workload 'nope': valid values are lenet, resnet18,"),
        ("trainer=", "--scaling-trainer '': valid values are single, *, module:Class or path.py:Class"),
        ("trainer=ddp --scaling-trainer=,", "--scaling-trainer '': valid values are single, "),
        ("trainer=mine.py::Mine", "--scaling-trainer 'mine.py::Mine': a class follows one colon; write mine.py:Mine"),
        (
            "against=trainer:mine.py::Mine",
            "--scaling-against 'mine.py::Mine': a class follows one colon; write mine.py:Mine",
        ),
        ("workload=", "--scaling-workload '': valid values are lenet, resnet18,"),
        ("mode=", "--scaling-mode '': valid values are strong, weak"),
        ("devices=", "devices '': expected auto, cpu[[]:N[]]"),
        ("world-sizes=", "--scaling-world-sizes '': expected whole numbers from 1"),
        ("against=", "--scaling-against '': expected a trainer, a Python interpreter or a git ref"),
        ("accept=", "--scaling-accept '': valid values are yes, slower"),
        ("budget=", "--scaling-budget '': expected a number above 0"),
        ("data-root=", "--scaling-data-root '': expected the path of a folder"),
        ("report-dir= ", "--scaling-report-dir ' ': expected the path of a folder"),
        ("mode=medium", "--scaling-mode 'medium': valid values are strong, weak"),
        ("counters=loud", "--scaling-counters 'loud': valid values are warn, fail, off"),
        ("profile=slow", "--scaling-profile 'slow': valid values are quick, full"),
        ("inconclusive=ok", "valid values are warn, fail"),
        ("tolerance=0", "--scaling-tolerance '0': expected a number above 0"),
        ("tolerance=nan", "expected a number above 0"),
        ("tolerance=5", "--scaling-tolerance 5: expected a share of at most 1, such as 0.05 for 5 %"),
        ("budget=soon", "--scaling-budget 'soon': expected a number above 0"),
        ("require-devices=-1", "--scaling-require-devices '-1': expected a whole number, 0 or more"),
        ("require-devices=7.9", "--scaling-require-devices '7.9': expected a whole number, 0 or more"),
        (f"require-devices={'0' * 5000}", "expected a whole number, 0 or more"),
        ("accept=faster", "--scaling-accept 'faster': valid values are yes, slower"),
        (
            "workload=gpt-tiny --scaling-trainer=ddp,fsdp",
            "--scaling-workload 'gpt-tiny': ddp, fsdp cannot train tokens; "
            "choose --scaling-trainer single, ddp_tokens, fsdp_tokens, or your own with trains = 'tokens'",
        ),
        (
            "workload=lenet --scaling-trainer=ddp,ddp_tokens",
            "--scaling-trainer 'ddp_tokens': it trains tokens, and the run is of lenet; "
            "choose --scaling-workload gpt-tiny, gpt",
        ),
        (
            "workload=gpt-tiny --scaling-against=trainer:ddp",
            "--scaling-against 'ddp': it trains samples, and the run is of gpt-tiny; choose --scaling-workload lenet,",
        ),
        ("against=nope", "--scaling-against 'nope': neither a trainer (*nor a Python interpreter (*nor a git ref"),
        ("against=python:nope", "--scaling-against 'python:nope': 'nope': there is no such program on PATH"),
        ("against=ref:nope", "a git ref needs one"),
        ("trainer=a\x07.py:Mine", "expected UTF-8 without control characters; rename it"),
    ],
)
def test_a_bad_value_is_refused_with_the_valid_ones(project: Project, setting: str, message: str) -> None:
    with pytest.raises(pytest.UsageError) as caught:
        project.settings(*re.split(" (?=--)", f"--scaling-{setting}"))
    assert fnmatch.fnmatchcase(str(caught.value), f"*{message}*"), caught.value


def test_an_empty_value_of_an_ini_file_is_none(project: Project) -> None:
    twins = [option.dest for option in OPTIONS if option.metavar]
    given = [f"--override-ini={name}=" for name in twins]
    assert replace(project.settings(*given), repeat=()) == replace(project.settings(), repeat=())


def test_an_empty_value_that_is_not_joined_to_its_option_is_no_path(project: Project) -> None:
    """A shell makes it of "$UNSET"."""
    with pytest.raises(pytest.UsageError, match="--scaling-against '': expected a trainer"):
        project.settings("--scaling-against", "")


PYTEST_INI, PYPROJECT = "pytest.ini", "pyproject.toml"
HEADS = {PYTEST_INI: "[pytest]", PYPROJECT: "[tool.pytest.ini_options]"}


@pytest.mark.parametrize(
    ("file", "value", "required"),
    [
        *((PYTEST_INI, value, True) for value in ("yes", "true", "True", "on", "ON", "1")),
        *((PYTEST_INI, value, False) for value in ("no", "false", "False", "off", "Off", "0")),
        (PYPROJECT, "true", True),
        (PYPROJECT, "false", False),
        (PYPROJECT, "0", False),
        (PYPROJECT, '"off"', False),
        (PYPROJECT, '"yes"', True),
    ],
)
def test_a_flags_ini_twin_is_true_or_false(project: Project, file: str, value: str, required: bool) -> None:
    (project.path / file).write_text(f"{HEADS[file]}\nscaling_require_baseline = {value}\n")
    assert project.settings().require_baseline is required
    assert project.settings("--scaling-require-baseline").require_baseline


def test_a_flag_is_off_where_nothing_sets_it(project: Project) -> None:
    assert not project.settings().require_baseline
    assert project.settings("--scaling-require-baseline").require_baseline


@pytest.mark.parametrize(("file", "value"), [(PYTEST_INI, "banana"), (PYPROJECT, '"banana"'), (PYPROJECT, "2")])
def test_a_flags_ini_twin_that_is_neither_true_nor_false_is_refused(project: Project, file: str, value: str) -> None:
    (project.path / file).write_text(f"{HEADS[file]}\nscaling_require_baseline = {value}\n")
    result = project.inline("--collect-only", "-m", "scaling")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    given = value.strip('"')
    result.stderr.fnmatch_lines(
        [f"ERROR: --scaling-require-baseline: *'{given}': valid values are true, false (as text also yes, no, on, *"]
    )


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_RDZV_ENDPOINT", "127.0.0.1:29400")
    monkeypatch.setenv("SCALING_SECRET", "a secret of sixteen characters or more")


@pytest.mark.usefixtures("joined")
def test_world_sizes_span_hosts(project: Project) -> None:
    config = project.settings("--scaling-devices", "2xcpu:4", "--scaling-trainer", "ddp", "--scaling-against", "fsdp")
    assert config.world_sizes == (1, 2, 4, 8)
    assert config.header()[0].startswith("scaling: devices 2xcpu:4")


@pytest.mark.usefixtures("joined")
def test_a_base_on_several_hosts_is_a_trainer(project: Project) -> None:
    with pytest.raises(pytest.UsageError, match=r"'python:.*': on several hosts a base must be a trainer"):
        project.settings("--scaling-devices", "2xcpu:1", "--scaling-against", f"python:{sys.executable}")


@pytest.mark.usefixtures("joined")
@pytest.mark.parametrize("missing", ["PET_RDZV_ENDPOINT", "SCALING_SECRET"])
def test_several_hosts_need_an_endpoint_and_a_secret(
    project: Project, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.delenv(missing)
    with pytest.raises(pytest.UsageError, match=f"--scaling: {missing} .*several hosts need"):
        project.settings("--scaling-devices", "2xcpu:1")


class TestPathsAsValues:
    """Settings and reports are those of the working directory, whatever an option's value is."""

    @pytest.fixture
    def other(self, project: Project) -> Path:
        """Another project, with settings and an interpreter of its own."""
        made = project.path.parent / f"{project.path.name}-other"
        (made / "bin").mkdir(parents=True)
        (made / "bin" / "python").touch()
        (made / "pyproject.toml").write_text("[tool.pytest.ini_options]\nscaling_budget = '66'\n")
        project.ini(scaling_budget="77")
        return made

    def test_a_detached_path_to_another_project_is_refused(self, project: Project, other: Path) -> None:
        value = f"../{other.name}/bin/python"
        result = project.inline("-m", "scaling", "--scaling-against", value)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([f"ERROR: --scaling-against {value}: *; type --scaling-against={value}"])
        assert not (other / "reports").exists()

    def test_a_joined_path_and_a_detached_one_of_this_project_are_read(self, project: Project, other: Path) -> None:
        (project.path / "data").mkdir()
        for arguments, folder in (
            ([f"--scaling-data-root={other}"], other),
            (["--scaling-data-root", "data"], project.path / "data"),
        ):
            config = project.settings(*arguments)
            assert (config.root, config.report_dir) == (project.path, project.path / "reports")
            assert (config.budget.seconds, config.data_root) == (77, folder)

    @pytest.mark.parametrize(
        ("made", "arguments"),
        [("data/pytest.ini", []), ("tests/pytest.ini", ["tests"]), ("tests/test_it.py", ["tests/test_it.py::test_x"])],
        ids=["with settings", "and tests with settings", "and a test"],
    )
    def test_a_detached_path_that_changes_the_settings_is_refused(
        self, project: Project, made: str, arguments: list[str]
    ) -> None:
        for folder in ("data", "tests"):
            (project.path / folder).mkdir()
        (project.path / made).write_text("[pytest]\n" if made.endswith(".ini") else "")
        with pytest.raises(pytest.UsageError, match=r"--scaling-data-root data: .*; type --scaling-data-root=data"):
            project.settings(*arguments, "--scaling-data-root", "data")

    def test_a_detached_path_from_the_environment_is_refused(
        self, project: Project, other: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PYTEST_ADDOPTS", f"--scaling-data-root {other}")
        with pytest.raises(pytest.UsageError, match="; type --scaling-data-root="):
            project.settings()


class TestNamesOfFiles:
    """What the ini file and pyproject.toml name starts at their folder, what is typed in the working directory."""

    @pytest.fixture
    def below(self, project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
        """The project, whose files are in its root; pytest is started in a folder below."""
        project.ini(scaling_trainer="train.py:Mine", scaling_against="trainer:train.py:Old")
        with (project.path / "pyproject.toml").open("a") as file:
            file.write('[[tool.scaling.floors]]\ntrainer = "train.py:Mine"\nefficiency = 0.5\n')
        (project.path / "train.py").touch()
        (project.path / "tests").mkdir()
        monkeypatch.chdir(project.path / "tests")
        return project

    def test_trainers_that_are_timed_have_one_name_in_every_folder(
        self, below: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        arguments = "--scaling-workload=tiny", "--scaling-budget=9"
        here = below.settings(*arguments)
        monkeypatch.chdir(below.path)
        at_the_root = below.settings(*arguments)
        assert here.trainers == at_the_root.trainers == ("train.py:Mine",)
        assert here.floors == at_the_root.floors
        assert here.floors[0].trainer == "train.py:Mine"
        assert here.against == at_the_root.against
        assert here.against is not None
        assert (here.against.trainer, here.against.label) == ("train.py:Old", "train.py:Old")

    def test_trainers_that_are_checked_are_found_from_the_working_directory(
        self, below: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert below.settings("--scaling-workload=tiny").checked == ("../train.py:Mine",)
        assert below.settings("--scaling-trainer=train.py:Mine").checked == ("../train.py:Mine",)
        monkeypatch.chdir(below.path)
        assert below.settings("--scaling-workload=tiny").checked == ("train.py:Mine",)

    @pytest.mark.parametrize(
        ("typed", "name"),
        [
            ("own.py", "tests/own.py"),
            ("./own.py", "tests/own.py"),
            ("../train.py", "train.py"),
            ("train.py", "train.py"),
            ("{root}/train.py", "train.py"),
            ("../tests/../train.py", "train.py"),
            ("../../elsewhere.py", "../elsewhere.py"),
            ("{root}/../elsewhere.py", "{root}/../elsewhere.py"),
        ],
    )
    def test_a_file_that_is_typed_has_the_name_it_has_at_the_root(self, below: Project, typed: str, name: str) -> None:
        (below.path / "tests" / "own.py").touch()
        (below.path.parent / "elsewhere.py").touch()
        typed, name = (f"{path}:Mine".format(root=below.path) for path in (typed, name))
        config = below.settings(f"--scaling-trainer={typed}", f"--scaling-against=trainer:{typed}")
        assert config.trainers == (name,)
        assert config.against is not None
        assert (config.against.trainer, config.against.label) == (name, name)

    def test_another_file_of_that_name_here_is_not_taken_for_a_trainers(self, below: Project) -> None:
        (below.path / "tests" / "train.py").touch()
        assert below.settings("--scaling-workload=tiny").trainers == ("../train.py:Mine",)
        assert below.settings("--scaling-trainer=train.py:Mine").trainers == ("tests/train.py:Mine",)
        assert below.settings().floors[0].trainer == "../train.py:Mine"

    def test_every_host_has_a_working_directory_of_its_own(
        self, below: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PET_RDZV_ENDPOINT", "127.0.0.1:29500")
        monkeypatch.setenv("SCALING_SECRET", "0123456789abcdef")
        config = below.settings("--scaling-devices=2xcpu:1", "--scaling-trainer=../train.py:Mine")
        assert config.trainers == ("../train.py:Mine",)
        assert config.floors[0].trainer == "../train.py:Mine"

    def test_a_file_that_is_nowhere_is_refused(self, below: Project) -> None:
        for option in ("trainer", "against"):
            with pytest.raises(pytest.UsageError, match=rf"--scaling-{option} 'nope\.py:Mine': there is no file nope"):
                below.settings(f"--scaling-{option}=nope.py:Mine")

    def test_a_workload_is_the_same_in_every_folder(self, below: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        here = below.settings("--scaling-workload=tiny").workloads
        monkeypatch.chdir(below.path)
        assert below.settings("--scaling-workload=tiny").workloads == here
        assert here[0].dataset == "data.py:blobs"

    def test_another_file_of_that_name_is_not_taken_for_a_workloads(self, below: Project) -> None:
        (below.path / "tests" / "data.py").touch()
        [workload] = below.settings("--scaling-workload=tiny").workloads
        assert workload.accuracy is not None
        assert workload.dataset == workload.accuracy.dataset == "../data.py:blobs"
