"""What all commands share: steps that fail, hang and cannot start or are ended, and output that cannot be written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from suite.cli import command
from suite.cli.command import Step, try_all
from tests.support.processes import all_end
from tests.support.project import REPOSITORY
from tests.support.records import keep, run_of

# Its child ignores what ends it kindly, in the same process group.
STUBBORN = """\
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
time.sleep(600)
"""


def python(name: str, code: str, limit_s: float = 60) -> Step:
    return Step(name, (sys.executable, "-c", code), limit_s)


def test_steps_that_fail_hang_or_cannot_start_cost_their_own_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "LEAVING_S", 0.2)
    wanted = [
        python("fails", "print('because'); raise SystemExit(3)"),
        python("hangs", STUBBORN, limit_s=3),
        Step("is missing", ("/no/such/program",), 5),
        python("passes", "print('fine')"),
    ]
    tried = try_all(wanted, tmp_path)
    assert [each.problem for each in tried] == [
        "exit status 3",
        "no end within 3 s",
        "cannot be started: No such file or directory: /no/such/program",
        "",
    ]
    assert tried[0].evidence[1:] == ["    because", f"    all of it: {tmp_path / '1.log'}"]
    child = int(tried[1].evidence[1].split()[1])
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
    assert capsys.readouterr().out.startswith("1 of 4: fails (at most 60 s)\n    exit status 3\n")


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGKILL"])
def test_a_step_ends_with_the_process_that_tries_it(tmp_path: Path, name: str) -> None:
    """A step leads a session of its own, which no signal to the job's processes reaches."""
    step = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    code = (
        "import sys; from pathlib import Path; from suite.cli.command import Step, try_all\n"
        f"try_all([Step('sleeps', (sys.executable, '-c', {step!r}), 600)], Path())"
    )
    trying = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # which nohup ignores
    )
    deadline = time.monotonic() + 60
    while not (log := tmp_path / "1.log").exists() or not log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    trying.send_signal(signal.Signals[name])
    assert trying.wait(60) != 0
    assert all_end([int(log.read_text().splitlines()[0])])


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
