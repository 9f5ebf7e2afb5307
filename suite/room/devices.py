"""Count devices without torch, and read `--scaling-devices`."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from suite.room.quiet import available_cores


@dataclass(frozen=True)
class Devices:
    """The devices of a run.

    Attributes:
        kind: "cpu" or "cuda".
        names: torch device names in rank order, "cpu" or "cuda:i"; a name that occurs twice holds two ranks.
        cores: the cores CPU workers are pinned to, in rank order; empty on CUDA.
    """

    kind: str
    names: tuple[str, ...]
    cores: tuple[int, ...]

    @property
    def gpus_needed(self) -> int:
        """How many GPUs CUDA must show for all names to exist."""
        return max((int(name.removeprefix("cuda:")) + 1 for name in self.names if name != "cpu"), default=0)

    def oversubscribed(self, world_size: int) -> bool:
        """Return whether some of the first `world_size` devices are the same GPU or core."""
        used = self.cores[:world_size] if self.kind == "cpu" else self.names[:world_size]
        return len(set(used)) < world_size

    def backend(self, names: Sequence[str]) -> str:
        """Return the backend of torch.distributed for these devices; NCCL refuses two ranks on one GPU."""
        return "nccl" if self.kind == "cuda" and len(set(names)) == len(names) else "gloo"

    def __str__(self) -> str:
        mark = " (oversubscribed)" if self.oversubscribed(len(self.names)) else ""
        return f"{self.kind}:{len(self.names)}{mark}"


def cuda_count() -> int:
    """Return the number of GPUs that CUDA would show, from NVML: torch is not loaded and no context made."""
    try:
        with visible_handles() as handles:
            return len(handles)
    except Exception:  # no library, no driver or no device: CUDA shows nothing
        return 0


@contextlib.contextmanager
def visible_handles() -> Iterator[list[Any]]:
    """Yield NVML's handles of the GPUs that CUDA_VISIBLE_DEVICES leaves, in its order.

    Raises:
        ImportError, pynvml.NVMLError: there is no NVML to ask.
    """
    import pynvml

    pynvml.nvmlInit()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        by_uuid = {_text(pynvml.nvmlDeviceGetUUID(handle)): handle for handle in handles}
        yield [by_uuid[uuid] for uuid in visible(list(by_uuid), os.environ.get("CUDA_VISIBLE_DEVICES"))]
    finally:
        pynvml.nvmlShutdown()


def visible(uuids: list[str], setting: str | None) -> list[str]:
    """Return the UUIDs of the devices that CUDA_VISIBLE_DEVICES leaves, in its order.

    Args:
        uuids: of every GPU, in NVML's order.
        setting: the variable's value; None shows all. An entry is an index or the beginning of a UUID; the first entry
            that names no device ends the list, and a repeated entry empties it, as in the CUDA driver.
    """
    if setting is None:
        return uuids
    shown: list[str] = []
    for entry in filter(None, (part.strip() for part in setting.split(","))):
        if entry.isdigit() and int(entry) < len(uuids):
            shown.append(uuids[int(entry)])
            continue
        named = [uuid for uuid in uuids if entry.startswith(("GPU-", "MIG-")) and uuid.startswith(entry)]
        if len(named) != 1:
            break
        shown += named
    return shown if len(set(shown)) == len(shown) else []


def parse(setting: str) -> Devices:
    """Read `auto`, `cpu[:N]`, `cuda[:N]` or a list such as `cuda:0,cuda:0`.

    `cuda:2` is two GPUs; only in a list does the number name one. Asking for CUDA where there is none gives CUDA with
    no devices, which the plugin refuses.

    Raises:
        ValueError: it is none of these.
    """
    if setting == "auto":
        count = cuda_count()
        return _cuda(range(count)) if count else _cpu(len(available_cores()))
    if match := re.fullmatch(r"(cpu|cuda)(?::([1-9]\d*))?", setting):
        kind, number = match.groups()
        if kind == "cpu":
            return _cpu(int(number or len(available_cores())))
        return _cuda(range(cuda_count()) if number is None else range(int(number)))
    entries = [entry.strip() for entry in setting.split(",")]
    if len(entries) > 1 and all(re.fullmatch(r"cpu(:\d+)?", entry) for entry in entries):
        return _cpu(len(entries))
    if len(entries) > 1 and all(re.fullmatch(r"cuda:\d+", entry) for entry in entries):
        return _cuda(int(entry.removeprefix("cuda:")) for entry in entries)
    raise ValueError(
        f"devices {setting!r}: expected auto, cpu[:N], cuda[:N] with N >= 1, or a list such as cuda:0,cuda:1"
    )


def _cpu(count: int) -> Devices:
    cores = available_cores()
    return Devices("cpu", ("cpu",) * count, tuple(cores[rank % len(cores)] for rank in range(count)))


def _cuda(indices: Iterable[int]) -> Devices:
    return Devices("cuda", tuple(f"cuda:{index}" for index in indices), ())


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
