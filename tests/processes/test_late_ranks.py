"""Which ranks have not begun a collective, from what torch's flight recorder says of each."""

from __future__ import annotations

import pytest

from suite.processes.failure import LAST_CALL, behind, silent


def said(number: int, group: str = "0 (gloo)") -> str:
    """Return what a rank prints after its stacks."""
    call = LAST_CALL.format(group=group, number=number, what="all_reduce Float [[10, 5]]")
    return f'Thread 0x1 (most recent call first):\n  File "a.py", line 3 in step\n{call}\n'


def test_the_ranks_that_have_begun_fewer_are_named_with_the_call() -> None:
    [late] = behind({0: said(57), 1: said(56), 2: said(57)})
    assert late == (
        "collective 57 of group 0 (gloo), all_reduce Float [[10, 5]], was not begun by rank 1 (its last is number 56)"
    )
    assert silent("g", [0, 1], "window", 20.0, {0: said(57), 1: said(56)}).cause.endswith(late)


@pytest.mark.parametrize("stacks", [{}, {0: "no recorder"}, {0: said(57)}, {0: said(57), 1: said(57)}])
def test_ranks_that_are_equally_far_add_nothing(stacks: dict[int, str]) -> None:
    assert behind(stacks) == []
    assert silent("g", [0], "window", 20.0, stacks).cause == "rank 0: no answer to 'window' within 20 s, ended"


def test_groups_are_compared_apart() -> None:
    both = said(9, "1 (nccl)") + said(4, "0 (gloo)")
    assert behind({0: both, 1: said(4, "0 (gloo)"), 2: said(8, "1 (nccl)")}) == [
        "collective 9 of group 1 (nccl), all_reduce Float [[10, 5]], was not begun by rank 2 (its last is number 8)"
    ]
