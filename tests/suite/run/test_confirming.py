"""Whether torch, in a worker, shows the GPUs that NVML shows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from suite.processes.group import START_TIMEOUT_S
from suite.processes.jobs import TorchGpu, TorchGpus
from suite.room.devices import AMD_REMEDY, Survey
from suite.run import confirming
from suite.run.confirming import has_kernels, mismatch
from tests.support import stand_in
from tests.support.nvml import Scene
from tests.support.project import Project

ONE, TWO, SLICE = "12345678-aaaa", "12345678-bbbb", "87654321-cccc"
HERE = Survey(gpus=((f"GPU-{ONE}",), (f"GPU-{TWO}",)))


def answer(*uuids: str, reason: str = "", capability: tuple[int, int] = (9, 0)) -> TorchGpus:
    """Return what torch says of these GPUs; the last has this capability."""
    capabilities = [*[(9, 0)] * (len(uuids) - 1), capability]
    gpus = [
        TorchGpu(name="NVIDIA H100", uuid=uuid, capability=of) for uuid, of in zip(uuids, capabilities, strict=False)
    ]
    return TorchGpus(torch="2.15.0", architectures=("sm_80", "sm_90"), reason=reason, gpus=tuple(gpus))


OLD = answer(ONE, TWO, capability=(6, 1))
# The kernel counts GPUs of AMD, and torch names the architecture of each.
OF_AMD = Survey(gpus=((), ()), by="the kernel", remedy=AMD_REMEDY)


def amd(*architectures: str) -> TorchGpus:
    """Return what torch says of GPUs of AMD, each with this architecture."""
    gpus = (TorchGpu(name="AMD Instinct", uuid="?", capability=(9, 4), architecture=each) for each in architectures)
    return TorchGpus(torch="2.15.0+rocm7.1", architectures=("gfx90a", "gfx942"), gpus=tuple(gpus))


def test_the_same_gpus_are_no_mismatch() -> None:
    assert mismatch(HERE, answer(ONE, TWO), 2) == ""
    assert mismatch(HERE, answer(f"GPU-{ONE}", TWO.upper()), 2) == ""
    for shown in (SLICE, f"MIG-{SLICE}", ONE):  # versions differ in what they show for a slice
        assert mismatch(Survey(gpus=((f"MIG-{SLICE}", f"GPU-{ONE}"),)), answer(shown), 1) == ""
    assert mismatch(HERE, OLD, 1) == "", "the card without kernels is not used"
    assert mismatch(OF_AMD, amd("gfx942", "gfx90a"), 2) == ""


@pytest.mark.parametrize(
    ("here", "shown", "said"),
    [
        (
            HERE,
            answer(reason="The NVIDIA driver on your system is too old"),
            "NVML shows 2 GPU(s), torch 2.15.0 in a worker shows 0: The NVIDIA driver on your system is too old; "
            "update the driver, or install a torch that is built for an older CUDA (pip install torch --index-url ht",
        ),
        (
            replace(HERE, driver="535.104.05"),
            replace(answer(reason="The NVIDIA driver on your system is too old (found version 12020)"), cuda="13.2"),
            "NVML shows 2 GPU(s), torch 2.15.0 in a worker shows 0: driver 535.104.05 is too old for CUDA 13.2, which "
            "needs driver 580 or newer; update the driver, or install a torch that is built for an older CUDA "
            "(pip install torch --index-url https://download.pytorch.org/whl/cu126)",
        ),
        (
            replace(HERE, driver="580.65.06"),
            replace(answer(reason="Error 802: system not yet initialized"), cuda="13.2"),
            "NVML shows 2 GPU(s), torch 2.15.0 in a worker shows 0: Error 802: system not yet initialized; start the "
            "fabric manager",
        ),
        (
            replace(HERE, driver="535.104.05"),
            replace(answer(reason="Error 804: forward compatibility was attempted on non supported HW"), cuda="13.2"),
            "NVML shows 2 GPU(s), torch 2.15.0 in a worker shows 0: Error 804: forward compatibility was attempted on "
            "non supported HW; cuda-compat is for data-centre cards alone: leave it out of LD_LIBRARY_PATH, and upd",
        ),
        (
            replace(HERE, problem="NVML's GPU 2 does not answer: GPU is lost; restart"),
            answer(reason="CUDA unknown error"),
            "NVML shows 2 GPU(s), torch 2.15.0 in a worker shows 0: CUDA unknown error; NVML's GPU 2 does not answer: ",
        ),
        (HERE, answer(ONE), "NVML shows 2 GPU(s), torch 2.15.0 in a worker shows 1; compare"),
        (
            HERE,
            answer(TWO, ONE),
            f"cuda:0 is GPU-{ONE} by NVML and {TWO} (NVIDIA H100) by torch 2.15.0 in a worker: clo",
        ),
        (
            HERE,
            OLD,
            "cuda:1 (NVIDIA H100) has compute capability 6.1, and torch 2.15.0 in a worker has kernels for sm_80",
        ),
        (
            OF_AMD,
            amd("gfx942"),
            "the kernel shows 2 GPU(s), torch 2.15.0+rocm7.1 in a worker shows 1; compare with rocm",
        ),
        (
            OF_AMD,
            amd("gfx942", "gfx1030"),
            "cuda:1 (AMD Instinct) has architecture gfx1030, and torch 2.15.0+rocm7.1 in",
        ),
    ],
    ids=[
        "a driver",
        "a driver of a known version",
        "a fabric",
        "another libcuda",
        "a lost card",
        "a number",
        "an order",
        "a card without kernels",
        "a number of AMD's",
        "a card of AMD's",
    ],
)
def test_a_mismatch_names_both_sides(here: Survey, shown: TorchGpus, said: str) -> None:
    assert mismatch(here, shown, 2).startswith(said)


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ((9, 0), ["sm_90"], True),
        ((8, 6), ["sm_80"], True),
        ((8, 0), ["sm_86"], False),
        ((9, 0), ["sm_80"], False),
        ((12, 1), ["sm_120"], True),
        ((12, 0), ["sm_80", "compute_90"], True),
        ((7, 5), ["compute_90"], False),
        ((9, 0), ["sm_90a"], True),
        ((10, 3), ["sm_100a"], False),
        ((12, 0), ["compute_90a"], False),
        ((10, 3), ["sm_100f"], True),
        ((9, 0), ["of another kind"], False),
        ((9, 4), [], True),
    ],
)
def test_kernels_run_on_later_cards_of_their_generation(
    capability: tuple[int, int], architectures: list[str], runs: bool
) -> None:
    assert has_kernels(capability, architectures) is runs


def test_collecting_starts_no_worker(project: Project, gpus: Callable[..., Scene]) -> None:
    gpus(2)
    result = project.inline("-m", "gpu", "--collect-only", "-q", "--scaling-trainer", "ddp")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*test_scaling[[]ddp-*-weak-2[]]"])


def test_a_driver_that_fails_is_said_in_the_header_and_in_the_failing_item(
    project: Project, gpus: Callable[..., Scene]
) -> None:
    gpus(2).say("library", init="!18")
    said = "NVML fails: RM has detected an NVML/RM version mismatch; compare with nvidia-smi*"
    result = project.inline("-m", "scaling", "--collect-only", "--scaling-trainer", "ddp")
    result.stdout.fnmatch_lines(["scaling: devices cpu:*", f"scaling: {said}"])
    result = project.inline("-m", "gpu")
    result.assert_outcomes(failed=1, deselected=result.parseoutcomes().get("deselected", 0))
    result.stdout.fnmatch_lines([f"*CUDA: 0 device(s) found, 1 needed; {said}"])


def test_cards_for_one_process_are_one_failing_item_unless_mps_serves_them(
    project: Project, gpus: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    gpus(2).say(1, compute_mode=3)
    result = project.inline("-m", "gpu", "--scaling-trainer", "ddp")
    result.assert_outcomes(failed=1, deselected=result.parseoutcomes()["deselected"])
    refused = "GPU 1 is in compute mode exclusive process, and a run has several processes on each GPU"
    remedy = "allow them (as root, nvidia-smi -c DEFAULT), or start MPS (nvidia-cuda-mps-control -d)"
    result.stdout.fnmatch_lines([f"*CUDA: {refused}; {remedy}"])
    chosen = ("--collect-only", "-q", "--scaling-trainer", "ddp")
    assert "CUDA: " not in project.inline("-m", "gpu", "--scaling-devices", "cuda:1", *chosen).stdout.str()
    (tmp_path / "control").touch()
    result = project.inline("-m", "gpu", *chosen)
    result.stdout.fnmatch_lines(["*test_scaling[[]ddp-*-weak-2[]]"])


def test_more_devices_than_one_slice_are_one_failing_item(project: Project, gpus: Callable[..., Scene]) -> None:
    gpus(2).mig(0, (1, 1, 9856), (1, 1, 9856))
    result = project.inline("-m", "gpu", "--scaling-devices", "cuda:2", "--scaling-trainer", "ddp")
    result.assert_outcomes(failed=1, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines(["*CUDA: 1 device(s) found, 2 needed; CUDA shows a process one MIG slice; for more *"])


def test_the_first_process_that_loads_torch_has_a_deadline_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image that is pulled lazily brings torch's libraries while they are loaded."""
    assert confirming.FIRST_LOAD_TIMEOUT_S > START_TIMEOUT_S
    monkeypatch.setattr(confirming, "FIRST_LOAD_TIMEOUT_S", 0.1)
    assert confirming.problem(1) == (
        "no worker could say what torch shows of the GPUs: the launcher did not start: it still loaded torch after "
        "0 s, and said last: no output; run again where an image or a disk is slow, and otherwise try: "
        "python -c 'import torch'"
    )


def test_the_budget_pays_for_the_confirmation(
    project: Project, gpus: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record's wall seconds are those that the budget is held against."""
    gpus(2)
    monkeypatch.setattr(confirming, "problem", lambda gpus_needed: time.sleep(2) or "")
    chosen = ("--scaling-devices=cuda:2", "--scaling-workload=lenet", "--scaling-trainer=ddp", "--scaling-mode=strong")
    result = project.inline("-m", "scaling", "-p", stand_in.__name__, *chosen, "-k", "lenet")
    result.assert_outcomes(passed=2, deselected=result.parseoutcomes()["deselected"], warnings=2)
    [record] = project.records()
    assert record.wall_s > 2
