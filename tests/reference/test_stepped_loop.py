"""Single steps of a loop that runs in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import pytest

from reference.stepped_loop import LENGTH, SteppedLoop


def test_a_step_is_over_when_the_loop_has_done_it() -> None:
    done: list[Any] = ["set up"]
    loop = SteppedLoop(lambda minibatches: done.extend(str(minibatch) for minibatch in minibatches))
    assert done == ["set up"]
    loop.step(1)
    loop.step((2, None))
    assert done == ["set up", "1", "(2, None)"]
    loop.close()


def test_a_loop_that_is_closed_ends_its_thread() -> None:
    threads: list[threading.Thread] = []

    def run(minibatches: Iterable[Any]) -> None:
        threads.append(threading.current_thread())
        for _ in range(LENGTH):  # as a loop does that trains for a number of steps, whatever the iterator says
            for _ in minibatches:
                pass

    loop = SteppedLoop(run)
    loop.step(1)
    loop.close()
    assert not threads[0].is_alive()
    with pytest.raises(RuntimeError, match="the training loop has ended: let it train for more steps"):
        loop.step(2)


def test_an_error_of_the_loop_is_raised_by_the_step() -> None:
    def run(minibatches: Iterable[Any]) -> None:
        for minibatch in minibatches:
            print(1 / minibatch)

    loop = SteppedLoop(run)
    loop.step(1)
    with pytest.raises(ZeroDivisionError):
        loop.step(0)
    loop.close()


def test_an_error_before_the_first_minibatch_is_raised_at_once() -> None:
    def run(_: Iterable[Any]) -> None:
        raise ValueError("no such strategy")

    with pytest.raises(ValueError, match="no such strategy"):
        SteppedLoop(run)


def test_a_loop_that_ends_by_itself_says_so() -> None:
    def run(minibatches: Iterable[Any]) -> None:
        next(iter(minibatches))

    loop = SteppedLoop(run)
    with pytest.raises(RuntimeError, match="the training loop ended: let it train for more steps"):
        loop.step(1)


def test_it_has_a_length_so_that_loops_do_not_fetch_ahead() -> None:
    lengths: list[int] = []

    def run(minibatches: Any) -> None:
        lengths.append(len(minibatches))
        list(minibatches)

    SteppedLoop(run).close()
    assert lengths == [LENGTH]
