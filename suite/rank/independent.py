"""The plain trainer on every rank's own shard, without an exchange.

This is not data parallelism, so it is in no table of trainers. Its time shows how far devices slow one another down.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from reference.trainers.single import Single


class Independent(Single):
    """`Single` in a process for each device."""

    processes: ClassVar[Literal["one", "per-device"]] = "per-device"
