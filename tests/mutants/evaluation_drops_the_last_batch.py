"""The last, smaller batch of the test set is not evaluated.

``drop_last=True`` is copied from the training loader, and the count is divided by the whole set. It is right when the
batch size divides the set; when the set is smaller than one batch, the accuracy is 0.

Source: verl-project/verl#78, thuml/Autoformer#104
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from reference.evaluate import count_correct

KIND = "evaluation"
KILLED_BY = "evaluation_counts_once"


def mutant(
    replicas: Sequence[nn.Module], devices: Sequence[torch.device], X: Tensor, y: Tensor, batch_size: int = 1024
) -> int:
    whole = len(X) // batch_size * batch_size
    return count_correct(replicas, devices, X[:whole], y[:whole], batch_size)
