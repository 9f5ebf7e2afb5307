"""What pages say is there: links, commands, options, threads, the table of bugs, and scripts for CI and for SLURM."""

from __future__ import annotations

import ast
import configparser
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from suite.options import OPTIONS
from suite.processes.hosts import ENDPOINT, JOINING, RUN_ID, SECRET
from suite.records.record import CellRecord
from suite.render.markdown import VARIABLE
from suite.room import devices
from tests.mutants import entries
from tests.support.project import REPOSITORY

PAGES = [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES += sorted((REPOSITORY / "docs").glob("*.md"))
SCREEN = 50  # lines


def links(text: str) -> list[str]:
    return [link for link in re.findall(r"\]\(([^)#\s]+)", text) if not link.startswith("http")]


def headings(page: Path) -> set[str]:
    """Return the places of a page that links may name."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """To files that are there, and to headings of their pages."""
    text = page.read_text(encoding="utf-8")
    assert not [link for link in links(text) if not (page.parent / link).exists()]
    for name, anchor in re.findall(r"\]\((?!http)([^)#\s]*)#([^)\s]+)\)", text):
        assert anchor in headings(page.parent / name if name else page), (name, anchor)


def test_index_links_every_page() -> None:
    linked = set(links((REPOSITORY / "docs" / "index.md").read_text(encoding="utf-8")))
    made = {"index.md", "messages.md"}  # the second one by `python -m tests.docs.messages`; git ignores it
    assert {page.name for page in (REPOSITORY / "docs").glob("*.md")} - made <= linked


def test_readme_fits_on_two_screens() -> None:
    assert len((REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()) <= 2 * SCREEN


def test_the_page_on_adapters_links_every_adapter() -> None:
    linked = set(links((REPOSITORY / "docs" / "your-trainer.md").read_text(encoding="utf-8")))
    assert {f"adapters/{path.name}" for path in (REPOSITORY / "docs" / "adapters").glob("*.py")} <= linked


def threads(path: Path) -> list[tuple[str, str]]:
    """Return (file, function) for every thread that a module starts: what it runs, or what makes an executor."""
    tree, name, found = ast.parse(path.read_text(encoding="utf-8")), path.relative_to(REPOSITORY).as_posix(), []
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for node in ast.walk(tree):
        called = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.Call) and called == "Thread":
            [target] = [ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg == "target"]
            found.append((name, target.rpartition(".")[2]))
        elif called == "ThreadPoolExecutor":
            found += [(name, function.name) for function in functions if node in ast.walk(function)]
    return found


def test_the_page_on_reliability_lists_every_thread() -> None:
    page = (REPOSITORY / "docs" / "reliability.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| [^|]+ \| `([\w/]+\.py)`, `(\w+)`;", page, re.MULTILINE)
    modules = [path for folder in ("reference", "suite") for path in (REPOSITORY / folder).rglob("*.py")]
    assert sorted(listed) == sorted(thread for path in modules for thread in threads(path))


WITH_COMMANDS = [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "docs/evidence/README.md")]
WITH_COMMANDS += sorted((REPOSITORY / "docs").glob("*.md"))
MORE = r"(?:`(?:(?:,| and) `[^`]+`)*,? at `?(\w+))?"  # further options, and at which commit
COMMAND = re.compile(rf"python -m ((?:docs|reference|suite|tests)(?:\.\w+)*)((?!python -m)[^`\n])*{MORE}")
AT = r"EVIDENCE|[0-9a-f]{7,40}"
ALL_AT = re.compile(rf"Every `python -m docs\.evidence\.X` here is at `?({AT})\b")

TABLE_AT = rf"^\|.*\bat `?({AT})\b.*\n\|[-|: ]+\|\n(\|.*\n?)+"  # its head says it of all of its commands


def modules_run(text: str) -> list[str]:
    """Return the modules_run that the commands of a page run, without those that it names at a commit."""
    elsewhere = re.sub(TABLE_AT, "", text, flags=re.MULTILINE)
    joined = re.sub(r"(?<=\S)\n {0,3}(?=\S)", " ", elsewhere)
    found = [match for match in COMMAND.finditer(joined) if not re.fullmatch(AT, match[3] or "")]
    named = [match[1] for match in found if "X" not in match[1]]
    return [name for name in named if not (ALL_AT.search(joined) and name.startswith("docs.evidence."))]


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.name)
def test_every_command_of_a_page_has_its_module(page: Path) -> None:
    places = {name: REPOSITORY / name.replace(".", "/") for name in modules_run(page.read_text(encoding="utf-8"))}
    missing = {
        name for name, at in places.items() if not (at.with_suffix(".py").exists() or (at / "__main__.py").exists())
    }
    assert not missing


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("`python -m docs.evidence.runs --table` prints", ["docs.evidence.runs"]),
        ("(`python -m\ndocs.evidence.tails`\nat EVIDENCE)", []),
        ("(`python -m docs.evidence.grown --each 4`, `--table` at EVIDENCE; full)", []),
        ('(`python -m docs.evidence.family --seeds 8`\nand `--rows "in 2 of"`, at EVIDENCE)', []),
        ("`python -m docs.evidence.rules` at 1a2b3c4d, `python -m suite drill`", ["suite"]),
        ("`python -m docs.evidence.rules` at rest", ["docs.evidence.rules"]),
        ("    sudo python -m docs.evidence.links      # a comment\n", ["docs.evidence.links"]),
        ("Every `python -m docs.evidence.X` here is at EVIDENCE. `python -m docs.evidence.rules`", []),
        (
            "| command, at EVIDENCE | a |\n|---|---|\n| `python -m docs.evidence.rules` | 1 |\n\n`python -m suite`",
            ["suite"],
        ),
    ],
)
def test_commands_at_a_commit_are_told_from_others(text: str, named: list[str]) -> None:
    assert modules_run(text) == named


CORRECTNESS = (REPOSITORY / "docs" / "correctness.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"\(\.\./tests/mutants/(\w+)\.py\)", CORRECTNESS)
MUTANTS = {mutant.name: mutant for mutant in entries()}


@pytest.mark.parametrize("name", SHOWN)
def test_a_row_has_the_bug_its_source_and_a_check_that_finds_it(name: str) -> None:
    mutant = MUTANTS[name]
    link = f"[{mutant.bug.removesuffix('.')}](../tests/mutants/{name}.py)"
    assert f"| {link} | {mutant.source} | `{mutant.killed_by}` |\n" in CORRECTNESS


def test_the_page_counts_its_rows() -> None:
    assert SHOWN
    assert f"has {len(SHOWN)} of them" in " ".join(CORRECTNESS.split())
    assert len(set(SHOWN)) == len(SHOWN)


CI = (REPOSITORY / "docs" / "ci.md").read_text(encoding="utf-8")
[GITLAB] = re.findall(r"```yaml\n(.*?)```", CI, re.DOTALL)
EXAMPLES = {"GitLab": GITLAB, "Jenkins": (REPOSITORY / "docs" / "ci" / "Jenkinsfile").read_text(encoding="utf-8")}
WORKFLOWS = {path.name: path.read_text(encoding="utf-8") for path in (REPOSITORY / "docs" / "ci").glob("*.yml")}
WITH_OPTIONS = sorted(path for pattern in ("*.md", "docs/*.md", "docs/ci/*.yml") for path in REPOSITORY.glob(pattern))


@pytest.mark.parametrize("page", WITH_OPTIONS, ids=lambda page: page.name)
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
    table = CI.partition("## What JUnit has")[2].partition("\n## ")[0]
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


SEVERAL_MACHINES = (REPOSITORY / "docs" / "several-machines.md").read_text(encoding="utf-8")
SLURM = REPOSITORY / "docs" / "several-machines.sbatch"
# What sbatch's manual says of these options' values; "" where there is none.
SBATCH = {
    "job-name": r"\S+",
    "nodes": r"[1-9]\d*(-[1-9]\d*)?",
    "ntasks-per-node": r"[1-9]\d*",
    "gpus-per-node": r"([a-z0-9_]+:)?[1-9]\d*",
    "exclusive": r"|user|mcs|topo",
    "time": r"\d+|\d+:\d\d(:\d\d)?|\d+-\d+(:\d\d){0,2}",
}


@pytest.mark.parametrize("text", [SEVERAL_MACHINES, SLURM.read_text(encoding="utf-8")], ids=["page", "script"])
def test_commands_set_what_hosts_need(text: str) -> None:
    for needed in (ENDPOINT, RUN_ID, SECRET, JOINING, "while torchrun", "-m suite.worker", "--rdzv-backend=c10d"):
        assert needed in text


@pytest.mark.parametrize("setting", sorted(set(re.findall(r"\b\d+xcpu:\d+", SEVERAL_MACHINES))))
def test_devices_that_the_page_names_can_be_read(setting: str) -> None:
    assert str(devices.parse(setting)).startswith(setting)


def test_slurm_takes_the_script() -> None:
    """By its own check where it is installed; elsewhere by what sbatch's manual says of the options in use."""
    subprocess.run(["bash", "-n", SLURM], check=True, timeout=30)
    if shutil.which("sbatch") is not None:
        subprocess.run(["sbatch", "--test-only", SLURM], check=True, timeout=60)
    head, _, body = SLURM.read_text(encoding="utf-8").partition("\nset -euo pipefail\n")
    assert head.startswith("#!/bin/bash\n")
    assert "#SBATCH" not in body, "sbatch reads options only before the first command"
    given = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(\S+))?$", head, re.MULTILINE))
    assert len(given) == head.count("#SBATCH")
    for option, value in given.items():
        assert re.fullmatch(SBATCH[option], value), option


@pytest.mark.parametrize("wrong", ["2 hours", "1:0:0:0", "", "two"])
def test_what_slurm_would_refuse_is_noticed(wrong: str) -> None:
    assert not re.fullmatch(SBATCH["time"], wrong)
    assert not re.fullmatch(SBATCH["nodes"], wrong)


def test_the_slurm_script_leaves_out_its_own_node_by_the_name_that_slurm_knows(tmp_path: Path) -> None:
    told = tmp_path / "told"
    programs = {
        "srun": f'echo "$*" > {told}.part && mv {told}.part {told}',
        "hostname": "echo node7.example.org",
        "openssl": "echo secret",
        "pytest": f"until [ -e {told} ]; do sleep .01; done",  # as the script ends srun after it
    }
    for name, line in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    job = {"SLURMD_NODENAME": "gpu-7", "SLURM_NNODES": "2", "SLURM_JOB_ID": "1"}
    environment = job | {"PATH": f"{tmp_path}:{os.defpath}"}
    subprocess.run(["bash", SLURM], env=environment, check=True, timeout=30)
    assert "--exclude=gpu-7 " in told.read_text()
    assert "--rdzv-endpoint=node7.example.org:29400 " in told.read_text()


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is in the extra lint, and the gate runs it")
def test_the_slurm_script_passes_shellcheck() -> None:
    subprocess.run(["shellcheck", SLURM], check=True, timeout=60)
