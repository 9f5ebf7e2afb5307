"""Runs on models with a signature of their own: they are timed, and have an accuracy where they return scores."""

from __future__ import annotations

import pytest

from tests.support import own_signatures
from tests.support.project import Project

HERE = f"{own_signatures.__file__}:"
WORKLOAD = """
[tool.scaling.workloads.own]
model = "tests.support.own_signatures:{model}"
dataset = "tests.support.learners:overlapping_blobs"
batch = 32
lr = 0.1

[tool.scaling.workloads.own.accuracy]
dataset = "tests.support.learners:overlapping_blobs"
init = "default"
epochs = 2
"""


@pytest.mark.parametrize(
    ("model", "trainer", "note"),
    [
        ("NeedsLabels", "CallsAlone", ""),
        ("OnlyLoss", "CallsAloneForALoss", "not measured: the model returns tensors of [()] for labels of (64,): "),
    ],
)
def test_a_model_of_its_own_signature_is_timed(project: Project, model: str, trainer: str, note: str) -> None:
    (project.path / "pyproject.toml").write_text(WORKLOAD.format(model=model))
    arguments = ["--scaling-devices=cpu:1", "--scaling-world-sizes=1", "--scaling-mode=strong", "--scaling-budget=60"]
    result = project.pytest("-m", "scaling", "--scaling-workload=own", f"--scaling-trainer={HERE}{trainer}", *arguments)
    assert result.ret == 0, result.stdout.str()
    [record] = project.records()
    [cell] = record.cells
    assert (cell.accuracy is None) == bool(note)
    assert cell.accuracy_note.startswith(note)
    assert bool(note) == (f"no accuracy for {trainer}-own-strong-1: {note}" in result.stdout.str())
