"""The first ten minutes on a machine: steps that fail, hang and cannot start, and the page about them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from suite.cli import first_minutes
from suite.cli.first_minutes import Step, page, setting, steps, try_all, unusual
from suite.room import devices
from suite.room.devices import Devices
from tests.support.nvml import Scene
from tests.support.processes import all_end
from tests.support.project import REPOSITORY, Project

CPU = devices.parse("cpu:2")
GPUS = Devices("cuda", ("cuda:0", "cuda:1"), ())
# Its child ignores what ends it kindly, in the same process group.
STUBBORN = """\
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
time.sleep(600)
"""


def python(name: str, code: str, limit_s: float = 60) -> Step:
    return Step(name, (sys.executable, "-c", code), limit_s, "what to look at")


def test_steps_that_fail_hang_or_cannot_start_cost_their_own_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_minutes, "END_S", 0.2)
    wanted = [
        python("fails", "print('because'); raise SystemExit(3)"),
        python("hangs", STUBBORN, limit_s=3),
        Step("is missing", ("/no/such/program",), 5, "install it"),
        python("passes", "print('fine')"),
    ]
    said: list[str] = []
    tried = try_all(wanted, tmp_path, said.append)
    assert [each.problem for each in tried] == [
        "exit status 3",
        "no end within 3 s",
        "cannot be started: No such file or directory: /no/such/program",
        "",
    ]
    assert tried[0].tail == ["because"]
    child = int(tried[1].tail[0].split()[1])
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
    assert said[0] == "1 of 4: fails (at most 60 s)"
    text = "\n".join(page("cpu:2", tried, ["the room is loud"]))
    assert "## What works\n\n- passes (" in text
    assert "### fails: exit status 3\n\nIf it fails: what to look at." in text
    assert "    because\n" in text
    assert "- the room is loud" in text
    assert text.endswith("raise SystemExit(3)'")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGKILL"])
def test_a_step_ends_with_the_process_that_tries_it(tmp_path: Path, name: str) -> None:
    """A step leads a session of its own, which no signal to the job's processes reaches."""
    step = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    code = (
        "import sys; from pathlib import Path; from suite.cli.first_minutes import Step, try_all\n"
        f"try_all([Step('sleeps', (sys.executable, '-c', {step!r}), 600, '')], Path(), print)"
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


def test_steps_share_the_time_there_is(tmp_path: Path) -> None:
    begun = time.monotonic()
    tried = try_all([python("hangs", "import time; time.sleep(60)"), python("waits", "")], tmp_path, print, all_s=1)
    assert [each.problem for each in tried] == ["no end within 1 s", "not tried: the time is over"]
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize(
    ("used", "on"), [(CPU, "cpu:2"), (GPUS, "cuda:2"), (Devices("cuda", ("cuda:0",), ()), "cuda:1")]
)
def test_every_step_is_told_the_devices_and_keeps_the_projects_reports_clean(
    tmp_path: Path, used: Devices, on: str
) -> None:
    assert setting("auto", used) == on
    wanted = steps(used, on, tmp_path)
    measuring = [step for step in wanted if "suite.plugin" in step.command]
    assert len(measuring) == 6 + (len(used.names) > 1)
    for step in measuring:
        assert f"--scaling-devices={on}" in step.command
        assert f"--scaling-report-dir={tmp_path / 'reports'}" in step.command
    assert ("nvidia-smi" in {step.name for step in wanted}) == (used.kind == "cuda")


def test_what_images_and_containers_change_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"NCCL_DEBUG": "INFO", "HOME": "/root", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}
    remarks = list(unusual(CPU, variables, tmp_path))
    assert remarks[-1] == "the environment sets NCCL_DEBUG=INFO, TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1"
    monkeypatch.setattr(first_minutes, "LEAST_SHM_BYTES", 1 << 80)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    remarks = list(unusual(GPUS, {}, tmp_path))
    assert any("docker run --shm-size" in remark for remark in remarks)
    assert any(remark.startswith("the cards cannot be read: ") for remark in remarks)


def test_what_is_unusual_on_a_card_is_named(
    scene: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scene(2).load(monkeypatch).say(1, compute_mode=3)
    assert any("GPU 1 is in compute mode exclusive process" in remark for remark in unusual(GPUS, {}, tmp_path))


def test_a_machine_on_which_all_works_is_told_what_comes_next(tmp_path: Path) -> None:
    lines = page("cuda:2", try_all([python("passes", "")], tmp_path, print), [])
    assert "## What does not" not in lines
    assert lines[lines.index("## What is unusual about this machine") + 2] == "- nothing"
    assert lines[-3].strip().startswith("python -m suite calibrate --scaling-devices=cuda:2")
    assert "-m gpu --scaling-devices=cuda:2 --scaling-accept" in lines[-2]


def test_the_baseline_command_finds_its_items_in_any_project(project: Project) -> None:
    [command] = [line for line in page("cpu:2", [], []) if "--scaling-accept" in line]
    listed = project.typed(f"{command.partition('#')[0]} --collect-only -q")
    assert listed.ret == 0
    assert "test_scaling[" in listed.stdout.str()
