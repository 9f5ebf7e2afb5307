"""What memory workers take at least, and whether a container has room for so many more of them.

Above a container's limit the kernel ends a process, and in Kubernetes all of them, pytest too. So what cannot fit is
refused before it starts. The figures are the least that were seen, of torch's wheel for CUDA on a machine without GPUs
(`python -m docs.evidence.worker_memory` at 85bc9f57, docs/gpu.md); the context of a GPU, a larger model and its data
come on top.
"""

from __future__ import annotations

from suite.room import limits
from suite.room.limits import Memory

LOADED_BYTES = 400_000_000  # that no other process shares: of one that has loaded torch and answered
FORKED_BYTES = 25_000_000  # of a worker forked from one
# So much for each worker is called plenty: the most that one forked held when it had trained LeNet, and five times what
# the others take at least, because no run has shown what a GPU's context and libraries add.
AMPLE_FORKED_BYTES, AMPLE_LOADED_BYTES = 325_000_000, 2_000_000_000
MOST_TEMPLATES = 4  # that load at the same time; each stays until its session has ended
REMEDY = (
    "raise the container's memory limit, or choose fewer devices (--scaling-devices), world sizes "
    "(--scaling-world-sizes), trainers or workloads"
)


def templates() -> int:
    """Return how many templates load at the same time: one a core, and in half of a container's memory."""
    allowed = limits.memory()
    most = MOST_TEMPLATES if allowed is None else min(MOST_TEMPLATES, _fit(allowed, forked=False) // 2)
    return max(1, min(most, limits.usable_cores()))


def lacking(workers: int, *, forked: bool = False) -> str:
    """Return why so many more workers do not fit, how many do, and what to do; "" where they may fit.

    Args:
        workers: how many.
        forked: from a template; otherwise each loads torch by itself, as a template does.
    """
    allowed = limits.memory()
    if allowed is None or workers <= (fit := _fit(allowed, forked)):
        return ""
    return f"memory: {_needed(workers, allowed, forked)}: there is room for {fit}; {REMEDY}"


def tight(workers: int, *, forked: bool = False) -> str:
    """Return a sentence where so many more workers may need more than there is; "" where there is plenty."""
    allowed = limits.memory()
    ample_bytes = workers * (AMPLE_FORKED_BYTES if forked else AMPLE_LOADED_BYTES)
    if allowed is None or ample_bytes <= allowed.left_bytes:
        return ""
    ends = "; where they need more, the kernel ends pytest, too (memory.oom.group)" if allowed.ends_all else ""
    return f"{_needed(workers, allowed, forked)}; what GPUs, models and data take comes on top{ends}"


def _needed(workers: int, allowed: Memory, forked: bool) -> str:
    needed_gb, left_gb, limit_gb = (
        each / 1e9 for each in (workers * _each_bytes(forked), allowed.left_bytes, allowed.limit_bytes)
    )
    return (
        f"{workers} worker(s) take {needed_gb:.1f} GB at least, and this container may use {left_gb:.1f} GB more of "
        f"its {limit_gb:.1f} GB"
    )


def _fit(allowed: Memory, forked: bool) -> int:
    return allowed.left_bytes // _each_bytes(forked)


def _each_bytes(forked: bool) -> int:
    return FORKED_BYTES if forked else LOADED_BYTES
