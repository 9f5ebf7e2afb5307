"""All-reduce along a binomial tree: partial sums go up to the first device, and the total goes down the same links.

In every round upwards, every second of the remaining devices sends its sum to the one before it and then drops out
(Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA 19(1), 2005). It
has few rounds and sends whole tensors, so it suits small ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from reference.all_reduce.check import check
from reference.all_reduce.traffic import send_


@torch.no_grad()
def tree_(tensors: Sequence[Tensor]) -> None:
    """Replace every tensor's values by the sum over all of them, in ceil(log2 k) rounds up and as many down.

    A device sends and receives the tensor once for each of its links in the tree: the first device has ceil(log2 k)
    links and a leaf has one. The tree has k - 1 links. Until the end the tensors hold partial sums.
    """
    check(tensors)
    links = _links(len(tensors))
    for parent, child in links:
        send_(tensors[child], tensors[parent], source=child, target=parent, accumulate=True)
    for parent, child in reversed(links):
        send_(tensors[parent], tensors[child], source=parent, target=child)


def _links(k: int) -> list[tuple[int, int]]:
    """Return the tree's (parent, child) pairs, leaves first; within a round no device is in two of them."""
    links = []
    distance = 1
    while distance < k:
        links += [(parent, parent + distance) for parent in range(0, k - distance, 2 * distance)]
        distance *= 2
    return links
