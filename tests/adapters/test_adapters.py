"""The adapters of docs/adapters on real gloo ranks, with the real libraries: `tox -e adapters`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from suite.checks.bench import Bench
from suite.properties.trainer import CHECKS
from tests.support.project import REPOSITORY

FOLDER = REPOSITORY / "docs" / "adapters"
ADAPTERS = sorted(path.stem for path in FOLDER.glob("with_*.py"))
NEEDS = {
    "with_accelerate": "accelerate",
    "with_fabric": "lightning",
    "with_lightning": "lightning",
    "with_transformers": "transformers",
}


def trainer(adapter: str) -> str:
    """Return how a worker loads an adapter's trainer, the last class of its file."""
    path = FOLDER / f"{adapter}.py"
    *_, name = re.findall(r"^class (\w+)", path.read_text(), flags=re.MULTILINE)
    return f"{path}:{name}"


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapter_passes_the_checks(adapter: str, check: str, bench: Bench) -> None:
    if adapter in NEEDS:
        pytest.importorskip(NEEDS[adapter], reason=f"needs {NEEDS.get(adapter)}: tox -e adapters")
    assert bench.search(trainer(adapter), check, examples=10).failure == ""


def test_the_page_names_every_adapter() -> None:
    page = Path(REPOSITORY / "docs" / "adapters.md").read_text()
    assert set(re.findall(r"\(adapters/(\w+)\.py\)", page)) == set(ADAPTERS)
