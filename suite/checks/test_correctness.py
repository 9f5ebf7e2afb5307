"""Every check on every trainer: `pytest -m correctness [--scaling-trainer X]`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from suite.checks.bench import Bench
from suite.config import Config
from suite.failure import WorkerFailure
from suite.plugin import NOTE
from suite.pool import Pool


@pytest.fixture(scope="module")
def bench(scaling_config: Config) -> Iterator[Bench]:
    """Workers for all checks on all trainers."""
    paths = [Path.cwd(), scaling_config.root]
    with Pool(kind=scaling_config.devices.kind, import_paths=paths) as pool:
        yield Bench(pool, scaling_config.devices)


@pytest.mark.correctness
def test_correctness(
    bench: Bench,
    correctness_trainer: str,
    correctness_check: str,
    fresh_examples: bool,
    request: pytest.FixtureRequest,
) -> None:
    """No generated case shows the trainer to be wrong."""
    try:
        outcome = bench.search(correctness_trainer, correctness_check, fresh=fresh_examples)
    except WorkerFailure as failure:
        pytest.fail(f"{correctness_trainer}: {failure}", pytrace=False)
    noted = [(NOTE, f"{correctness_trainer}, {correctness_check}: {note}") for note in outcome.notes]
    request.node.user_properties.extend([*noted, ("examples", outcome.examples)])
    if outcome.failure:
        pytest.fail(outcome.failure, pytrace=False)
