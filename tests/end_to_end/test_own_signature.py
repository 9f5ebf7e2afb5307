"""A run on models with a signature of their own: they are timed, and have an accuracy where they return scores."""

from __future__ import annotations

import pytest

from tests.support import own_signatures
from tests.support.project import Project

HERE = f"{own_signatures.__file__}:"
WORKLOAD = """
[tool.scaling.workloads.{name}]
model = "tests.support.own_signatures:{model}"
dataset = "tests.support.learners:overlapping_blobs"
batch = 32
lr = 0.1

[tool.scaling.workloads.{name}.accuracy]
dataset = "tests.support.learners:overlapping_blobs"
init = "default"
epochs = 2
"""


@pytest.mark.nightly
def test_models_of_their_own_signature_are_timed(project: Project) -> None:
    scores, losses = "CallsAlone", "CallsAloneForALoss"
    workloads = (("scores", "NeedsLabels"), ("losses", "OnlyLoss"))
    (project.path / "pyproject.toml").write_text("".join(WORKLOAD.format(name=n, model=m) for n, m in workloads))
    chosen = [f"--scaling-trainer={HERE}{name}" for name in (scores, losses)]
    chosen += ["--scaling-workload=scores,losses", "-k", f"{scores}-scores or {losses}-losses"]
    arguments = ["--scaling-devices=cpu:1", "--scaling-world-sizes=1", "--scaling-mode=strong", "--scaling-budget=60"]
    result = project.pytest("-m", "scaling", *chosen, *arguments)
    assert result.ret == 0, result.stdout.str()
    [record] = project.records()
    first, second = sorted(record.cells, key=lambda cell: cell.workload == "losses")
    assert first.accuracy is not None
    assert not first.why("accuracy")
    note = "not measured: the model returns tensors of [()] for labels of (64,): "
    assert second.accuracy is None
    assert second.why("accuracy").startswith(note)
    assert f"no accuracy for {second.id}: {note}" in result.stdout.str()
