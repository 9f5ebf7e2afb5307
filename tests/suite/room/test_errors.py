"""What an exception says, and the remedy: for torch's words, those of the installed CUDA, and an old driver."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from suite.room.errors import NEEDS, OLDER_BUILDS, described, remedy_of, too_old

REMEDY = (
    "; cross_entropy takes class labels (int64) or probabilities of classes: for other targets give the trainer a "
    "`loss` of its own (docs/your-trainer.md)"
)


def said(y: Tensor, loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy) -> str:
    with pytest.raises((RuntimeError, ValueError, IndexError)) as raised:
        loss(torch.rand(4, 3), y)
    return described(raised.value)


@pytest.mark.parametrize(
    "y",
    [torch.rand(4), torch.tensor([True] * 4), torch.ones(4).int(), torch.ones(4, 3).long()],
    ids=["float", "bool", "int32", "a table"],
)
def test_targets_that_cross_entropy_cannot_take_need_another_loss(y: Tensor) -> None:
    text = said(y)
    assert text.endswith(REMEDY)
    assert text.count(REMEDY) == 1


def test_other_errors_have_their_own_words() -> None:
    assert "cross_entropy takes" not in said(torch.tensor([0, 1, 2, 9]))
    assert "cross_entropy takes" not in said(torch.rand(2, 3), lambda output, y: output @ y)
    assert described(ValueError("a target")) == "ValueError: a target"


@pytest.mark.parametrize(
    ("text", "short"),
    [
        (
            "Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n  File\n"
            "RuntimeError: unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)\n",
            "unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)",
        ),
        (
            "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's workers are "
            "out of shared memory. Please try to raise your shared memory limit.",
            "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's workers are "
            "out of shared memory. Please try to raise your shared memory limit.",
        ),
    ],
    ids=["no page", "no page when it was written to"],
)
def test_a_loader_without_shared_memory_is_one_line_with_a_remedy(text: str, short: str) -> None:
    """In torch's words; tests/processes/test_containers.py has the first of them from a real loader."""
    assert described(RuntimeError(text)) == (
        f"RuntimeError: {short}: /dev/shm is full; give the container more (docker run --shm-size=1g; in Kubernetes, "
        "mount an emptyDir with medium: Memory there)"
    )


# What a runner can do something about, as cuda_runtime_api.h numbers it.
TO_MEND = {
    35: "update the driver, or install a torch that is built for an older CUDA",
    46: "nvidia-smi -c DEFAULT",
    214: "have it exchanged",
    220: "nvidia-smi nvlink -e",
    802: "nvidia-fabricmanager",
    803: "leave cuda-compat out of LD_LIBRARY_PATH",
    804: "cuda-compat is for data-centre cards alone",
    805: "start its control daemon again",
    806: "start its control daemon again",
    807: "start its control daemon again",
    808: "choose fewer trainers or world sizes",
    809: "choose fewer trainers or world sizes",
    810: "start its control daemon again",
}
OTHERS = (1, 2, 700, 710, 719, 999)


def words_of_cuda() -> dict[int, str]:
    for package in (f"nvidia.cu{(torch.version.cuda or '').partition('.')[0]}", "nvidia.cuda_runtime"):
        spec = find_spec(package) if find_spec("nvidia") else None
        for library in Path(next(iter(spec.submodule_search_locations or ("",))) if spec else "").glob(
            "lib/libcudart.so.*"
        ):
            cuda = ctypes.CDLL(str(library))
            cuda.cudaGetErrorString.restype = ctypes.c_char_p
            return {number: cuda.cudaGetErrorString(number).decode() for number in (*TO_MEND, *OTHERS)}
    pytest.skip("this torch comes without CUDA")


def test_the_installed_cudas_own_words_have_a_remedy() -> None:
    words = words_of_cuda()
    for number, remedy in TO_MEND.items():
        assert remedy in remedy_of(words[number]), (number, words[number])
    assert [remedy_of(words[number]) for number in OTHERS] == [""] * len(OTHERS)


def test_a_workers_error_is_one_line_with_its_remedy() -> None:
    """What a programmer can do follows in torch's text; the traceback keeps that."""
    more = "\nCUDA kernel errors might be asynchronously reported at some other API call."
    said = described(torch.AcceleratorError(f"CUDA error: uncorrectable ECC error encountered{more}"))
    assert re.fullmatch(
        "AcceleratorError: CUDA error: uncorrectable ECC error encountered; the card's memory is at fault: reset it .*",
        said,
    )
    of_nccl = "NCCL Barrier failed: unhandled cuda error \nNCCL Last Error: Cuda failure 214 'uncorrectable ECC error'"
    assert described(RuntimeError(of_nccl)).startswith(
        "RuntimeError: NCCL Barrier failed: unhandled cuda error NCCL Last Error: Cuda failure 214 'uncorrectable ECC "
        "error'; the card's memory is at fault"
    )
    assert described(torch.AcceleratorError(f"CUDA error: device-side assert triggered{more}")).endswith("API call.")
    assert described(ValueError("MPS server")) == "ValueError: MPS server"


@pytest.mark.parametrize(
    ("driver", "cuda", "needed", "older"),
    [
        ("535.104.05", "13.2", 580, True),
        ("525.60.13", "13.0", 580, True),
        ("470.82.01", "13.0", 580, False),
        ("470.82.01", "12.6", 525, False),
        ("580.65.06", "13.2", 0, False),
        ("535.104.05", "12.8", 0, False),
        ("", "13.2", 0, False),
        ("535.104.05", "", 0, False),
        ("535.104.05", "14.0", 0, False),
    ],
)
def test_a_driver_is_too_old_for_a_major_version_of_cuda(driver: str, cuda: str, needed: int, older: bool) -> None:
    said = too_old(driver, cuda)
    assert bool(said) == bool(needed)
    if needed:
        assert said.startswith(
            f"driver {driver} is too old for CUDA {cuda}, which needs driver {needed} or newer; update"
        )
    assert (OLDER_BUILDS in said) == older, "builds for CUDA 12 need a driver, too"


def test_the_older_builds_are_of_the_oldest_cuda_whose_driver_is_known() -> None:
    assert f"/cu{min(NEEDS)}" in OLDER_BUILDS
