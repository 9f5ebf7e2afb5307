"""Git commands use the folder's own repository, run no hook, and fail with readable messages.

Checkouts leave the user's repository unchanged byte by byte, fail with a cause, and locate the base's code.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from suite.base.bases import of_ref
from suite.base.git import Checkout, CheckoutError, GitError, changes, git, is_written, toplevel
from suite.room import devices
from suite.run import machine
from suite.run.plan import plan_here
from tests.support.project import REPOSITORY, Project
from tests.support.repositories import Repository


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files, of each test its own, in which no test leaves anything."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(tmp_path / "project")
    made.commit(
        {
            "src/pkg/train.py": "version = 1\n",
            "bench/old.py": "class Old: ...\n",
            "data.bin": "\r\n",
        }
    )
    made.git("tag", "v1.0")
    made.commit({"src/pkg/train.py": "version = 2\n", "bench/new.py": "class New: ...\n"})
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
    (repository.path / "src/pkg/train.py").write_text("x = 2\n")
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
    config = project.settings("--scaling-devices=cpu:2", *options)
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


def tag(repository: Repository, name: str = "v1.0") -> str:
    return repository.git("rev-parse", name)


class TestCheckout:
    """What a checkout has, and that the user's repository stays as it is."""

    def test_a_dirty_working_tree_stays_as_it_is(self, repository: Repository) -> None:
        (repository.path / "src/pkg/train.py").write_text("version = 3\n")
        (repository.path / "untracked.py").write_text("")
        (repository.path / "data.bin").unlink()
        (repository.path / "staged.py").write_text("")
        repository.git("add", "staged.py")
        before = repository.state()
        with Checkout(repository.path / "src", tag(repository)) as checkout:
            files = {path.relative_to(checkout.folder).as_posix() for path in checkout.folder.rglob("*.*")}
            assert {name for name in files if not name.startswith(".git")} == {
                "src/pkg/train.py",
                "bench/old.py",
                "data.bin",
            }
            assert (checkout.folder / "src/pkg/train.py").read_text() == "version = 1\n"
            assert checkout.folder.name == "project"
            assert checkout.notes == ()
            assert repository.state() == before
            (checkout.folder / "src/pkg/train.py").write_text("spoiled")  # a worker may write what it likes
            (checkout.folder / "new").mkdir()
        assert repository.state() == before

    def test_attributes_for_archives_leave_nothing_out(self, repository: Repository) -> None:
        attributes = "bench/** export-ignore\nversion.py export-subst\n"
        commit = repository.commit({".gitattributes": attributes, "version.py": "$Format:%H$"})
        with Checkout(repository.path, commit) as checkout:
            assert (checkout.folder / "bench/old.py").is_file()
            assert (checkout.folder / "version.py").read_text() == "$Format:%H$"

    def test_neither_hooks_nor_templates_nor_filters_of_the_user_run(
        self, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hooks = tmp_path / "template" / "hooks"
        hooks.mkdir(parents=True)
        hook = hooks / "post-checkout"
        hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
        hook.chmod(0o755)
        settings = tmp_path / "gitconfig"
        settings.write_text(
            f"[init]\ntemplateDir = {tmp_path}/template\n[core]\nhooksPath = {hooks}\n"
            f'[filter "mark"]\nsmudge = touch {tmp_path}/ran && cat\n'
        )
        commit = repository.commit({".gitattributes": "*.py filter=mark\n"})
        monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
        repository.git("config", "core.hooksPath", str(hooks))
        with Checkout(repository.path, commit) as checkout:
            assert (checkout.folder / "bench/old.py").is_file()
            assert not (checkout.folder / ".git/hooks").exists()
        assert not (tmp_path / "ran").exists()
        subprocess.run(["git", "clone", "-q", str(repository.path), str(tmp_path / "by hand")], check=True)
        assert (tmp_path / "ran").exists(), "these hooks do not work, so the test has shown nothing"

    def test_a_linked_worktree_is_a_repository(self, repository: Repository, tmp_path: Path) -> None:
        repository.git("worktree", "add", "--quiet", str(tmp_path / "linked"))
        with Checkout(tmp_path / "linked", tag(repository)) as checkout:
            assert checkout.toplevel == (tmp_path / "linked").resolve()
            assert (checkout.folder / "src/pkg/train.py").read_text() == "version = 1\n"

    def test_object_names_may_be_sha256(self, tmp_path: Path) -> None:
        made = Repository(tmp_path / "new", "--object-format=sha256")
        with Checkout(made.path, made.commit({"a.py": "x = 1\n"})) as checkout:
            assert (checkout.folder / "a.py").is_file()

    def test_a_package_may_ask_git_for_its_version(self, repository: Repository, tmp_path: Path) -> None:
        """Also in a shallow clone, whose history ends."""
        repository.git("clone", "--quiet", "--depth=1", f"file://{repository.path}", str(tmp_path / "clone"))
        with Checkout(tmp_path / "clone", tag(repository, "HEAD")) as checkout:
            log = subprocess.run(["git", "log", "--format=%H"], cwd=checkout.folder, capture_output=True, text=True)
            assert log.stdout.split() == [tag(repository, "HEAD")], log.stderr

    def test_files_in_lfs_stay_pointers_and_are_named(self, repository: Repository) -> None:
        attributes = "*.npz filter=lfs diff=lfs merge=lfs -text\n"
        commit = repository.commit(
            {".gitattributes": attributes, "a.npz": "version https://git-lfs.github.com/spec/v1\n"}
        )
        with Checkout(repository.path, commit) as checkout:
            assert checkout.notes == ("1 file(s) in Git LFS stay pointers there, such as project/a.npz",)

    def test_submodules_are_filled_where_their_commit_exists(self, repository: Repository, tmp_path: Path) -> None:
        library = Repository(tmp_path / "library")
        library.commit({"library.py": "x = 1\n"})
        repository.git("submodule", "--quiet", "add", str(library.path), "third/library")
        first = repository.commit()
        library.commit({"library.py": "x = 2\n"})
        repository.git("-C", "third/library", "pull", "--quiet")
        second = repository.commit()
        before = repository.state()
        for commit, text in ((first, "x = 1\n"), (second, "x = 2\n")):
            with Checkout(repository.path, commit) as checkout:
                assert (checkout.folder / "third/library/library.py").read_text() == text
                assert checkout.notes == ()
        assert repository.state() == before
        repository.git("submodule", "--quiet", "deinit", "--force", "third/library")
        with Checkout(repository.path, first) as checkout:
            assert list((checkout.folder / "third/library").iterdir()) == []
            [note] = checkout.notes
            assert note.startswith("submodule third/library is empty there: its commit ")
            assert note.endswith(
                "is not in the working tree's; git submodule update --init third/library, then fetch in it"
            )


class TestFailures:
    """Every failure has its cause and a remedy, and leaves nothing behind."""

    @pytest.mark.parametrize("commit", ["v1.0", "--orphan=x", "0" * 39, "0" * 40 + "\n"])
    def test_a_repository_and_a_full_name_are_needed(self, commit: str, tmp_path: Path) -> None:
        with pytest.raises(CheckoutError, match="expected a full object name, as git rev-parse prints it"):
            Checkout(tmp_path, commit)
        with pytest.raises(CheckoutError, match=r"base v1: .* is not inside the working tree of a git repository"):
            Checkout(tmp_path, "0" * 40, "v1")

    def test_a_missing_commit_is_an_error(self, repository: Repository) -> None:
        match = r"base v9: its commit 000000000000 cannot be checked out in .* \(git read-tree: fatal: .*\); check free"
        with pytest.raises(CheckoutError, match=match), Checkout(repository.path, "0" * 40, "v9"):
            pass

    def test_a_commit_that_a_shallow_clone_lacks_is_an_error(self, repository: Repository, tmp_path: Path) -> None:
        repository.git("clone", "--quiet", "--depth=1", f"file://{repository.path}", str(tmp_path / "clone"))
        match = "the clone is shallow: git fetch --unshallow brings the rest"
        with pytest.raises(CheckoutError, match=match), Checkout(tmp_path / "clone", tag(repository)):
            pass

    def test_files_that_a_partial_clone_lacks_are_an_error_with_a_remedy(
        self, repository: Repository, tmp_path: Path
    ) -> None:
        repository.git("config", "uploadpack.allowFilter", "true")
        clone = tmp_path / "clone"
        repository.git("clone", "--quiet", "--filter=blob:none", f"file://{repository.path}", str(clone))
        commit = tag(repository)
        match = "the clone is partial: git archive of that commit fetches what is missing"
        with pytest.raises(CheckoutError, match=match), Checkout(clone, commit):
            pass
        repository.git("-C", str(clone), "archive", "--output=/dev/null", "--format=tar", commit)
        with Checkout(clone, commit) as checkout:
            assert (checkout.folder / "src/pkg/train.py").read_text() == "version = 1\n"

    def test_a_missing_temporary_folder_is_an_error(
        self, repository: Repository, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
        match = r"cannot be checked out in /nowhere \(.*No such file or directory.*\); check free space \(TMPDIR names"
        with pytest.raises(CheckoutError, match=match), Checkout(repository.path, tag(repository)):
            pass

    def test_a_damaged_repository(self, repository: Repository) -> None:
        name = repository.git("rev-parse", "v1.0:bench/old.py")
        (repository.path / ".git" / "objects" / name[:2] / name[2:]).unlink()
        match = r"of bench/old\.py .*; check free space \(TMPDIR names another place\) and the repository \(git fsck\)"
        with pytest.raises(CheckoutError, match=match), Checkout(repository.path, tag(repository)):
            pass

    def test_a_full_disk(self, repository: Repository, temporary: Path) -> None:
        """In a file system of 256 KiB that only the test's own process sees."""
        commit = repository.commit({"large.bin": os.urandom(10**6).hex()})
        code = f"""
            import tempfile
            from pathlib import Path
            from suite.base.git import Checkout, CheckoutError
            tempfile.tempdir = {str(temporary)!r}
            try:
                with Checkout(Path({str(repository.path)!r}), {commit!r}): pass
            except CheckoutError as error:
                print(error, list(Path(tempfile.tempdir).iterdir()))
        """
        script = f'mount -t tmpfs -o size=256k none "{temporary}" && exec "$0" -c "$1"'
        command = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, sys.executable, textwrap.dedent(code)]
        try:
            done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
        except FileNotFoundError:
            pytest.skip("needs unshare")
        if done.returncode != 0 and ("unshare" in done.stderr or "mount" in done.stderr):
            pytest.skip(f"needs a mount of its own: {done.stderr.strip()}")
        assert ", which has 0.0 MB left (git read-tree: " in done.stdout, done
        assert done.stdout.endswith("and the repository (git fsck) []\n")

    def test_an_exception_inside_leaves_no_files(self, repository: Repository) -> None:
        with pytest.raises(ZeroDivisionError), Checkout(repository.path, tag(repository)):
            raise ZeroDivisionError

    def test_an_interrupt_while_checking_out_leaves_nothing(
        self, repository: Repository, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Git hangs, and the user presses Ctrl-C."""
        slow, reached, real = tmp_path / "bin" / "git", tmp_path / "reached", shutil.which("git")
        slow.parent.mkdir()
        hang = f"case \"$*\" in *read-tree*) touch '{reached}'; exec sleep 60;; esac"
        slow.write_text(f'#!/bin/sh\n{hang}\nexec "{real}" "$@"\n')
        slow.chmod(0o755)
        commit = tag(repository)
        monkeypatch.setenv("PATH", str(slow.parent), prepend=os.pathsep)

        def press() -> None:
            deadline = time.monotonic() + 50
            while not reached.exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            os.kill(os.getpid(), signal.SIGINT)

        # A shell's background job ignores the signal, and pytest may be one.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        finger = threading.Thread(target=press)
        finger.start()
        try:
            with pytest.raises(KeyboardInterrupt) as interrupt, Checkout(repository.path, commit):
                pass
            assert reached.exists()
            assert list(temporary.iterdir()) == [], interrupt  # the exception lives, so nothing was merely collected
        finally:
            finger.join()
            signal.signal(signal.SIGINT, before)


class TestPlaces:
    """Where the base's workers find what the candidate's find in the working tree."""

    def test_import_paths_keep_their_order(self, repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
        (repository.path / ".venv/lib/site-packages").mkdir(parents=True)
        monkeypatch.chdir(repository.path / "bench")
        search = [
            "",  # the working directory
            f"{repository.path}/src",
            f"{repository.path}/.venv/lib/site-packages",  # no part of the commit
            "/usr/lib/python3",
            f"{repository.path}/bench/../src",
        ]
        with Checkout(repository.path, tag(repository)) as checkout:
            top = checkout.folder
            found = checkout.paths([Path.cwd(), repository.path], search)
            assert found == [top / "bench", top, top / "src"]
            assert checkout.paths([repository.path], reversed(search)) == [top, top / "src", top / "bench"]

    def test_folders_elsewhere_and_links_are_understood(self, repository: Repository, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(repository.path)
        with Checkout(tmp_path / "link", tag(repository)) as checkout:
            top = checkout.folder
            found = checkout.paths([tmp_path, tmp_path / "link"], [str(tmp_path / "link/src")])
            assert found == [tmp_path, top, top / "src"], "a folder outside of the repository serves both sides"

    def test_entries_of_python_path_move_to_the_checkout(self, repository: Repository) -> None:
        inherited = os.pathsep.join([f"{repository.path}/src", "", "/opt/lib"])
        with Checkout(repository.path, tag(repository)) as checkout:
            assert checkout.python_path(inherited) == f"{checkout.folder}/src{os.pathsep}/opt/lib"
            assert checkout.python_path("") == ""

    def test_a_file_is_found_in_the_checkout_and_names_stay(
        self, repository: Repository, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(repository.path / "bench")
        with Checkout(repository.path, tag(repository)) as checkout:
            for spec in ("ddp", "pkg.train:Old", "pkg:Old"):
                assert checkout.spec(spec) == spec
            for spec in ("old.py:Old", f"{repository.path}/bench/old.py:Old", "../bench/old.py:Old"):
                assert checkout.spec(spec) == f"{checkout.folder}/bench/old.py:Old"

    def test_a_file_of_the_project_is_found_from_a_folder_below(
        self, repository: Repository, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(repository.path / "src")
        with Checkout(repository.path / "bench", tag(repository)) as checkout:
            assert checkout.spec("old.py:make") == f"{checkout.folder}/bench/old.py:make"

    def test_a_file_outside_or_newer_than_the_commit_is_an_error(self, repository: Repository, tmp_path: Path) -> None:
        (tmp_path / "mine.py").touch()
        (repository.path / "linked.py").symlink_to(tmp_path / "mine.py")
        with Checkout(repository.path, tag(repository), "v1.0") as checkout:
            for path in (tmp_path / "mine.py", repository.path / "linked.py"):
                match = r"outside of the repository .*, so its version at v1\.0 is not known; move it into the repo"
                with pytest.raises(CheckoutError, match=match):
                    checkout.spec(f"{path}:Mine")
            match = r"v1\.0 has no file bench/new\.py; compare with a commit that has it, or with another trainer"
            with pytest.raises(CheckoutError, match=match):
                checkout.spec(f"{repository.path}/bench/new.py:New")

    def test_the_reference_is_the_candidates_own_except_in_this_project(self, repository: Repository) -> None:
        with Checkout(repository.path, tag(repository)) as checkout:
            assert checkout.reference(REPOSITORY / "reference") == REPOSITORY / "reference"
        commit = repository.commit({"reference/trainers/__init__.py": "", "suite/plugin.py": ""})
        with Checkout(repository.path, commit) as checkout:
            assert checkout.reference(REPOSITORY / "reference") == checkout.folder / "reference"
        with (
            Checkout(repository.path, tag(repository), "v1.0") as checkout,
            pytest.raises(CheckoutError, match=r"v1\.0 has no reference/trainers; compare with a later commit"),
        ):
            checkout.reference(REPOSITORY / "reference")
