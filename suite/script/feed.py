"""Feeds one device what several ranks were recorded to have drawn (worker's side).

Minibatches of a DataLoader are fed where the script draws them. A script without one is fed the arguments of its model
and the targets of torch's loss functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from suite.script import trees

UNIONS, SINGLES = "unions", "singles"
Record = dict[str, Any]


class Feed:
    """What is drawn next, from the records of all ranks.

    Attributes:
        padded: whether rows of several lengths were padded to one.
        unfed: how often nothing was recorded of what the script drew.
    """

    def __init__(self, ranks: Sequence[Record], mode: str) -> None:
        """Keep what to feed.

        Args:
            ranks: their records, in order.
            mode: "unions" of what the ranks drew together; "singles" where the script draws as often as all of them; or
                the number of a rank, which is fed alone.
        """
        self._ranks = [ranks[int(mode)]] if mode.isdigit() else list(ranks)
        self._single = mode == SINGLES
        self.padded, self.unfed = False, 0

    def batch(self, place: str, iteration: int, number: int) -> Any:
        """Return the minibatch of a draw.

        Raises:
            StopIteration: the recorded loaders had no more.
            LookupError: there was no such draw.
        """
        iterations = [self._iteration(record, place, iteration) for record in self._ranks]
        parts = self._chosen([each["batches"] for each in iterations], number)
        if parts:
            return self._united(parts)
        if any(each["ended"] for each in iterations):
            raise StopIteration
        self.unfed += 1
        raise LookupError

    def inputs(self, kind: str, number: int) -> Any:
        """Return the arguments of a forward, or the target of a loss, that is called for the n-th time.

        Raises:
            LookupError: there was no such call.
        """
        parts = self._chosen([record[kind] for record in self._ranks], number)
        if not parts or any(part is None for part in parts):
            self.unfed += 1
            raise LookupError
        return self._united(parts)

    def _chosen(self, lists: Sequence[Sequence[Any]], number: int) -> list[Any]:
        if self._single:
            number, rank = divmod(number, len(lists))
            lists = lists[rank : rank + 1]
        return [each[number] for each in lists if number < len(each)]

    def _united(self, parts: list[Any]) -> Any:
        union, padded = trees.united(parts)
        self.padded = self.padded or padded
        return union

    @staticmethod
    def _iteration(record: Record, place: str, iteration: int) -> Mapping[str, Any]:
        iterations = record["draws"].get(place, ())
        return iterations[iteration] if iteration < len(iterations) else {"batches": (), "ended": False}
