"""What a candidate can be compared with in the same run."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Base:
    """The other side of a comparison."""

    kind: Literal["trainer", "python", "ref", "self"]
    label: str
    trainer: str | None = None  # None: each cell's own
    python: str = sys.executable
    commit: str | None = None
