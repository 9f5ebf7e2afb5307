"""What exceptions and files of other programs say, and what to do on a runner about it. Standard library only.

Most causes in NVIDIA's driver, CUDA and NVML are found before anything is measured (`suite.room.devices`,
`suite.run.confirming`). The others are what a worker's exception says, whose text names the cause in the words of CUDA
(`cudaGetErrorString`) or NVML.
"""

from __future__ import annotations

import re
import traceback
from pathlib import Path, PurePath

OLDER_BUILDS = "https://download.pytorch.org/whl/cu126"  # of CUDA 12
# The driver that a major version of CUDA needs (NVIDIA, "CUDA Compatibility", "Minor Version Compatibility", table 1).
NEEDS = {12: 525, 13: 580}
_UPDATE = "update the driver"
_OLDER = f", or install a torch that is built for an older CUDA (pip install torch --index-url {OLDER_BUILDS})"
OLD_DRIVER = _UPDATE + _OLDER
_EXCHANGE = "reset it (as root, nvidia-smi -r) or restart the machine, and have it exchanged if that comes back"
LOST = "restart the machine, see dmesg for the driver's Xid errors, and have the card exchanged if it is lost again"
UNCORRECTED = f"results may be wrong: {_EXCHANGE}"
_RESTART_MPS = (
    "start its control daemon again (echo quit | nvidia-cuda-mps-control; nvidia-cuda-mps-control -d) with the "
    "CUDA_MPS_PIPE_DIRECTORY that this run has, or run without MPS"
)

# A part of the text, and the remedy.
_BY_TEXT = {
    "driver on your system is too old": OLD_DRIVER,
    "driver version is insufficient for CUDA runtime version": OLD_DRIVER,
    "unsupported display driver / cuda driver combination": (
        "libcuda and the kernel's driver are of different versions: restart the machine after an update of the driver, "
        "and leave cuda-compat out of LD_LIBRARY_PATH"
    ),
    "forward compatibility was attempted on non supported HW": (
        f"cuda-compat is for data-centre cards alone: leave it out of LD_LIBRARY_PATH, and {OLD_DRIVER}"
    ),
    "system not yet initialized": (
        "start the fabric manager, which GPUs with NVSwitch need (as root, systemctl start nvidia-fabricmanager)"
    ),
    "busy or unavailable": (
        "a process has the card for itself: end it (nvidia-smi lists it), or allow several (as root, "
        "nvidia-smi -c DEFAULT)"
    ),
    "uncorrectable ECC error": f"the card's memory is at fault: {_EXCHANGE}",
    "uncorrectable NVLink error": f"a link of the card is at fault (nvidia-smi nvlink -e): {_EXCHANGE}",
    "required to create MPS client": "MPS serves no more processes: choose fewer trainers or world sizes",
    "required to support device connections": "MPS serves no more processes: choose fewer trainers or world sizes",
    "MPS client": _RESTART_MPS,
    "MPS server": _RESTART_MPS,
    "GPU is lost": LOST,
}
# How torch's cross-entropy refuses what it cannot take; errors of kernels, such as a lack of memory, are others.
_ABOUT_TARGETS = re.compile(r"target|not implemented for|scalar type|dtype", re.IGNORECASE)
_OTHER_TARGETS = (
    "; cross_entropy takes class labels (int64) or probabilities of classes: for other targets give the trainer a "
    "`loss` of its own (docs/your-trainer.md)"
)
MORE_SHARED_MEMORY = (
    "give the container more (docker run --shm-size=1g; in Kubernetes, mount an emptyDir with medium: Memory there)"
)
# What torch says where a loader's process cannot hand over its minibatch.
_NO_SHARED_MEMORY = re.compile(r"(?:unable to allocate shared memory|DataLoader worker .*out of shared memory).*")


def remedy_of(text: str) -> str:
    """Return what to do where this text has a cause that is known; "" for any other."""
    return next((remedy for part, remedy in _BY_TEXT.items() if part in text), "")


def too_old(driver: str, cuda: str) -> str:
    """Return that a driver ("535.104.05") is too old for the CUDA ("13.2") of a torch, and what to do; "" where not.

    A process may have a newer libcuda than the driver's own (cuda-compat), so that only what then fails is explained.
    Either is "" where it is not known.
    """
    has, of = (version.partition(".")[0] for version in (driver, cuda))
    needed = NEEDS.get(int(of), 0) if of.isdecimal() else 0
    if not has.isdecimal() or int(has) >= needed:
        return ""
    remedy = _UPDATE + _OLDER * (int(has) >= NEEDS[12])
    return f"driver {driver} is too old for CUDA {cuda}, which needs driver {needed} or newer; {remedy}"


def text_of(error: BaseException) -> str:
    """Return an exception's text; one that raises while it is made is named instead."""
    try:
        return str(error)
    except BaseException as its_own:  # a user's __str__ may raise anything
        return f"its text cannot be made, for its __str__ or __repr__ raises {type(its_own).__name__}"


def described(error: BaseException) -> str:
    """Return an exception's type and text: 'ValueError: no such file', and a remedy where torch's text has none."""
    text = f"{type(error).__name__}: {text_of(error)}"
    if isinstance(error, RuntimeError) and (short := _NO_SHARED_MEMORY.search(text)):
        return f"{type(error).__name__}: {short[0].strip()}: /dev/shm is full; {MORE_SHARED_MEMORY}"
    if isinstance(error, RuntimeError) and (remedy := remedy_of(text)):
        first, *_ = text.splitlines()  # torch goes on with what a programmer can do
        return f"{first if remedy_of(first) else ' '.join(text.split())}; {remedy}"
    return text + _OTHER_TARGETS if _refuses_targets(error, text) else text


def _refuses_targets(error: BaseException, text: str) -> bool:
    """Return whether torch's cross-entropy has raised because of a dtype or shape of its targets."""
    if not isinstance(error, RuntimeError | ValueError | TypeError) or not _ABOUT_TARGETS.search(text):
        return False
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    where = [(code.co_name, PurePath(code.co_filename).parts[-3:]) for code in codes[-1:]]
    return where == [("cross_entropy", ("torch", "nn", "functional.py"))]


def content(path: Path) -> str:
    """Return the text in a file of the kernel's, without white space around it; "" where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def printable(text: str, most: int = 500) -> str:
    """Return the beginning of a text that any file may hold, without characters that a terminal would obey."""
    return "".join(character if character.isprintable() else "?" for character in text[:most])
