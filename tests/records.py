"""A record to render, accept and break: two cells, two sessions, every kind of part present."""

from __future__ import annotations

from typing import Any

from suite.record import Record
from suite.workloads import BUILT_IN


def make(**changes: Any) -> Record:
    """A valid record; `changes` replace top-level fields."""
    lenet = BUILT_IN["lenet"]
    content: dict[str, Any] = {
        "run_id": "20260101T000000Z-abc1234",
        "started_utc": "2026-01-01T00:00:00+00:00",
        "wall_s": 100.0,
        "settings": ["scaling: devices cpu:2"],
        "tolerance": 0.05,
        "against": None,
        "seed": 1,
        "machine": {
            "key": "cpu-2xtest-00000000",
            "host": "abcdef",
            "cpu_model": "Test CPU",
            "cpu_cores": 2,
            "memory_bytes": 2**30,
            "system": "Linux 6",
        },
        "environment": {"versions": {"torch": "2.15.0"}, "commit": "abc1234", "dirty": False},
        "workloads": {"lenet": lenet.model_dump()},
        "workload_hashes": {"lenet": lenet.hash},
        "datasets": {"lenet": "synthetic"},
        "epoch_samples": {"lenet": 60000},
        "arms": [],
        "sessions": [
            {"number": n, "started_utc": "2026-01-01T00:00:00+00:00", "wall_s": 40.0, "windows": []} for n in range(2)
        ],
        "accuracies": [
            {
                "trainer": "ddp",
                "workload": "lenet",
                "world_size": 2,
                "dataset": "digits",
                "train_samples": 1437,
                "test_samples": 360,
                "per_epoch": [0.5, 0.97],
                "train_s": [1.0, 1.0],
            }
        ],
        "cells": [cell(), cell(world_size=2, efficiency={"estimate": 0.8, "low": 0.75, "high": 0.85}, accuracy=0.97)],
    }
    return Record.model_validate(content | changes)


def cell(**changes: Any) -> dict[str, Any]:
    """A cell's content; `changes` replace fields."""
    content = {
        "id": "ddp-lenet-strong-1",
        "trainer": "ddp",
        "workload": "lenet",
        "mode": "strong",
        "world_size": 1,
        "oversubscribed": False,
        "outcome": "NO BASELINE",
        "reason": "there is nothing to compare with",
        "sec_per_epoch": {"estimate": 13.0, "low": 12.5, "high": 13.5},
        "samples_per_s": {"estimate": 4600.0, "low": 4500.0, "high": 4700.0},
        "devices": ["cpu"],
    }
    return content | changes
