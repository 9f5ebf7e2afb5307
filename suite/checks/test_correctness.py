"""Every check on every trainer: `pytest -m correctness [--scaling-trainer X]`."""

from __future__ import annotations

import pytest

from suite.checks import FAILURE, NOTE, RAISED, WRONG
from suite.checks.bench import Bench
from suite.processes.failure import WorkerFailure
from suite.properties.answers import OWN_SIGNATURE, UNSEEN

SIGNATURES = pytest.StashKey[dict[str, str]]()
"""Trainers that call their model with a signature of their own, and the check that fails for it."""


@pytest.mark.correctness
def test_correctness(
    correctness_bench: Bench,
    correctness_trainer: str,
    correctness_check: str,
    correctness_examples: int | None,
    fresh_examples: bool,
    request: pytest.FixtureRequest,
) -> None:
    """No generated case shows the trainer to be wrong.

    A trainer that calls its model with a signature of its own fails one check, which says what to use.
    """
    signatures = request.session.stash.setdefault(SIGNATURES, {})
    if signatures.get(correctness_trainer, correctness_check) != correctness_check:
        pytest.skip(
            f"not checked: {correctness_trainer} calls its model with a signature of its own; the failure of its check "
            f"{signatures[correctness_trainer]!r} says what to use"
        )
    try:
        about = correctness_bench.about(correctness_trainer)
        result = correctness_bench.search(
            correctness_trainer, correctness_check, examples=correctness_examples, fresh=fresh_examples
        )
    except WorkerFailure as failure:
        raise pytest.fail.Exception(f"{correctness_trainer}: {failure}", pytrace=False) from None
    unseen = correctness_bench.unseen(about) if correctness_check != "identity" else ""
    for sentence in filter(None, [UNSEEN if about.only_with_itself else "", unseen]):
        request.node.user_properties.append((NOTE, f"{correctness_trainer}: {sentence}"))
    noted = [(NOTE, f"{correctness_trainer}, {correctness_check}: {note}") for note in result.notes]
    request.node.user_properties.extend([*noted, ("examples", result.examples)])
    if result.not_run:
        pytest.skip(result.not_run)
    if result.failure:
        request.node.user_properties.append((FAILURE, RAISED if result.crashed else WRONG))
        first, _, _ = result.failure.partition("\n")
        if f"{OWN_SIGNATURE}: " in first:  # what the case was makes no difference
            signatures[correctness_trainer] = correctness_check
            pytest.fail(first, pytrace=False)
        pytest.fail(result.failure, pytrace=False)
    if unseen and result.examples and correctness_bench.most(about) == 1:
        pytest.skip(f"{unseen}; on one device nothing is wrong")
