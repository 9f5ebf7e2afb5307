"""A whole run on a scene of GPUs (tests/suite/run/test_scenes.py), without a driver."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from suite import options
from suite.plan.cells import Cell
from suite.records.files import read_model
from suite.records.record import Record
from suite.run.execute import execute
from tests.support.nvml import Scene
from tests.support.project import Project


def test_a_run_that_torch_cannot_make_keeps_what_nvml_shows(
    gpus: Callable[..., Scene], project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real workers; without a driver every cell is an ERROR, and the files have the machine nevertheless."""
    gpus().say(1, uncorrected=2)
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    asked = ("--scaling-devices", "cuda:1,cuda:1", "--scaling-workload", "tiny", "--scaling-budget", "1")
    said: list[str] = []
    result = execute(options.read(project.config(*asked)), [Cell("scratch", "tiny", "strong", 2)], [], said.append)
    kept = read_model(result.folder / "record.json", Record)
    assert kept.machine.gpu_topology == "SYS"
    assert [card.uncorrected for card in kept.machine.cards] == [0, 2]
    assert kept.environment.variables["NCCL_ALGO"] == "Ring"
    sentence = "GPU 1 has had 2 uncorrected memory error(s) since the driver was loaded"
    assert sentence in said
    for page in ("summary.md", "report.html"):
        text = (result.folder / page).read_text()
        assert sentence in text
        assert "NCCL_ALGO=Ring" in text
