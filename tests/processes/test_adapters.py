"""The adapters of docs/adapters and scripts that use other libraries, on real gloo ranks: `tox -e adapters`."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from suite.checks import draw, script
from suite.checks.bench import MOST_RANKS, Bench
from suite.checks.draw import CHECKS
from suite.plan import scripts
from suite.processes.failure import WorkerFailure
from suite.properties.case import Case
from tests.scripts import BATCH
from tests.scripts import FOLDER as SCRIPTS
from tests.support.project import REPOSITORY

pytest.importorskip("lightning", reason="needs the libraries of tox -e adapters")

FOLDER = REPOSITORY / "docs" / "adapters"
ADAPTERS = sorted(path.stem for path in FOLDER.glob("with_*.py"))

# Refusing a parameter that one rank does not use is right, if it is loud. These two are not: docs/your-trainer.md.
NOT_LOUD = {"with_hsdp": "its process ended with signal 6 (SIGABRT)", "with_lightning": "no answer to 'observe'"}


def trainer(adapter: str) -> str:
    """Return how a worker loads an adapter's trainer, the last class of its file."""
    path = FOLDER / f"{adapter}.py"
    *_, name = re.findall(r"^class (\w+)", path.read_text(), flags=re.MULTILINE)
    return f"{path}:{name}"


# ZeRO keeps its copy of the parameters in float32: in float64 it is off by rounding (docs/your-trainer.md).
SINGLE_PRECISION = {
    ("with_deepspeed", check)
    for check in ("gradient", "trajectory", "identity", "batch_norm", "not_a_number", "refusals")
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapter_passes_the_checks(adapter: str, check: str, bench: Bench) -> None:
    failure = bench.search(trainer(adapter), check, examples=10).failure
    if (adapter, check) in SINGLE_PRECISION:
        assert re.search(r"off by \d.\d+e-08", failure)
    elif check == "refusals" and adapter in NOT_LOUD:
        assert NOT_LOUD[adapter] in failure
    else:
        assert failure == ""


@pytest.mark.parametrize(("adapter", "check"), sorted(SINGLE_PRECISION))
def test_an_adapter_of_single_precision_passes_the_checks_in_float32(adapter: str, check: str, bench: Bench) -> None:
    cases = draw.cases(check, MOST_RANKS, "sgd").map(lambda case: replace(case, dtype="float32"))

    @settings(max_examples=10, database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(cases)
    def judge(case: Case) -> None:
        assert bench.judge(trainer(adapter), check, case).finding == ""

    if check == "refusals":
        with pytest.raises(WorkerFailure, match="SIGABRT"):
            judge()
    else:
        judge()


@pytest.mark.parametrize(("library", "red"), [("accelerate", {"schedule"}), ("lightning", set())])
def test_a_script_of_a_library_is_checked_as_it_is(library: str, red: set[str], bench: Bench) -> None:
    pytest.importorskip(library, reason="needs the libraries of tox -e adapters")
    name = {"lightning": "with_fabric"}.get(library, f"with_{library}")
    named = scripts.named(f"{SCRIPTS / name}.py --batch_size {{batch}}", {}, BATCH)
    checked = script.check(bench.pool, bench.devices, named, 2, SCRIPTS)
    assert checked.failure == ""
    assert {item for item, verdict in checked.verdicts.items() if verdict.finding} == red
    assert {item for item, verdict in checked.verdicts.items() if verdict.unchecked} == {"random"}
