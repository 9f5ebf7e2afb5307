"""What a run compares its candidate with; `suite.base.bases` finds it. Pure."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal

from suite.plan.scripts import Script


@dataclass(frozen=True)
class Base:
    """What the candidate is compared with in the same run.

    Attributes:
        kind: what differs from the candidate; nothing for "self".
        label: for people, such as "ddp", "python3.12 (Python 3.12.3)" or "v1.0 (3f2a91c)".
        trainer: a table name, module:Class or path.py:Class; None is each cell's own.
        python: path of the interpreter of the base's workers.
        commit: full object name; the user's repository is checked out there (`suite.base.git`).
        script: another training script, in the place of each cell's own.
    """

    kind: Literal["trainer", "script", "python", "ref", "self"]
    label: str
    trainer: str | None = None
    python: str = sys.executable
    commit: str | None = None
    script: Script | None = None
