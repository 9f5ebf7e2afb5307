"""A volume that is mounted inside of a project: a script finds its data, and what it writes there is gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.project import REPOSITORY

AS_ROOT = ("unshare", "--user", "--map-root-user", "--mount")
PROGRAM = """
import sys
from pathlib import Path
from suite.script.isolation import isolated
project, scratch = map(Path, sys.argv[1:])
print(isolated([str(project)], scratch, [str(project)], first=True).note)
for folder in ("data 1", "data 1/more"):
    print(*sorted(path.name for path in (project / folder).iterdir()))
    (project / folder / "snapshot.pt").touch()
(project / "read.txt").write_text("read only")
"""

pytestmark = pytest.mark.skipif(
    subprocess.run([*AS_ROOT, "mount", "-t", "tmpfs", "none", "/tmp"], capture_output=True, check=False).returncode
    != 0,
    reason="this user may not mount",
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "data 1").mkdir(parents=True)
    (folder / "read.txt").write_text("kept")
    (folder / "program.py").write_text(PROGRAM)
    return folder


def run(project: Path, *user: str) -> list[str]:
    """Mount volumes in a project, keep it apart in a process, and return what that says and what is left."""
    words = f"""
        set -e
        mount -t tmpfs none 'data 1'; touch 'data 1/train.bin'
        mkdir 'data 1/more'; mount -t tmpfs none 'data 1/more'; touch 'data 1/more/test.bin'
        {" ".join(user)} {sys.executable} program.py "$PWD" "$PWD/../scratch"
        cat read.txt; echo; ls 'data 1' 'data 1/more'
    """
    done = subprocess.run(
        [*AS_ROOT, "sh", "-c", words],
        cwd=project,
        env={"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_what_is_mounted_in_a_project_is_seen_and_kept(project: Path) -> None:
    left = ["kept", "data 1:", "more", "train.bin", "", "data 1/more:", "test.bin"]
    assert run(project) == ["", "more train.bin", "test.bin", *left]


def test_a_file_that_is_mounted_in_a_project_stays_writable(project: Path) -> None:
    note, *_ = run(project, "mount --bind read.txt read.txt;")
    read = project / "read.txt"
    assert note == f"no overlay can be on {read}, so that what the script writes there stays"
    assert read.read_text() == "read only"


def test_another_user_is_told_which_mount_refuses_overlays(project: Path) -> None:
    note, *_ = run(project, "unshare --user --map-user=1000 --map-group=1000")
    assert note.startswith(
        f"overlays are refused here ({project / 'data 1'} is a mount of its own), so that the script"
    )
