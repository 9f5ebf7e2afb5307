"""The adapters of docs/adapters on real gloo ranks, with the real libraries: `tox -e adapters`."""

from __future__ import annotations

import re

import pytest

from suite.checks.bench import Bench
from suite.checks.draw import CHECKS
from tests.support.project import REPOSITORY

pytest.importorskip("lightning", reason="needs the libraries of tox -e adapters")

FOLDER = REPOSITORY / "docs" / "adapters"
ADAPTERS = sorted(path.stem for path in FOLDER.glob("with_*.py"))

# Refusing a parameter that one rank does not use is right, if it is loud. These two are not: docs/adapters.md.
NOT_LOUD = {"with_hsdp": "its process ended with signal 6 (SIGABRT)", "with_lightning": "no answer to 'observe'"}


def trainer(adapter: str) -> str:
    """Return how a worker loads an adapter's trainer, the last class of its file."""
    path = FOLDER / f"{adapter}.py"
    *_, name = re.findall(r"^class (\w+)", path.read_text(), flags=re.MULTILINE)
    return f"{path}:{name}"


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapter_passes_the_checks(adapter: str, check: str, bench: Bench) -> None:
    failure = bench.search(trainer(adapter), check, examples=10).failure
    if check == "refusals" and adapter in NOT_LOUD:
        assert NOT_LOUD[adapter] in failure
    else:
        assert failure == ""
