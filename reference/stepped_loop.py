"""Take single steps of a training loop that another library owns, such as the `fit` or `train` of a Trainer class.

The loop runs in a thread of its own and gets its minibatches one at a time. A step is over when the loop asks for the
next minibatch: by then it has updated the parameters.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

LENGTH = 10**9  # minibatches; a loop that is told no length fetches ahead
END_S = 60.0  # for a loop to end after its last minibatch


class SteppedLoop:
    """A loop that takes one step for each call of `step`.

    `run` trains with the minibatches that it is given to iterate over, without end. It must fetch none ahead, because
    the next minibatch is made only when a step is over. The constructor returns when `run` has asked for its first
    minibatch, so the model is set up by then, and raises what `run` raises before that.
    """

    def __init__(self, run: Callable[[_Minibatches], object]) -> None:
        self._minibatches = _Minibatches()
        self._thread = threading.Thread(target=self._loop, args=(run,), daemon=True)
        self._thread.start()
        self._wait()

    def step(self, minibatch: Any) -> None:
        """Give the loop a minibatch, and return when it asks for the next one.

        Raises:
            RuntimeError: the loop has ended.
            Exception: whatever the loop raises in the step.
        """
        if not self._thread.is_alive():
            raise RuntimeError("the training loop has ended: let it train for more steps than are taken")
        self._minibatches.given.put((minibatch,))
        self._wait()

    def close(self) -> None:
        """End the loop by an exception where it asks for its next minibatch, and wait for that, `END_S` at most."""
        self._minibatches.given.put(None)
        self._thread.join(END_S)

    def _wait(self) -> None:
        error = self._minibatches.asked.get()
        if error is not None:
            self._thread.join(END_S)
            raise error

    def _loop(self, run: Callable[[_Minibatches], object]) -> None:
        ended: BaseException = RuntimeError("the training loop ended: let it train for more steps than are taken")
        try:
            run(self._minibatches)
        except BaseException as error:  # raised again in the thread that waits for the step
            ended = error
        self._minibatches.asked.put(ended)


class _Closed(Exception):
    """There will be no more minibatches."""


class _Minibatches:
    """What the loop iterates over, with a length that it never reaches."""

    def __init__(self) -> None:
        self.asked: SimpleQueue[BaseException | None] = SimpleQueue()  # None, or what the loop ended with
        self.given: SimpleQueue[tuple[Any] | None] = SimpleQueue()

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[Any]:
        while True:
            self.asked.put(None)
            given = self.given.get()
            if given is None:
                raise _Closed
            yield given[0]
