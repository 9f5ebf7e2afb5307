"""Commands end quietly, whatever reads their output and in whatever encoding."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.project import REPOSITORY
from tests.support.records import keep, run_of


def compare(reports: Path, *arguments: str, stdout: int = subprocess.PIPE, **environment: str) -> tuple[int, str, str]:
    """Compare two runs of a report folder; return exit status, output and what was said beside it."""
    keep(reports, run_of(1), run_of(2))
    names = [run_of(day).run_id for day in (1, 2)]
    command = [sys.executable, "-m", "suite", "compare", *names, f"--scaling-report-dir={reports}", *arguments]
    variables = {**os.environ, **environment}
    done = subprocess.run(
        command, cwd=REPOSITORY, env=variables, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False
    )
    return done.returncode, done.stdout or "", done.stderr


def test_a_reader_that_has_ended_ends_the_command_as_it_does_in_a_shell(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        assert compare(tmp_path, "--markdown", stdout=write) == (141, "", "")
    finally:
        os.close(write)


def test_characters_that_the_output_cannot_encode_are_replaced(tmp_path: Path) -> None:
    status, shown, said = compare(tmp_path, PYTHONIOENCODING="ascii")
    assert (status, said) == (0, "")
    assert shown.isascii()
    assert "?" * 20 in shown, "the line below the heading of a table"
