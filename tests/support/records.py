"""Records to render, accept, compare and break.

`make` gives a small valid record and `full` one with every kind of part; both take top-level fields to replace. The
other functions give the content of one part, with fields to replace, so that a test gives only the fields it is about:

    records.make(cells=records.matrix(trainers=("ddp", "scratch"), world_sizes=(1, 2, 4)))
    records.make(cells=[records.cell(outcome="FAIL", waterfalls=[records.waterfall(), records.waterfall("base")])])
    records.hostile("<script>alert(1)</script>")
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from suite.plan.workloads import BUILT_IN
from suite.records import baselines
from suite.records.baselines import Baseline
from suite.records.record import RECORD, Record

LENET = BUILT_IN["lenet"]
GRADIENT_BYTES = 4 * 129_068
STARTED = "2026-01-01T00:00:00+00:00"
KEY = "cpu-2xtest-00000000"
MACHINE = {
    "key": KEY,
    "host": "abcdef",
    "cpu_model": "Test CPU",
    "cpu_cores": 2,
    "memory_bytes": 2**30,
    "system": "Linux 6",
}
ENVIRONMENT = {"versions": {"torch": "2.15.0"}, "commit": "abc1234", "dirty": False, "main": "main"}
CARD = {"index": 0, "name": "Test GPU", "id": "0123456789ab", "capability": "9.0", "compute_mode": "prohibited"}

# Texts that a stranger could put into a file, an option or a variable: markup, control characters, paths, shells, names
# of options, and text that no file can hold.
HOSTILE = (
    "",
    " ",
    "<img src=x onerror=alert(1)>",
    "<b onclick=x>",
    "[x](javascript:x)",
    "@name",
    "\x1b]0;title\x07\x1b[2J",
    "two\nlines\r",
    "\u202egnp",
    "\udce9",
    "\x00",
    "../../../etc/passwd",
    "/dev/zero",
    "$(touch ran)",
    "`touch ran`; touch ran",
    "--help",
    "x" * 5_000,
    "9" * 5_000,
    "²",
    "ref:",
    ":",
    ",",
)
TEXTS = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=20))

# Fields with a fixed list of words, which no text from outside can enter.
_CHOICES = (
    "side", "what", "unit", "outcome", "point", "processes", "collective", "schema_version", "lr_rule", "loader",
    "precision", "memory_format", "oracle", "shards", "figure", "because",
)  # fmt: skip


def make(**changes: Any) -> Record:
    """A valid record of two cells and two sessions; `changes` replace top-level fields."""
    content: dict[str, Any] = {
        "run_id": "20260101T000000Z-abc1234",
        "started_utc": STARTED,
        "wall_s": 100.0,
        "settings": ["scaling: devices cpu:2"],
        "tolerance": 0.05,
        "against": None,
        "seed": 1,
        "machine": MACHINE,
        "environment": ENVIRONMENT,
        "workloads": {"lenet": LENET.model_dump()},
        "workload_hashes": {"lenet": LENET.hash},
        "datasets": {"lenet": "synthetic"},
        "epoch_samples": {"lenet": 60000},
        "arms": [],
        "sessions": [{"number": n, "started_utc": STARTED, "wall_s": 40.0, "windows": []} for n in range(2)],
        "accuracies": [accuracy()],
        "cells": [cell(), cell(world_size=2, efficiency={"estimate": 0.8, "low": 0.75, "high": 0.85}, accuracy=0.97)],
    }
    return Record.model_validate(content | changes)


def run_of(
    day: int = 1, seconds: float = 13.0, *, torch: str = "2.15.0", host: str = "abcdef", **changes: Any
) -> Record:
    """A run of one cell, ddp on two devices, on a day of January 2026; `changes` replace fields of the record."""
    content: dict[str, Any] = {
        "run_id": f"202601{day:02}T000000Z-commit{day}",
        "started_utc": f"2026-01-{day:02}T00:00:00+00:00",
        "machine": MACHINE | {"host": host},
        "environment": {"versions": {"torch": torch}, "commit": f"commit{day}", "dirty": False},
        "cells": [cell(id="ddp-lenet-strong-2", world_size=2, sec_per_epoch=interval(seconds), sessions=4)],
    }
    return make(**content | changes)


def keep(reports: Path, *runs: Record) -> Path:
    """Write these runs as a report folder has them, and return the folder of their machine."""
    for run in runs:
        folder = reports / KEY / "runs" / run.run_id
        folder.mkdir(parents=True)
        (folder / RECORD).write_text(run.model_dump_json())
    return reports / KEY


def accepted(*runs: Record) -> Baseline:
    """The baseline after these runs were accepted one by one."""
    baseline = Baseline(machine_key=KEY)
    for run in runs:
        baseline = baselines.accept(baseline, run, slower=True)
    return baseline


def missing(figure: str, why: str, because: str = "") -> dict[str, str]:
    """Return why a cell has no such figure."""
    return {"figure": figure, "why": why, "because": because}


def full(**changes: Any) -> Record:
    """A record with every kind of part, compared with a base in the same sessions; `changes` replace fields."""
    cells = matrix(trainers=("ddp", "scratch"), world_sizes=(1, 2, 4))
    for number, outcome in enumerate(("PASS", "FAIL", "INCONCLUSIVE", "NO BASELINE", "ERROR")):
        cells[number] |= {"outcome": outcome, "reason": f"why it is {outcome}"}
    cells[1] |= {
        "waterfalls": [waterfall("candidate", exchange=0.0112), waterfall("base")],
        "checks": [check(outcome="FAIL", ratio=1.2), check(rule="accuracy", against="1 device", counts=False)],
        "slowdown": interval(1.2),
    }
    cells[1]["counters"] = {"candidate": counters(2), "base": counters(1)}
    cells[1]["checks"] += [
        check(rule="counters", outcome="INCONCLUSIVE", reason="1 → 2 all_reduce a step", counts=False)
    ]
    cells[2] |= {
        "missing": [missing("counters", "rank 1 died")],
        "waterfalls": [waterfall()],
        "warning": "gap widened, nothing slower",
    }
    cells[4] |= {"details": "rank 1: exit code 3\nTraceback: out of memory"}
    content: dict[str, Any] = {
        "against": "main",
        "bases": [
            {"side": "base", "kind": "ref", "label": "main", "commit": "f" * 40, "versions": {"torch": "2.13.0"}}
        ],
        "machine": {**MACHINE, "gpus": ["Test GPU"], "cards": [CARD], "problem": "NVML's GPU 1 does not answer"},
        "environment": {**ENVIRONMENT, "variables": {"NCCL_ALGO": "Ring"}},
        "plan": ["12 cells, 2 sessions, about 2 minutes"],
        "neighbours": ["editor (pid 7) uses 0.3 of a core"],
        "arms": [arm(), arm("base")],
        "sessions": [session(0), session(1)],
        "accuracies": [accuracy(world_size=k, seed=seed) for k in (1, 2) for seed in (1, 2)],
        "cells": cells,
        "collectives": [collective(), collective("ring"), collective("tree", points=[], error="rank 1 hung")],
    }
    return make(**(content | changes))


def hostile(text: str) -> Record:
    """`full`, with `text` at the end of every string that may come from outside, keys included."""

    def spoiled(value: Any, field: str = "") -> Any:
        if isinstance(value, str):
            return value if field in _CHOICES else value + text
        if isinstance(value, dict):
            named = field in ("workloads", "workload_hashes", "datasets", "epoch_samples", "versions", "variables")
            return {key + text if named else key: spoiled(item, str(key)) for key, item in value.items()}
        if isinstance(value, list):
            return [spoiled(item, field) for item in value]
        return value

    return Record.model_validate(spoiled(full().model_dump(mode="json")))


def written(folder: Path, text: str) -> Path:
    """Write a record's file with any content, and return its path."""
    path = folder / "record.json"
    path.write_text(text)
    return path


def interval(estimate: float, share: float = 0.05) -> dict[str, float]:
    """An estimate with an interval of `share` of it to either side."""
    half = abs(estimate) * share
    return {"estimate": estimate, "low": estimate - half, "high": estimate + half}


def cell(**changes: Any) -> dict[str, Any]:
    """The content of a cell; `changes` replace fields."""
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


def matrix(
    trainers: Sequence[str] = ("ddp",),
    modes: Sequence[str] = ("strong", "weak"),
    world_sizes: Sequence[int] = (1, 2),
    *,
    one_device_s: float = 13.0,
    loss: float = 0.1,
    **changes: Any,
) -> list[dict[str, Any]]:
    """The cells of a matrix on `lenet`, each PASS, with figures that belong together.

    Args:
        trainers: names.
        modes: of scaling.
        world_sizes: a cell for each.
        one_device_s: seconds an epoch at world size 1.
        loss: share of efficiency that every doubling of the world size costs.
        changes: replace fields of every cell.
    """
    cells = []
    for trainer in trainers:
        for mode in modes:
            for k in world_sizes:
                efficiency = (1 - loss) ** (k.bit_length() - 1)
                seconds = one_device_s / (k * efficiency)
                figures = {
                    "id": f"{trainer}-lenet-{mode}-{k}",
                    "trainer": trainer,
                    "mode": mode,
                    "world_size": k,
                    "outcome": "PASS",
                    "reason": "not slower than the tolerance allows",
                    "sessions": 4,
                    "sec_per_epoch": interval(seconds),
                    "samples_per_s": interval(60000 / seconds),
                    "efficiency": interval(efficiency) if k > 1 else None,
                    "speedup": interval(k * efficiency),
                    "devices": ["cpu"] * k,
                }
                cells.append(cell(**(figures | changes)))
    return cells


def check(**changes: Any) -> dict[str, Any]:
    """The content of one rule's check; `ratio` may be a number."""
    content: dict[str, Any] = {
        "rule": "time",
        "against": "main",
        "outcome": "PASS",
        "reason": "1.0% slower",
        "ratio": 1.01,
    }
    content |= changes
    if isinstance(content["ratio"], float):
        content["ratio"] = interval(content["ratio"], 0.02)
    return content


def counters(all_reduces: int) -> dict[str, Any]:
    """What a step does that calls all_reduce this often, on two ranks."""
    counts = [("all_reduce", "float32", "calls", [all_reduces]), ("operator", "", "calls", [200, 201])]
    return {
        "made_with": "torch 2.15.0, definitions 1",
        "steps": 3,
        "counts": [
            {"what": what, "dtype": dtype, "unit": unit, "least": ranks, "most": ranks}
            for what, dtype, unit, ranks in [
                *counts,
                ("all_reduce", "float32", "bytes", [all_reduces * GRADIENT_BYTES]),
            ]
        ],
    }


def waterfall(
    side: str = "candidate", *, ideal_s: float = 0.0280, exchange: float = 0.0056, **changes: Any
) -> dict[str, Any]:
    """Where a step's time went: bars that sum to the gap, one of them negative and two of them not separable.

    Args:
        side: of the comparison.
        ideal_s: seconds a step with nothing lost.
        exchange: seconds of it.
        changes: of other fields.
    """
    bars = {("small batch",): 0.0004, ("contention", "imbalance"): 0.0002, ("overhead",): -0.0001}
    bars |= {("exchange",): exchange, ("feed",): 0.0003}
    return {
        "side": side,
        "sessions": 4,
        "ideal_s": interval(ideal_s, 0.01),
        "measured_s": interval(ideal_s + sum(bars.values()), 0.01),
        "bars": [{"causes": list(causes), "step_s": interval(value, 0.2)} for causes, value in bars.items()],
        "sentence": f"the exchange costs {exchange * 1e3:.1f} ms a step",
        "notes": ["contention and imbalance: one process has no slowest rank"],
        **changes,
    }


def collective(
    algorithm: str = "gloo",
    *,
    world_size: int = 2,
    alpha_s: float = 1e-4,
    beta_s_per_byte: float = 1e-9,
    **changes: Any,
) -> dict[str, Any]:
    """A sweep of all_reduce whose times lie on a line; `changes` replace fields."""
    points = []
    for size in (4**6, 4**8, GRADIENT_BYTES, 4**12):
        seconds = alpha_s + beta_s_per_byte * size
        algbw = size / seconds / 1e9
        points.append(
            {
                "size_bytes": size,
                "samples_s": [seconds * 0.99, seconds * 1.01],
                "time_s": interval(seconds, 0.02),
                "algbw_gb_per_s": algbw,
                "busbw_gb_per_s": algbw * 2 * (world_size - 1) / world_size,
            }
        )
    content = {
        "collective": "all_reduce",
        "algorithm": algorithm,
        "world_size": world_size,
        "devices": ["cpu"] * world_size,
        "points": points,
        "alpha_s": interval(alpha_s, 0.1),
        "beta_s_per_byte": interval(beta_s_per_byte, 0.1),
    }
    return content | changes


def accuracy(**changes: Any) -> dict[str, Any]:
    """The content of an accuracy after two trained epochs."""
    content = {
        "trainer": "ddp",
        "workload": "lenet",
        "world_size": 2,
        "dataset": "digits",
        "train_samples": 1437,
        "test_samples": 360,
        "per_epoch": [0.5, 0.97],
        "train_s": [1.0, 1.0],
    }
    return content | changes


def arm(side: str = "candidate", world_size: int = 2, **changes: Any) -> dict[str, Any]:
    """The content of the arm of ddp on LeNet at strong scaling."""
    content = {
        "id": f"{side}:ddp:lenet:strong:{world_size}",
        "side": side,
        "trainer": "ddp",
        "workload": "lenet",
        "mode": "strong",
        "world_size": world_size,
        "global_batch": 256,
        "lr": 0.2,
        "processes": "per-device",
        "steps_per_window": 10,
        "seed": 1,
        "gradient_bytes": GRADIENT_BYTES,
        "memory": [{"allocated_bytes": [10**9], "reserved_bytes": [2 * 10**9]}] * world_size,
    }
    return content | changes


def session(number: int = 0, *, blocks: int = 2, step_s: float = 0.034) -> dict[str, Any]:
    """The content of a session of both arms, A B B A in each block; the last block was disturbed and left out."""
    order = ("candidate", "base", "base", "candidate")
    windows = [
        {"arm": arm(side)["id"], "block": block, "duration_ns": [round(step_s * 1e10), round(step_s * 1e10) + 1000]}
        for block in range(blocks)
        for side in order
    ]
    quiet = {"elapsed_s": 2.0, "cores": 2, "steal": 0.0, "foreign": 0.01, "resolution": 0.02, "load": 1.5}
    busy = quiet | {"foreign": 0.9}
    return {
        "number": number,
        "started_utc": STARTED,
        "wall_s": 40.0,
        "windows": windows,
        "conditions": [quiet] * (blocks - 1) + [busy],
        "left_out": [blocks - 1],
        "probes": [
            {
                "cell": "ddp-lenet-strong-2",
                "side": "candidate",
                "point": "step",
                "round": 0,
                "steps": 10,
                "duration_ns": [340_000_000, 341_000_000],
            }
        ],
    }
