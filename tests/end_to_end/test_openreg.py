"""A whole run on simulated accelerators, from options to record."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests import openreg
from tests.openreg import needs_openreg
from tests.support.project import Project

pytestmark = needs_openreg
TRAINER = "scratch_overlap"  # uses streams and events of every device


def test_cells_of_one_process_are_measured_on_one_device_and_on_all(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = torch.accelerator.device_count()
    package = find_spec("torch_openreg")
    assert package is not None
    monkeypatch.setenv("PYTHONPATH", str(Path(str(package.origin)).parents[1]), prepend=os.pathsep)
    monkeypatch.setenv(openreg.COUNT, str(count))
    result = project.pytest(
        "-p", openreg.__name__, "-m", "scaling", "-k", "test_scaling", "--scaling-workload", "tiny",
        "--scaling-mode", "strong", "--scaling-devices", f"cuda:{count}", "--scaling-budget", "1",
        "--scaling-world-sizes", f"1,{count}", "--scaling-trainer", TRAINER,
    )  # fmt: skip
    [record] = project.records()
    assert result.ret == 0, result.outlines
    assert [cell.world_size for cell in record.cells] == [1, count]
    for cell in record.cells:
        assert cell.devices == tuple(f"openreg:{index}" for index in range(cell.world_size))
        assert cell.sec_per_epoch is not None
        assert cell.device_flop_per_s is not None
    held = {arm.world_size: arm.memory[0] for arm in record.arms if arm.side == "candidate"}
    assert {size: len(rank.allocated_bytes) for size, rank in held.items()} == {1: 1, count: count}
    assert all(min(rank.allocated_bytes) > 0 for rank in held.values())
