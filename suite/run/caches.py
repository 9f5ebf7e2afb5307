"""Whether the processes of a session may keep, between their windows, memory of accelerators that no tensor uses.

To give it back costs calls of the driver after each window, and as many before the next one. So it is given back only
where the card could not hold what all processes of the session would keep at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from suite.processes.answers import Timed
from suite.processes.group import Group

SHARE = 0.9  # of what is free: an allocator may need more than before, where it finds its memory in other pieces


class Caches:
    """What the processes of one session have given back after their first windows, and what the cards had free then.

    Hosts of one run are taken for one, so that on several of them memory is given back where it need not be.
    """

    def __init__(self) -> None:
        self._returned: dict[str, dict[tuple[int, int], int]] = defaultdict(dict)  # by device, then by group and rank
        self._free: dict[str, int] = {}

    def note(self, group: Group, names: Sequence[str], answers: Sequence[Timed]) -> None:
        """Add the answers of a group's processes to a window after which each gave back what it could.

        Args:
            group: of one process, or of one for each of its devices.
            names: of these devices, by rank.
            answers: of the processes.
        """
        for rank, answer in enumerate(answers):
            own = dict.fromkeys(names if len(answers) == 1 else [names[rank]])
            held = answer.memory
            for name, returned, free in zip(own, held.returned_bytes, held.free_bytes, strict=False) if held else ():
                process = (id(group), rank)
                self._returned[name][process] = max(returned, self._returned[name].get(process, 0))
                self._free[name] = min(free, self._free.get(name, free))

    @property
    def fit(self) -> bool:
        """Whether every card can hold them all; not where nothing is known, as on CPUs."""
        needed = {name: sum(processes.values()) for name, processes in self._returned.items()}
        return bool(needed) and all(needed[name] <= SHARE * self._free[name] for name in needed)
