"""Recordings and a record of a comparison, made up, for the tests of the evidence scripts."""

from __future__ import annotations

from typing import Any

import numpy as np

from docs.evidence.recording import RecordedSession
from suite.records.record import Record
from tests.support import records

RATIO = {"estimate": 1.1, "low": 1.05, "high": 1.15}


def sessions(number: int, seed: int = 1, *, level_sd: float = 0.0, slower: float = 0.0) -> list[RecordedSession]:
    """Recorded sessions of eight rounds with 1 % noise and `level_sd` between sessions; the candidate is `slower`."""
    rng = np.random.default_rng(seed)
    levels = 0.03 * np.exp(rng.normal(0, level_sd, size=(number, 1, 1)))
    times = levels * np.exp(rng.normal(0, 0.01, size=(number, 2, 8)))
    return [RecordedSession(candidate=tuple(a * (1 + slower)), base=tuple(b), steps=4) for a, b in times]


def run_record(**changes: Any) -> Record:
    """A record of one cell beside a base: block 0 visits candidate, base, base, candidate; block 1 was disturbed."""
    arm = {"workload": "lenet", "mode": "strong", "world_size": 2, "global_batch": 256, "lr": 0.1}
    arm |= {"processes": "per-device", "steps_per_window": 2, "seed": 1}
    arms = [{**arm, "id": side, "side": side, "trainer": "ddp"} for side in ("candidate", "base")]
    order = [("candidate", 0), ("base", 0), ("base", 0), ("candidate", 0), ("base", 1), ("candidate", 1)]
    windows = [
        {"arm": side, "block": block, "duration_ns": [1_000, 60_000_400 + 2_000_000 * number]}
        for number, (side, block) in enumerate(order)
    ]
    about = {"number": 0, "started_utc": "2026-01-01T00:00:00+00:00", "wall_s": 12.0, "left_out": [1]}
    cell = records.cell(id="ddp-lenet-strong-2", world_size=2, outcome="FAIL", reason="slower", slowdown=RATIO)
    content = {"arms": arms, "cells": [cell], "sessions": [{**about, "windows": windows}], "accuracies": []}
    return records.make(**content | changes)
