"""Every check on every trainer: `pytest -m correctness [--scaling-trainer X]`."""

from __future__ import annotations

import pytest

from suite.checks import NOTE
from suite.checks.bench import Bench
from suite.processes.failure import WorkerFailure
from suite.properties.answers import UNSEEN


@pytest.mark.correctness
def test_correctness(
    correctness_bench: Bench,
    correctness_trainer: str,
    correctness_check: str,
    correctness_examples: int | None,
    fresh_examples: bool,
    request: pytest.FixtureRequest,
) -> None:
    """No generated case shows the trainer to be wrong."""
    try:
        about = correctness_bench.about(correctness_trainer)
        result = correctness_bench.search(
            correctness_trainer, correctness_check, examples=correctness_examples, fresh=fresh_examples
        )
    except WorkerFailure as failure:
        raise pytest.fail.Exception(f"{correctness_trainer}: {failure}", pytrace=False) from None
    if about.only_with_itself:
        request.node.user_properties.append((NOTE, f"{correctness_trainer}: {UNSEEN}"))
    noted = [(NOTE, f"{correctness_trainer}, {correctness_check}: {note}") for note in result.notes]
    request.node.user_properties.extend([*noted, ("examples", result.examples)])
    if result.not_run:
        pytest.skip(result.not_run)
    if result.failure:
        pytest.fail(result.failure, pytrace=False)
