"""What CI installs has versions and hashes, actions are pinned, jobs may only read, and an audit says what it saw."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.support.project import REPOSITORY

CI = REPOSITORY / ".ci"
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))
FOR_USERS = sorted((REPOSITORY / "docs" / "ci").glob("*.yml"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
WANTED = {
    "requirements.txt": [*PROJECT["project"]["dependencies"], *EXTRAS["tests"], *EXTRAS["lint"], *EXTRAS["types"]],
    "tools.txt": PROJECT["dependency-groups"]["ci"],
}


def pins(name: str) -> dict[str, str]:
    """Return a requirements file's versions by package."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", (CI / name).read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("name", WANTED)
def test_every_package_has_a_version_and_hashes_and_no_address(name: str) -> None:
    text = (CI / name).read_text(encoding="utf-8")
    assert "://" not in text
    assert not re.search(r"^\s*--(?!hash=sha256:)", text, re.MULTILINE), "an option such as --index-url"
    blocks = re.split(r"^(?=[\w.-]+==)", text, flags=re.MULTILINE)[1:]
    assert len(blocks) == len(pins(name)) > 10
    for block in blocks:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", block), block


@pytest.mark.parametrize("name", WANTED)
def test_compiled_versions_are_those_that_pyproject_allows(name: str) -> None:
    pinned = pins(name)
    for requirement in map(Requirement, WANTED[name]):
        assert pinned[requirement.name] in requirement.specifier, f"{requirement}: compile .ci/{name} again"


@pytest.mark.parametrize("requirement", [*WANTED["requirements.txt"], *WANTED["tools.txt"]])
def test_every_requirement_has_a_lower_bound(requirement: str) -> None:
    """Without one, `tox -e lowest` would install a version that is years old."""
    assert any(part.operator == ">=" for part in Requirement(requirement).specifier)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_job_installs_nothing_but_by_hashes(workflow: Path) -> None:
    installs = re.findall(r"pip install (.*)", workflow.read_text(encoding="utf-8"))
    assert set(installs) <= {"--require-hashes --requirement .ci/tools.txt"}


def test_actionlint_checks_every_workflow_of_ours_and_for_others() -> None:
    checked = (
        (REPOSITORY / "tox.ini").read_text(encoding="utf-8").partition("[testenv:workflows]")[2].partition("\n[")[0]
    )
    assert set(re.findall(r"\S+\.yml", checked)) == {
        path.relative_to(REPOSITORY).as_posix() for path in (*WORKFLOWS, *FOR_USERS)
    }


@pytest.mark.parametrize("workflow", [*WORKFLOWS, *FOR_USERS], ids=lambda path: path.name)
def test_actions_are_pinned_by_commit_and_jobs_may_only_read(workflow: Path) -> None:
    """The release may also ask for a token of its own, by which an index that trusts it knows it."""
    text = workflow.read_text(encoding="utf-8")
    used = re.findall(r"uses: (.*)", text)
    assert used
    for action in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action
    assert "\npermissions: {}\n" in text
    granted = re.findall(r"^    permissions:\n((?: {6}.*\n)+)", text, re.MULTILINE)
    assert len(granted) == text.count("runs-on:")
    token = "      id-token: write # the index trusts this workflow, and no password exists\n"
    assert set(granted) == {"      contents: read\n" + token * (workflow.name == "release.yml")}
    assert "pull_request_target" not in text
    assert text.count("persist-credentials: false") == sum("checkout@" in action for action in used)
    stranger = set(re.findall(r"\$\{\{ *(.*?) *\}\}", text)) - {"matrix.environment"}
    assert workflow in FOR_USERS or not stranger, "text of a stranger in a script"


def test_jobs_run_environments_that_tox_has() -> None:
    text = (REPOSITORY / ".github/workflows/dependencies.yml").read_text(encoding="utf-8")
    [names] = re.findall(r"environment: \[(.*)\]", text)
    tox = (REPOSITORY / "tox.ini").read_text(encoding="utf-8")
    assert all(f"[testenv:{name}]" in tox for name in names.split(", "))


def audit(tmp_path: Path, answer: str, stderr: str = "") -> subprocess.CompletedProcess[str]:
    """Run the audit with a stand-in for pip-audit, which prints `answer`."""
    program = tmp_path / "pip-audit"
    program.write_text(f"#!{sys.executable}\nimport sys\nsys.stderr.write({stderr!r})\nprint({answer!r})\n")
    program.chmod(0o755)
    environment = {**os.environ, "PATH": str(tmp_path)}
    command = [sys.executable, str(CI / "audit.py")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


SAFE: dict[str, Any] = {"name": "rich", "version": "15.0.0", "vulns": []}
SKIPPED = {"name": "torch", "skip_reason": "Dependency not found on PyPI and could not be audited: torch (2.15.0)"}
VULNERABLE = {"name": "jinja2", "version": "3.1.0", "vulns": [{"id": "PYSEC-2024-1", "fix_versions": ["3.1.6"]}]}


@pytest.mark.parametrize(
    ("packages", "status", "line"),
    [
        ([SAFE], 0, "1 packages, no known vulnerability"),
        ([SAFE, VULNERABLE, SKIPPED], 1, "jinja2 3.1.0: PYSEC-2024-1, repaired in 3.1.6"),
        ([SAFE, SKIPPED], 3, "could not look up 1 of 2 packages, such as torch: run it where"),
    ],
    ids=["clean", "vulnerable", "skipped"],
)
def test_an_audit_is_green_only_where_every_package_was_looked_up(
    tmp_path: Path, packages: list[dict[str, Any]], status: int, line: str
) -> None:
    done = audit(tmp_path, json.dumps({"dependencies": packages, "fixes": []}))
    assert (done.returncode, line in done.stdout) == (status, True), done.stdout + done.stderr


def test_an_audit_whose_service_cannot_be_reached_is_not_green(tmp_path: Path) -> None:
    done = audit(tmp_path, "", "Traceback\nConnectionError: Failed to resolve a host\n")
    assert done.returncode == 3
    assert "could not look up anything (ConnectionError: Failed to resolve a host): run it where" in done.stdout
