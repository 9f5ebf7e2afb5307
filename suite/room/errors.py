"""What an exception says, also where it cannot say it. Standard library only."""

from __future__ import annotations

import re
import traceback
from pathlib import PurePath

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
    return text + _OTHER_TARGETS if _refuses_targets(error, text) else text


def _refuses_targets(error: BaseException, text: str) -> bool:
    """Return whether torch's cross-entropy has raised because of a dtype or shape of its targets."""
    if not isinstance(error, RuntimeError | ValueError | TypeError) or not _ABOUT_TARGETS.search(text):
        return False
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    where = [(code.co_name, PurePath(code.co_filename).parts[-3:]) for code in codes[-1:]]
    return where == [("cross_entropy", ("torch", "nn", "functional.py"))]
