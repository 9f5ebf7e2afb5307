"""Training scripts that use other libraries, checked as they are: `tox -e adapters`."""

from __future__ import annotations

import pytest

from suite.checks.bench import Bench
from suite.checks.script import check
from suite.plan import scripts
from tests.scripts import BATCH, FOLDER


@pytest.mark.parametrize(("library", "red"), [("accelerate", {"schedule"}), ("lightning", set())])
def test_a_script_of_a_library_is_checked_as_it_is(library: str, red: set[str], bench: Bench) -> None:
    pytest.importorskip(library, reason="needs the libraries of tox -e adapters")
    name = {"lightning": "with_fabric"}.get(library, f"with_{library}")
    script = scripts.named(f"{FOLDER / name}.py --batch_size {{batch}}", {}, BATCH)
    checked = check(bench.pool, bench.devices, script, 2, FOLDER)
    assert checked.failure == ""
    assert {item for item, verdict in checked.verdicts.items() if verdict.finding} == red
    assert {item for item, verdict in checked.verdicts.items() if verdict.unchecked} == {"random"}
