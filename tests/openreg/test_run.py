"""A whole run on simulated accelerators, from options to record."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.openreg import needs_openreg
from tests.support import openreg
from tests.support.project import Project

pytestmark = [pytest.mark.end_to_end, needs_openreg]
TRAINERS = ("scratch_overlap",)


def test_cells_of_one_process_are_measured_on_every_world_size(
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
        *(f"--scaling-trainer={name}" for name in TRAINERS),
    )  # fmt: skip
    [record] = project.records()
    assert result.ret == 0, result.outlines
    sizes = [2**power for power in range(count.bit_length()) if 2**power <= count]
    assert [(cell.trainer, cell.world_size) for cell in record.cells] == [(t, k) for t in TRAINERS for k in sizes]
    for cell in record.cells:
        assert cell.devices == tuple(f"openreg:{index}" for index in range(cell.world_size))
        assert cell.sec_per_epoch is not None
    held = {arm.world_size: arm.memory[0] for arm in record.arms if arm.side == "candidate"}
    assert {size: len(rank.allocated_bytes) for size, rank in held.items()} == {size: size for size in sizes}
    assert all(min(rank.allocated_bytes) > 0 for rank in held.values())
