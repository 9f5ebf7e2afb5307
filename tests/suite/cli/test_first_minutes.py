"""The first minutes on a machine: which steps are tried, and the page about them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from suite.cli.command import Step, Tried
from suite.cli.first_minutes import page, steps
from suite.plan.workloads import BUILT_IN
from suite.room import check, devices
from suite.room.devices import Devices
from tests.support import deadlines, records
from tests.support.project import Project

CPU = devices.parse("cpu:2")
ONE, GPUS, EIGHT = (Devices("cuda", tuple(f"cuda:{number}" for number in range(k)), ()) for k in (1, 2, 8))
WORKS = Tried(Step("passes", ("true",), 1.0), "", Path("1.log"))


def test_what_failed_has_its_command_and_the_end_of_its_output_and_is_what_to_run_next(tmp_path: Path) -> None:
    (log := tmp_path / "2.log").write_text("before\nbecause\n")
    failed = Tried(Step("fails", (sys.executable, "-m", "a b"), 1.0), "exit status 3", log)
    text = "\n".join(page(CPU, "cpu:2", [WORKS, failed], []))
    assert "## What works\n\n- passes\n" in text
    command = f"    {sys.executable} -m 'a b'"
    shown = f"    $ {command.strip()}\n    before\n    because\n    all of it: {log}"
    assert f"## Does not work: fails: exit status 3\n\n{shown}\n" in text
    assert "## Measured" not in text
    assert text.endswith(f"## What to run next\n\n{command}")


@pytest.mark.parametrize(("used", "on"), [(CPU, "cpu:2"), (GPUS, "cuda:2"), (ONE, "cuda:1")])
def test_every_step_is_told_the_devices_and_keeps_the_projects_reports_clean(
    tmp_path: Path, used: Devices, on: str
) -> None:
    wanted = steps(used, on, tmp_path)
    measuring = [step for step in wanted if "suite.plugin" in step.command]
    several, on_gpus = len(used.names) > 1, used.kind == "cuda"
    assert len(measuring) == 6 + several + on_gpus
    [drill] = [step for step in wanted if "drill" in step.command]
    for step in (*measuring, drill):
        assert f"--scaling-devices={on}" in step.command
        assert f"--scaling-report-dir={tmp_path}" in step.command
    of_driver = [step.limit_s for step in wanted if step.name == "nvidia-smi"]
    assert of_driver == [120] * on_gpus, "eight cards without persistence mode are set up one after another"


@pytest.mark.parametrize("used", [ONE, devices.parse("cuda:0,cuda:0")])
def test_what_one_gpu_cannot_show_is_not_among_what_works(tmp_path: Path, used: Devices) -> None:
    """FSDP can be tried with one rank alone there, and every step passes."""
    wanted = steps(used, "cuda:1", tmp_path)
    [fsdp] = [step for step in wanted if step.name.startswith("fsdp")]
    assert (fsdp.name, fsdp.command[-1]) == ("fsdp is right on one device", "identity")
    text = "\n".join(page(used, "cuda:1", [Tried(step, "", tmp_path) for step in wanted], []))
    assert "every world size" not in text or len(used.names) > 1
    assert "\nNot checked: efficiency, the exchange, and what else takes several devices (one GPU)\n" in text


def test_several_devices_leave_nothing_unchecked_and_one_core_says_what_it_cannot_show(tmp_path: Path) -> None:
    assert not any(line.startswith("Not checked") for line in page(GPUS, "cuda:2", [], []))
    core = devices.parse("cpu:1")
    assert any(line.startswith("Not checked") and "one core" in line for line in page(core, "cpu:1", [], []))
    for used in (GPUS, core):  # ranks may share a core
        assert "fsdp computes the right gradients" in {step.name for step in steps(used, "", tmp_path)}


@pytest.mark.parametrize("used", [CPU, GPUS])
def test_every_gate_has_the_time_for_the_sessions_that_a_fail_takes(tmp_path: Path, used: Devices) -> None:
    """A session on a GPU takes 20 s and more, most of it to start workers that load CUDA; a forked one takes 6 s."""
    budgets = [
        (float(option.partition("=")[2]), step.limit_s)
        for step in steps(used, "", tmp_path)
        for option in step.command
        if option.startswith("--scaling-budget=")
    ]
    assert len(budgets) == 3 + (used.kind == "cuda")
    for budget_s, limit_s in budgets:
        assert budget_s >= 4 * (40 if used.kind == "cuda" else 15)
        assert limit_s >= budget_s + 90


def test_every_check_on_gpus_has_the_time_to_start_groups_of_each_size(tmp_path: Path) -> None:
    limits = [step.limit_s for step in steps(GPUS, "", tmp_path) if "correctness" in step.command]
    assert len(limits) == 4
    assert min(limits) >= deadlines.ON_GPUS_S


def test_the_exchange_is_tried_before_what_needs_it(tmp_path: Path) -> None:
    names = [step.name for step in steps(GPUS, "", tmp_path)]
    assert names.index("nccl exchanges right sums") < names.index("a run measures every world size")


@pytest.mark.parametrize(("used", "sizes"), [(CPU, None), (GPUS, "1,2"), (EIGHT, "1,2"), (ONE, "1")])
def test_gpus_are_timed_on_the_documents_nets_as_well_and_never_in_sixty_processes(
    tmp_path: Path, used: Devices, sizes: str | None
) -> None:
    named = [step.command for step in steps(used, "", tmp_path) if any("workload" in part for part in step.command)]
    assert bool(named) == (sizes is not None), "a ResNet would take hours on a CPU"
    for command in named:
        [names] = [part.partition("=")[2].split(",") for part in command if part.startswith("--scaling-workload=")]
        assert all(BUILT_IN[name].published for name in names)
        assert f"--scaling-world-sizes={sizes}" in command


def test_what_was_measured_is_shown_next_to_published_figures() -> None:
    swept = records.run_of(3, cells=[], collectives=[records.collective()])
    lines = page(CPU, "cpu:2", [], [records.run_of(1), records.run_of(2, 12.0), swept])
    rows = [line for line in lines if line.startswith("| ddp lenet strong |")]
    assert ["13 [" in row for row in rows] == [True, False]
    assert all("2.6 s" in row for row in rows)
    assert any(line.startswith("- Exchange: all_reduce on 2 devices: 0.994 GB/s") for line in lines)
    assert any(line.startswith("- versions: torch") for line in lines[lines.index("## The machine") :])


def test_what_is_unusual_about_the_machine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "LEAST_SHARED_BYTES", 1 << 80)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    lines = page(GPUS, "cuda:2", [], [])
    unusual = lines[lines.index("## What is unusual about this machine") :]
    assert any("docker run --shm-size" in line for line in unusual)


def test_a_machine_on_which_all_works_is_told_what_comes_next() -> None:
    lines = page(GPUS, "cuda:2", [WORKS], [])
    assert not any(line.startswith("## Does not work") for line in lines)
    assert lines[-3].strip().startswith("python -m suite calibrate --scaling-devices=cuda:2")
    assert "-m gpu --scaling-devices=cuda:2 --scaling-accept" in lines[-2]


def test_the_baseline_command_finds_its_items_in_any_project(project: Project) -> None:
    [command] = [line for line in page(CPU, "cpu:2", [], []) if "--scaling-accept" in line]
    listed = project.typed(f"{command.partition('#')[0]} --collect-only -q")
    assert listed.ret == 0
    assert "test_scaling[" in listed.stdout.str()
