"""What a script is given, recorded on several ranks and given again on one device (worker's side).

It is given minibatches where it draws them from a DataLoader. A script without one is given the arguments of its model
and the targets of torch's loss functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from suite.script import trees

SINGLES = "singles"
ARGUMENTS, TARGETS = "arguments", "targets"
Record = dict[str, Any]


class Tape:
    """Keeps what a script is given, or gives it what the ranks of a recording were given.

    Each place of the script has a list of what it is given there, and so have arguments and targets.

    Attributes:
        draws: minibatches since the last update.
    """

    def __init__(self, recorded: Sequence[Record] = (), mode: str = "", *, double: bool = False) -> None:
        """Begin a recording, or a replay.

        Args:
            recorded: of all ranks, in order; none for a recording.
            mode: of a replay: "unions" of what the ranks drew together; "singles" where the script draws as often as
                all of them; or the number of a rank, whose minibatches are given alone.
            double: whether floating-point numbers become float64.
        """
        self._ranks = [recorded[int(mode)]] if mode.isdigit() else list(recorded)
        self._single, self._double = mode == SINGLES, double
        self._by_loader = not recorded or bool(recorded[0]["by_loader"])
        self._numbers = Counter[str]()
        self._kept: dict[str, list[Any]] = {}
        self._ended: list[str] = []
        self._not_kept = ""
        self._padded, self._unfed = False, 0
        self.draws = 0

    @property
    def replays(self) -> bool:
        """Whether the script is given what was recorded."""
        return bool(self._ranks)

    def drawn(self, place: str, own: Any) -> Any:
        """Return what the script gets where it has drawn a minibatch of its own.

        Raises:
            StopIteration: the recorded loaders had no more.
        """
        given = self._given(place, own) if self.replays else self._keep(place, self._in_precision(own))
        self.draws += 1
        return given

    def drawn_after_end(self, place: str, last: Any) -> Any:
        """Return what the script gets where its loader has no more, in the form of the last minibatch.

        Raises:
            StopIteration: no more was recorded.
        """
        if not self.replays:
            self._ended.append(place)
            raise StopIteration
        try:
            given = trees.filled(last, self._recorded(place))
        except LookupError:
            raise StopIteration from None
        self.draws += 1
        return given

    def called(self, kind: str, own: Any) -> Any:
        """Return the arguments of a forward, or the target of a loss; those after a draw are not kept."""
        if self.replays and not self._by_loader:
            own = self._given(kind, own)
        own = self._in_precision(own)
        return own if self.replays else self._keep(kind, own, left_out=self.draws > 0)

    def record(self, steps: Sequence[Record]) -> Record:
        """Return what is kept of it in a record with these steps."""
        return {
            "by_loader": 2 * sum(step["draws"] > 0 for step in steps) >= len(steps) and self._by_loader,
            "given": self._kept,
            "ended_draws": self._ended,
            "has_targets": bool(self._kept.get(TARGETS)),
            "not_kept": self._not_kept,
            "unfed": self._unfed,
            "padded": self._padded,
        }

    def _in_precision(self, own: Any) -> Any:
        return trees.doubled(own) if self._double else own

    def _keep(self, key: str, own: Any, *, left_out: bool = False) -> Any:
        kept = self._kept.setdefault(key, [])
        try:
            kept.append(None if left_out else trees.plain(own))
        except trees.NotKept as error:
            self._not_kept = str(error)
            kept.append(None)
        return own

    def _given(self, key: str, own: Any) -> Any:
        try:
            return trees.filled(own, self._recorded(key))
        except LookupError:
            return self._in_precision(own)

    def _recorded(self, key: str) -> Any:
        """Return what the ranks were given there the next time, as one.

        Raises:
            StopIteration: their loaders had no more.
            LookupError: they were given nothing that could be kept.
        """
        number, lists = self._numbers[key], [record["given"].get(key, ()) for record in self._ranks]
        if self._single:
            number, rank = divmod(number, len(lists))
            lists = lists[rank : rank + 1]
        parts = [each[number] for each in lists if number < len(each)]
        if not parts and any(key in record["ended_draws"] for record in self._ranks):
            raise StopIteration
        self._numbers[key] += 1
        if not parts or any(part is None for part in parts):
            self._unfed += 1
            raise LookupError
        union, padded = trees.united(parts)
        self._padded = self._padded or padded
        return union
