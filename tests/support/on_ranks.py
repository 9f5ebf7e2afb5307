"""Call a function on real gloo ranks, those that all tests share, and collect what it returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from suite.checks.bench import Bench

CALL_S = 60.0  # well below the deadline of a test, so that a hang shows the ranks' stacks


def run(bench: Bench, function: str, world_sizes: Sequence[int], **arguments: Any) -> dict[int, list[Any]]:
    """Call a function with the same arguments on every rank of one world after the other.

    Args:
        bench: has the ranks.
        function: ``module:name``; called with the default process group initialised.
        world_sizes: one world each, in this order.
        arguments: JSON.

    Returns:
        By world size what each rank returned, by rank, through JSON.

    Raises:
        suite.processes.failure.WorkerFailure: a rank raised, died, or was silent for `CALL_S`.
    """
    answers = {}
    for world_size in world_sizes:
        group = bench.group(world_size)
        answers[world_size] = [
            answer["returned"] for answer in group.request(dict, "call", CALL_S, function=function, arguments=arguments)
        ]
    return answers
