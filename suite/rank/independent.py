"""The plain trainer once on every rank, each on its own shard, with no exchange: what k devices could do at best.

Not data parallelism, and in no table of trainers: it is timed to show how far devices slow one another down.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from reference.trainers.single import Single


class Independent(Single):
    """`Single` in a process for each device."""

    processes: ClassVar[Literal["one", "per-device"]] = "per-device"
