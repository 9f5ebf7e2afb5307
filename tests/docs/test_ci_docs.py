"""The examples for CI systems: options that exist, and what a pull request of a stranger cannot do."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest

from suite.options import OPTIONS
from suite.records.record import CellRecord
from suite.render.job_summary import VARIABLE
from tests.support.project import REPOSITORY

PAGE = (REPOSITORY / "docs" / "ci.md").read_text(encoding="utf-8")
[GITLAB] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
EXAMPLES = {"GitLab": GITLAB, "Jenkins": (REPOSITORY / "docs" / "ci" / "Jenkinsfile").read_text(encoding="utf-8")}
WORKFLOWS = {path.name: path.read_text(encoding="utf-8") for path in (REPOSITORY / "docs" / "ci").glob("*.yml")}
PAGES = sorted(path for pattern in ("*.md", "docs/*.md", "docs/ci/*.yml") for path in REPOSITORY.glob(pattern))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_option_that_a_page_names_exists(page: Path) -> None:
    known = {f"--scaling-{option.name}" for option in OPTIONS}
    named = set(re.findall(r"--scaling-[a-z][a-z-]*[a-z]", page.read_text(encoding="utf-8")))
    assert named <= known, sorted(named - known)


@pytest.mark.parametrize("example", [*EXAMPLES, *WORKFLOWS])
def test_every_example_runs_pytest_and_keeps_what_it_wrote(example: str) -> None:
    text = (EXAMPLES | WORKFLOWS)[example]
    assert ("-m scaling" if example == "cpu.yml" else "-m gpu") in text
    assert "--junitxml=" in text
    assert re.search(r"^ +(- )?reports/$|, reports/\*\*'", text, re.MULTILINE), "with the page that its pages link to"
    assert "always" in text, "what failed is what somebody wants to look at"


PLACES = ("ci/cpu.yml", "ci/gpu.yml", "several-machines.md", "several-machines.sbatch", "gpu.md")
ELSEWHERE = EXAMPLES | {place: (REPOSITORY / "docs" / place).read_text(encoding="utf-8") for place in PLACES}


@pytest.mark.parametrize("place", ELSEWHERE)
def test_a_command_for_a_users_repository_says_where_the_items_are(place: str) -> None:
    """Without `--pyargs`, pytest collects the user's own tests alone."""
    commands = re.findall(r".*-m (?:gpu|scaling|correctness)\b.* --.*", ELSEWHERE[place])
    assert commands
    for command in commands:
        assert "--pyargs suite." in command


def test_a_gpu_workflow_requires_its_devices_and_both_compare_with_the_merge_base() -> None:
    assert WORKFLOWS.keys() == {"cpu.yml", "gpu.yml"}
    assert '--scaling-require-devices="$GPUS"' in WORKFLOWS["gpu.yml"]
    for text in WORKFLOWS.values():
        assert "ref: ${{ github.event.pull_request.head.sha || github.sha }}" in text, "not the merge"
        assert '--scaling-against="ref:$(git merge-base "$BASE" HEAD)"' in text
        assert "fetch-depth: 0" in text


def test_no_strangers_code_runs_on_a_machine_of_ones_own() -> None:
    assert "head.repo.full_name == github.repository" in WORKFLOWS["gpu.yml"]


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_no_text_that_a_stranger_chose_reaches_a_shell(workflow: str) -> None:
    for script in re.findall(r"run: (\|\n(?: {10}.*\n)+|.*\n)", WORKFLOWS[workflow]):
        assert "${{" not in script


def test_every_property_of_junit_is_explained() -> None:
    table = PAGE.partition("## What JUnit has")[2].partition("\n## ")[0]
    named = set(
        re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `")))
    )
    figures = {
        "sec_per_epoch",
        "samples_per_s",
        "efficiency",
        "speedup",
        "slowdown",
        "accuracy",
        "test_loss",
        "tokens_per_s",
        "device_flop_per_s",
        "oversubscribed",
        "warning",
    }
    assert figures <= CellRecord.model_fields.keys()
    cause = {"largest_cause", "largest_cause_s", "lost_time"}
    others = {"alpha_s", "beta_s_per_byte", "best_busbw_gb_per_s", "note", "examples", "failure"}
    others |= {"efficiency_note", "speedup_note", "accuracy_note"}  # why such a figure is missing
    assert named == figures | cause | others | {"verdict", "reason", "run_id", "report"}


def test_a_run_under_tox_appends_its_summary() -> None:
    """Of the environment, tox passes what its settings name; a run of tests has no summary."""
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(REPOSITORY / "tox.ini", encoding="utf-8")
    assert VARIABLE in tox["testenv:scaling"]["pass_env"].split()
    assert f"gpu: {VARIABLE}" in tox["testenv"]["pass_env"].splitlines()
