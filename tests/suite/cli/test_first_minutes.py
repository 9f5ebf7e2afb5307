"""The first minutes on a machine: which steps are tried, and the page about them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from suite.cli.first_minutes import measured, not_checked, page, runs, setting, steps, unusual
from suite.cli.steps import Step, Tried, try_all
from suite.plan.workloads import BUILT_IN
from suite.room import check, devices
from suite.room.devices import Devices
from tests.support import deadlines, records
from tests.support.nvml import Scene
from tests.support.project import Project

CPU = devices.parse("cpu:2")
ONE, GPUS, EIGHT = (Devices("cuda", tuple(f"cuda:{number}" for number in range(k)), ()) for k in (1, 2, 8))


def python(name: str, code: str) -> Step:
    return Step(name, (sys.executable, "-c", code), 60, "what to look at")


def test_a_step_that_fails_costs_its_own_lines(tmp_path: Path) -> None:
    wanted = [python("fails", "print('because'); raise SystemExit(3)"), python("passes", "print('fine')")]
    text = "\n".join(page("cpu:2", try_all(wanted, tmp_path, print), ["the room is loud"]))
    assert "## What works\n\n- passes (" in text
    assert "### fails: exit status 3\n\nIf it fails: what to look at." in text
    assert "    because\n" in text
    assert "- the room is loud" in text
    assert "## What was measured" not in text
    assert text.endswith("raise SystemExit(3)'")


@pytest.mark.parametrize(("used", "on"), [(CPU, "cpu:2"), (GPUS, "cuda:2"), (ONE, "cuda:1")])
def test_every_step_is_told_the_devices_and_keeps_the_projects_reports_clean(
    tmp_path: Path, used: Devices, on: str
) -> None:
    assert setting("auto", used) == on
    wanted = steps(used, on, tmp_path)
    measuring = [step for step in wanted if "suite.plugin" in step.command]
    several, on_gpus = len(used.names) > 1, used.kind == "cuda"
    assert len(measuring) == 6 + several + on_gpus + (on_gpus and not several)
    [drill] = [step for step in wanted if "drill" in step.command]
    for step in (*measuring, drill):
        last = [option for option in step.command if option.startswith("--scaling-devices=")][-1]
        assert last == f"--scaling-devices={'cuda:0,cuda:0' if step.name.startswith('two ranks') else on}"
        assert f"--scaling-report-dir={tmp_path / 'reports'}" in step.command
    of_driver = [step.limit_s for step in wanted if step.name == "nvidia-smi"]
    assert of_driver == [120] * on_gpus, "eight cards without persistence mode are set up one after another"


@pytest.mark.parametrize("used", [ONE, devices.parse("cuda:0,cuda:0")])
def test_what_one_gpu_cannot_show_is_not_among_what_works(tmp_path: Path, used: Devices) -> None:
    """FSDP can be tried with one rank alone there, and every step passes."""
    wanted = steps(used, "cuda:1", tmp_path)
    [fsdp] = [step for step in wanted if step.name.startswith("fsdp")]
    assert (fsdp.name, fsdp.command[-1]) == ("fsdp is plain SGD on one device", "identity")
    text = "\n".join(page("cuda:1", [Tried(step, "", 1.0, tmp_path) for step in wanted], [], [], not_checked(used)))
    works, _, unchecked = text.partition("\n## Not checked: one GPU\n")
    assert "ddp computes the right gradients on one GPU (" in works
    assert "every world size" not in works or len(used.names) > 1
    for what in ("efficiency, the time of an exchange, and what holds", "NCCL, and copies between", "fsdp on several"):
        assert f"\n- {what}" in unchecked.partition("\n## ")[0]


def test_several_devices_leave_nothing_unchecked_and_one_core_says_what_it_cannot_show(tmp_path: Path) -> None:
    assert not_checked(GPUS) == []
    assert "fsdp computes the right gradients" in {step.name for step in steps(GPUS, "", tmp_path)}
    _, heading, _, *left_out = not_checked(devices.parse("cpu:1"))
    assert heading == "## Not checked: one core"
    assert left_out == ["- efficiency, the time of an exchange, and what holds several devices back"]
    names = {step.name for step in steps(devices.parse("cpu:1"), "", tmp_path)}
    assert {"fsdp computes the right gradients", "a run measures one device"} <= names, "ranks may share a core"


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


@pytest.mark.nightly
def test_a_step_that_does_not_end_says_nothing_of_what_it_tries(tmp_path: Path) -> None:
    slow = replace(python("sleeps", "import time; time.sleep(60)"), limit_s=1.0)
    text = "\n".join(page("cpu:2", try_all([slow], tmp_path, print), []))
    assert "### sleeps: no end within 1 s\n\nNot known: something hangs, or takes longer here than expected" in text
    assert "what to look at" not in text


def test_the_exchange_is_tried_before_what_needs_it(tmp_path: Path) -> None:
    names = [step.name for step in steps(GPUS, "", tmp_path)]
    assert names.index("nccl exchanges right sums") < names.index("a run measures every world size")


@pytest.mark.parametrize(("used", "sizes"), [(CPU, None), (GPUS, "1,2"), (EIGHT, "1,2"), (ONE, "1")])
def test_gpus_are_timed_on_the_documents_nets_as_well_and_never_in_ninety_processes(
    tmp_path: Path, used: Devices, sizes: str | None
) -> None:
    named = [step.command for step in steps(used, "", tmp_path) if any("workload" in part for part in step.command)]
    assert bool(named) == (sizes is not None), "a ResNet would take hours on a CPU"
    for command in named:
        [names] = [part.partition("=")[2].split(",") for part in command if part.startswith("--scaling-workload=")]
        assert all(BUILT_IN[name].published for name in names)
        assert f"--scaling-world-sizes={sizes}" in command


def test_what_was_measured_is_shown_next_to_published_figures(tmp_path: Path) -> None:
    swept = records.run_of(3, cells=[], collectives=[records.collective()])
    for record in (swept, records.run_of(2, 12.0), records.run_of(1, arms=[records.arm()])):
        folder = tmp_path / "reports" / "machine" / "runs" / record.run_id
        folder.mkdir(parents=True)
        (folder / "record.json").write_text(record.model_dump_json())
    (folder.parent / "torn").mkdir()
    (folder.parent / "torn" / "record.json").write_text('{"run_id":')
    lines = page("cpu:2", [], [], measured(runs(tmp_path)))
    rows = [line for line in lines if line.startswith("| ddp lenet strong |")]
    assert ["13 [" in row for row in rows] == [True, False]
    assert all("2.6 s" in row for row in rows)
    [windows] = [line for line in lines if line.startswith("Steps a window: ")]
    assert windows.startswith("Steps a window: 10 of candidate:ddp:lenet:strong:2; blocks a session: ")
    assert any(line.startswith("- all_reduce on 2 devices: 0.994 GB/s") for line in lines)
    at = lines.index("## The machine")
    assert any(line.startswith("- versions: torch") for line in lines[at:])


def test_what_images_and_containers_change_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"NCCL_DEBUG": "INFO", "HOME": "/root", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}
    remarks = list(unusual(CPU, variables))
    assert remarks[-1] == "the environment sets NCCL_DEBUG=INFO, TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1"
    monkeypatch.setattr(check, "LEAST_SHARED_BYTES", 1 << 80)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    remarks = list(unusual(GPUS, {}))
    assert any("docker run --shm-size" in remark for remark in remarks)
    assert any(remark.startswith("the cards cannot be read: ") for remark in remarks)


def test_what_is_unusual_on_a_card_is_named(scene: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch) -> None:
    scene(2).load(monkeypatch).say(1, compute_mode=3)
    assert any("GPU 1 is in compute mode exclusive process" in remark for remark in unusual(GPUS, {}))


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
