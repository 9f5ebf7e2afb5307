"""The options: a frozen list, ini twins, and for everything wrong a usage error with the valid values."""

from __future__ import annotations

import fnmatch
from pathlib import Path

import pytest

from suite import options
from suite.options import OPTIONS
from suite.room.quiet import available_cores
from tests.support.project import Project

FROZEN = [
    "devices", "world-sizes", "trainer", "workload", "mode", "data-root", "tolerance", "budget", "against", "accept",
    "require-devices", "profile", "inconclusive", "require-baseline", "report-dir",
]  # fmt: skip


def test_the_list_of_options_is_frozen() -> None:
    """An option more is a decision: docs/adr first, then this list."""
    assert [option.name for option in OPTIONS] == FROZEN


def test_every_option_has_help_and_an_ini_twin(project: Project) -> None:
    found = project.inline("--help").stdout.str()
    for name in FROZEN:
        assert f"--scaling-{name}" in found
        assert f"scaling_{name.replace('-', '_')}" in found


def header(project: Project, *arguments: str) -> str:
    return "\n".join(options.read(project.config(*arguments)).header())


def test_command_line_over_ini_over_default(project: Project) -> None:
    project.ini(scaling_budget="77", scaling_tolerance="0.1")
    assert "tolerance 10.0%, profile quick, budget 77 s" in header(project)
    assert "tolerance 10.0%, profile quick, budget 88 s" in header(project, "--scaling-budget", "88")


def test_a_profile_brings_its_budget_and_the_users_own_is_kept_to(project: Project) -> None:
    full = options.read(project.config("--scaling-profile", "full"))
    assert (full.budget_s, full.min_sessions) == (1800, 4)
    own = options.read(project.config("--scaling-budget", "60"))
    assert (own.budget_s, own.min_sessions) == (60, 1)


def test_the_header_shows_effective_settings(project: Project) -> None:
    result = project.inline("--collect-only", "--scaling-devices", "cpu:2", "--scaling-world-sizes", "2,1")
    result.stdout.fnmatch_lines(["scaling: devices cpu:2*, world sizes 1, 2, trainers scratch, data_parallel, ddp,*"])


def test_world_sizes_are_powers_of_two_and_all_devices(project: Project) -> None:
    assert options.read(project.config("--scaling-devices", "cpu:6")).world_sizes == (1, 2, 4, 6)
    assert options.read(project.config("--scaling-devices", "cpu:1")).world_sizes == (1,)


def test_oversubscribed_devices_are_marked(project: Project) -> None:
    many = len(available_cores()) + 1
    assert f"devices cpu:{many} (oversubscribed), " in header(project, "--scaling-devices", f"cpu:{many}")


def test_repeated_and_comma_separated_values_are_the_same(project: Project) -> None:
    both = options.read(project.config("--scaling-trainer", "ddp", "--scaling-trainer", "scratch,ddp"))
    assert both.trainers == ("ddp", "scratch")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scaling-devices", "tpu"], "devices 'tpu': expected auto, cpu[[]:N[]]"),
        (
            ["--scaling-devices", "cpu:2", "--scaling-world-sizes", "4"],
            "*world size 4 is above the 2 device(s) of cpu:2*",
        ),
        (["--scaling-world-sizes", "0"], "*expected whole numbers from 1*"),
        (["--scaling-world-sizes", "two"], "*expected whole numbers from 1*"),
        (
            ["--scaling-trainer", "nope"],
            "*--scaling-trainer 'nope': valid values are single, scratch, *, ddp,*",
        ),
        (["--scaling-trainer", "none.py:Mine"], "*there is no file none.py"),
        (["--scaling-trainer", "a:b c"], "*expected module:Class or path.py:Class"),
        (["--scaling-workload", "nope"], "*--scaling-workload 'nope': valid values are lenet, resnet18,*"),
        (["--scaling-mode", "medium"], "*--scaling-mode 'medium': valid values are strong, weak"),
        (["--scaling-profile", "slow"], "*--scaling-profile 'slow': valid values are quick, full"),
        (["--scaling-inconclusive", "ok"], "*valid values are warn, fail"),
        (["--scaling-tolerance", "0"], "*--scaling-tolerance '0': expected a number above 0"),
        (["--scaling-tolerance", "nan"], "*expected a number above 0"),
        (["--scaling-budget", "soon"], "*--scaling-budget 'soon': expected a number above 0"),
        (["--scaling-require-devices", "-1"], "*expected a number above -1"),
        (["--scaling-accept", "faster"], "*--scaling-accept 'faster': valid values are yes, slower"),
        (
            ["--scaling-against", "nope"],
            "*--scaling-against 'nope': neither a trainer (*nor a Python interpreter (*nor a git ref*",
        ),
        (
            ["--scaling-against", "python:nope"],
            "*--scaling-against 'python:nope': 'nope': there is no such program on PATH",
        ),
        (["--scaling-against", "ref:nope"], "*a git ref needs one*"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_bad_value_is_refused_with_the_valid_ones(project: Project, arguments: list[str], message: str) -> None:
    with pytest.raises(pytest.UsageError) as caught:
        options.read(project.config(*arguments))
    assert fnmatch.fnmatchcase(str(caught.value), f"*{message}*"), caught.value


def test_a_usage_error_is_exit_status_4(project: Project) -> None:
    result = project.inline("--scaling-trainer", "nope")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *--scaling-trainer 'nope': valid values are single, scratch, *"])


class TestPathsAsValues:
    """Settings are read and reports are written where the user stands, whatever an option's value is."""

    @pytest.fixture
    def other(self, project: Project) -> Path:
        """Another project, with settings and an interpreter of its own."""
        made = project.path.parent / f"{project.path.name}-other"
        (made / "bin").mkdir(parents=True)
        (made / "bin" / "python").touch()
        (made / "pyproject.toml").write_text("[tool.pytest.ini_options]\nscaling_budget = '66'\n")
        project.ini(scaling_budget="77")
        return made

    def test_a_run_never_becomes_another_projects(self, project: Project, other: Path) -> None:
        value = f"../{other.name}/bin/python"
        result = project.pytest("-m", "scaling", "--scaling-against", value)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([f"ERROR: --scaling-against {value}: *; type --scaling-against={value}"])
        assert not (other / "reports").exists()

    def test_with_an_equals_sign_it_belongs_to_where_the_user_stands(self, project: Project, other: Path) -> None:
        found = options.read(project.config(f"--scaling-data-root={other}"))
        assert (found.root, found.report_dir) == (project.path, project.path / "reports")
        assert (found.budget_s, found.data_root) == (77, other)

    def test_a_folder_of_the_users_own_may_stand_alone(self, project: Project, other: Path) -> None:
        (project.path / "data").mkdir()
        found = options.read(project.config("--scaling-data-root", "data"))
        assert (found.root, found.budget_s, found.data_root) == (project.path, 77, project.path / "data")

    @pytest.mark.parametrize(
        ("made", "arguments"),
        [("data/pytest.ini", []), ("tests/pytest.ini", ["tests"]), ("tests/test_it.py", ["tests/test_it.py::test_x"])],
        ids=["settings of its own", "beside tests with settings of their own", "beside a test"],
    )
    def test_unless_it_decides_which_settings_hold(self, project: Project, made: str, arguments: list[str]) -> None:
        for folder in ("data", "tests"):
            (project.path / folder).mkdir()
        (project.path / made).write_text("[pytest]\n" if made.endswith(".ini") else "")
        with pytest.raises(pytest.UsageError, match=r"--scaling-data-root data: .*; type --scaling-data-root=data"):
            options.read(project.config(*arguments, "--scaling-data-root", "data"))

    def test_a_value_from_the_environment_is_no_exception(
        self, project: Project, other: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PYTEST_ADDOPTS", f"--scaling-data-root {other}")
        with pytest.raises(pytest.UsageError, match="; type --scaling-data-root="):
            options.read(project.config())
