"""Named workloads: the built-in ones, the user's own, and what their hash covers."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference.models import MODELS
from reference.models.init import INITS
from suite import workloads
from suite.workloads import BUILT_IN


def test_every_run_of_the_documents_has_a_workload() -> None:
    """Rows 0-grid (five runs) and 3-table (three runs): model, batch, learning rate, epochs."""
    runs = {
        (w.model, w.batch, w.lr, w.epochs)
        for w in BUILT_IN.values()
        if w.name.startswith("book-") and w.loader == "resident"
    }
    assert runs == {
        ("lenet", 256, 0.2, 10),
        ("lenet", 512, 0.3, 10),
        ("resnet18", 256, 0.1, 10),
        ("resnet18", 512, 0.2, 10),
        ("gluon-resnet18", 256, 0.1, 5),
        ("gluon-resnet18", 512, 0.2, 5),
    }


@pytest.mark.parametrize("workload", BUILT_IN.values(), ids=str)
def test_built_in_workloads_name_things_that_exist(workload: workloads.Workload) -> None:
    assert workload.model in MODELS
    assert workload.init in INITS
    assert workload.accuracy is None or workload.accuracy.init in INITS


def test_the_hash_covers_what_is_measured_and_nothing_else() -> None:
    lenet = BUILT_IN["lenet"]
    assert lenet.model_copy(update={"name": "other", "published": {}}).hash == lenet.hash
    assert lenet.model_copy(update={"batch": 128}).hash != lenet.hash
    assert lenet.model_copy(update={"precision": "float64"}).hash != lenet.hash


def test_a_workload_of_the_users_own(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text('[tool.scaling.workloads.mine]\nmodel = "my.net:make"\nbatch = 64\n')
    found = workloads.available(file)
    assert (found["mine"].model, found["mine"].batch) == ("my.net:make", 64)
    assert "lenet" in found
    assert workloads.available(tmp_path / "none.toml") == BUILT_IN


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'mine]\nmodel = "a:b"\nbatch = 0',
            r"workload 'mine' in pyproject.toml: batch: Input should be greater than 0",
        ),
        ('mine]\nmodel = "a:b"\nbatchsize = 1', r"workload 'mine' in pyproject.toml: batchsize: Extra inputs"),
        ("mine]\nbatch = 1", r"workload 'mine' in pyproject.toml: model: Field required"),
        ('lenet]\nmodel = "a:b"', r"workload 'lenet' in pyproject.toml has the name of a built-in one"),
    ],
)
def test_a_wrong_workload_is_named_with_its_field(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(f"[tool.scaling.workloads.{text}\n")
    with pytest.raises(ValueError, match=message):
        workloads.available(file)
