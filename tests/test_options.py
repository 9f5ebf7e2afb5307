"""The options: a frozen list, ini twins, and a usage error (exit status 4) with the valid values for everything wrong."""

from __future__ import annotations

import pytest

from suite.options import OPTIONS
from suite.quiet import available_cores
from tests.project import Project

FROZEN = [
    "devices", "world-sizes", "trainer", "workload", "mode", "data-root", "tolerance", "budget", "against", "accept",
    "require-devices", "profile", "inconclusive", "require-baseline", "report-dir",
]  # fmt: skip


def test_the_list_of_options_is_frozen() -> None:
    """An option more is a decision: docs/adr first, then this list."""
    assert [option.name for option in OPTIONS] == FROZEN


def test_every_option_has_help_and_an_ini_twin(project: Project) -> None:
    found = project.pytest("--help").stdout.str()
    for name in FROZEN:
        assert f"--scaling-{name}" in found
        assert f"scaling_{name.replace('-', '_')}" in found


def test_command_line_over_ini_over_default(project: Project) -> None:
    project.ini(scaling_budget="77", scaling_tolerance="0.1")
    result = project.pytest("--collect-only", "--scaling-budget", "88")
    result.stdout.fnmatch_lines(["*tolerance 10.0%, profile quick, budget 88 s*"])


def test_a_profile_brings_its_budget(project: Project) -> None:
    project.pytest("--collect-only", "--scaling-profile", "full").stdout.fnmatch_lines(["*profile full, budget 1800 s*"])


def test_the_header_shows_effective_settings(project: Project) -> None:
    result = project.pytest("--collect-only", "--scaling-devices", "cpu:2", "--scaling-world-sizes", "2,1")
    result.stdout.fnmatch_lines(["scaling: devices cpu:2*, world sizes 1, 2, trainers scratch, data_parallel, ddp,*"])


def test_oversubscribed_devices_are_marked(project: Project) -> None:
    many = len(available_cores()) + 1
    result = project.pytest("--collect-only", "--scaling-devices", f"cpu:{many}")
    result.stdout.fnmatch_lines([f"scaling: devices cpu:{many} (oversubscribed), *"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scaling-devices", "tpu"], "devices 'tpu': expected auto, cpu[[]:N[]]*"),
        (["--scaling-devices", "cpu:2", "--scaling-world-sizes", "4"], "*world size 4 is above the 2 device(s) of cpu:2*"),
        (["--scaling-world-sizes", "0"], "*expected whole numbers from 1*"),
        (["--scaling-world-sizes", "two"], "*expected whole numbers from 1*"),
        (["--scaling-trainer", "nope"], "*--scaling-trainer 'nope': valid values are single, scratch, data_parallel, ddp,*"),
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
        (["--scaling-against", "nope"], "*--scaling-against 'nope': no trainer of that name*"),
        (["--scaling-against", "python:/usr/bin/python3"], "*only a trainer can be compared with so far"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_bad_value_is_a_usage_error(project: Project, arguments: list[str], message: str) -> None:
    result = project.pytest(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *{message}"])
