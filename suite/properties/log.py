"""The log that a generated network with dropout or batch normalisation keeps of its forwards in training."""

from __future__ import annotations

from typing import Any

import torch


class Entry(dict[str, Any]):
    """What one forward saw. FSDP gives a block a copy of every dict that it is called with, but not of its subclasses.

    It has "samples", their numbers in the minibatch; "masks", one text of bits for each sample, or none; and
    "recomputed": whether the forward ran in the backward. A language model's entry also has "redrawn": whether a block
    that was recomputed in the backward met another mask.
    """

    def __init__(self, samples: list[float], **more: Any) -> None:
        # torch.utils.checkpoint asks the same: a graph has a number while its backward runs.
        recomputed = torch._C._current_graph_task_id() != -1
        super().__init__(samples=samples, masks=[], recomputed=recomputed, **more)


class Log(list[Entry]):
    """One entry a forward; copies of a net share one log."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Log:
        return self
