"""Git commands use the folder's own repository, run no hook, and fail with readable messages."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from suite.base.bases import of_ref
from suite.base.git import GitError, changes, git, is_shallow, is_written, toplevel
from suite.options import read
from suite.room import devices
from suite.run import machine
from suite.run.plan import plan_here
from tests.support.project import Project
from tests.support.repositories import Repository


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(tmp_path / "project")
    made.commit({"src/a.py": "x = 1\n"})
    return made


def test_a_run_from_a_hook_of_another_repository_records_its_own_commit(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git sets GIT_DIR for its hooks, and a hook may run pytest."""
    other = Repository(tmp_path / "other")
    other.commit({"b.py": ""})
    commit = repository.git("rev-parse", "HEAD")
    for name, path in (("GIT_DIR", ".git"), ("GIT_WORK_TREE", ""), ("GIT_INDEX_FILE", ".git/index")):
        monkeypatch.setenv(name, str(other.path / path))
    assert toplevel(repository.path / "src") == repository.path.resolve()
    assert machine.git_state(repository.path) == (commit, False, "")
    assert machine.main_branch(repository.path) == "main"
    (repository.path / "src/a.py").write_text("x = 2\n")
    assert machine.git_state(repository.path) == (commit, True, "")


def test_code_of_the_users_that_git_does_not_have_is_a_change(repository: Repository) -> None:
    """Such a run cannot be rebuilt from its commit. Other files, and ignored ones, do not matter."""
    used = [repository.path / name for name in ("src", "train.py", "absent.py", "../elsewhere.py")]
    commit = repository.git("rev-parse", "HEAD")
    (repository.path / "notes.txt").touch()
    (repository.path / ".git/info/exclude").write_text("*.pyc\n")
    (repository.path / "src/a.pyc").touch()
    (repository.path / "../elsewhere.py").touch()
    assert machine.git_state(repository.path, used) == (commit, False, "")
    (repository.path / "src/b.py").touch()
    assert machine.git_state(repository.path, used) == (commit, True, "")
    assert machine.git_state(repository.path) == (commit, False, "")


@pytest.mark.parametrize("top", ["", "reports/", "deep/kept/"])
@pytest.mark.parametrize("key", ["cpu-2xamd-epyc-53291ccc", "4xcuda-8xnvidia-h100-80gb-0123abcd", "cpu-1x-0123abcd"])
def test_files_of_a_machines_folder_are_no_changes_and_all_others_are(
    repository: Repository, top: str, key: str
) -> None:
    written = ["index.html", "baseline.json", "calibration.json", ".gitignore", "runs/1/report.html", "traces/1/a.gz"]
    written += ["accepted/summary.md"]
    own = ["notes.md", "train.py", "index.html/a", "../index.html", "../runs/train.py", "../src-2x/runs/train.py"]
    for name in (*written, "sweeps/1/sweep.json"):
        repository.commit({f"{top}{key}/{name}": "before"})
        (repository.path / top / key / name).write_text("after")
        assert changes(repository.path / "src") == []
    for name in own:
        path = f"{top}{key}-mine/{name}" if name == "index.html/a" else os.path.normpath(f"{top}{key}/{name}")
        repository.commit({path: "before"})
        (repository.path / path).write_text("after")
        assert changes(repository.path / "src") == [path]


def test_a_key_of_this_machine_names_a_folder_of_what_runs_write() -> None:
    """The pattern in `suite.base.git` holds for the keys that `suite.run.machine` makes."""
    for kind in ("cpu:1", "cpu:2"):
        assert is_written(f"reports/{machine.describe(devices.parse(kind)).key}/index.html")


@pytest.mark.parametrize(
    ("options", "dirty"),
    [
        (["--scaling-trainer=train.py:Mine"], True),
        (["--scaling-trainer=package.train:Mine"], True),
        (["--scaling-trainer=committed:Mine"], False),
        (["--scaling-workload=mine"], True),
        ([], False),
    ],
)
def test_a_run_of_code_that_git_does_not_have_is_of_a_changed_tree(
    project: Project, options: list[str], dirty: bool
) -> None:
    project.ini()
    with (project.path / "pyproject.toml").open("a") as file:
        file.write('[tool.scaling.workloads.mine]\nmodel = "nets:make"\ndataset = "digits"\nbatch = 8\nlr = 0.1\n')
    Repository(project.path).commit({"committed.py": ""})
    for name in ("train.py", "package/train.py", "nets.py"):
        (project.path / name).parent.mkdir(exist_ok=True)
        (project.path / name).touch()
    config = read(project.config("--scaling-devices=cpu:2", *options))
    assert plan_here(config, []).dirty == dirty


def test_git_is_quoted_where_it_does_not_tell_the_commit(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container another user often owns the checkout."""
    assert machine.git_state(tmp_path)[:2] == ("unknown", False)
    assert "not a git repository" in machine.git_state(tmp_path)[2]
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # git's own, for its tests
    commit, dirty, why = machine.git_state(repository.path)
    assert (commit, dirty) == ("unknown", False)
    assert "dubious ownership" in why
    assert f"git config --global --add safe.directory {repository.path}" in why
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.git_state(repository.path)[2].startswith("git is not on PATH: install it")


def test_a_repository_without_a_commit_says_how_to_make_one(tmp_path: Path) -> None:
    new = Repository(tmp_path / "new")
    says = "the checked-out branch has no commit yet; make one with git add and git commit"
    assert machine.git_state(new.path) == ("unknown", False, says)
    with pytest.raises(ValueError, match=rf"'main' names no commit of the repository .*new; {says}$"):
        of_ref("main", new.path)


def test_no_hook_runs(repository: Repository, tmp_path: Path) -> None:
    hook = repository.path / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(hook.stat().st_mode | stat.S_IXUSR)
    git(repository.path, "checkout", "--quiet", "--detach")
    assert not (tmp_path / "ran").exists()
    repository.git("checkout", "--quiet", "main")
    assert (tmp_path / "ran").exists(), "the hook of this test does not work, so the test has shown nothing"


def test_a_missing_repository_folder_or_program_is_named(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(GitError, match=r"is not inside the working tree of a git repository \(git rev-parse: "):
        toplevel(tmp_path)
    with pytest.raises(GitError, match=r"there is no folder .*/nowhere"):
        toplevel(tmp_path / "nowhere")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GitError, match="git is not on PATH: install it"):
        toplevel(repository.path)


def test_a_command_that_takes_too_long_is_ended(repository: Repository) -> None:
    with pytest.raises(GitError, match=r"git hash-object did not end within 1e-06 s"):
        git(repository.path, "hash-object", "--stdin", timeout_s=1e-6)


def test_a_shallow_clone_is_recognised(repository: Repository, tmp_path: Path) -> None:
    repository.commit()
    repository.git("clone", "--quiet", "--depth=1", f"file://{repository.path}", str(tmp_path / "clone"))
    assert is_shallow(tmp_path / "clone")
    assert not is_shallow(repository.path)
