"""Algorithms that leave the sum of one tensor per device on every device, in place: one a file, one table.

For n bytes on each of k devices. A device sends as many bytes as it receives; the figures of ring and sharded hold
where k divides the tensor, and their own files say what holds elsewhere. In a round a device sends to one other at
most, and receives from one at most.

| algorithm | rounds         | bytes a device                            | source                                      |
|-----------|----------------|-------------------------------------------|---------------------------------------------|
| naive     | 2 (k - 1)      | (k - 1) n on the first, n on the others   | the book's `allreduce`                      |
| tree      | 2 ceil(log2 k) | n a link: ceil(log2 k) n at the root, n   | binomial tree: Thakur, Rabenseifner, Gropp, |
|           |                | at a leaf                                 | IJHPCA 19(1), 2005                          |
| ring      | 2 (k - 1)      | 2 (k - 1) / k n, the least there can be   | Patarasuk, Yuan, JPDC 69(2), 2009           |
| sharded   | up to 2 k      | 2 (k - 1) / k n                           | the book's exercise "different parameters   |
|           |                |                                           | on different GPUs"                          |
| bucketed  | ring's, for    | ring's                                    | Li et al., VLDB 2020 (torch's               |
|           | each bucket    |                                           | DistributedDataParallel)                    |

What holds for all of them: the caller's own tensors hold the sum, whatever their strides and on whichever devices; the
copies are bit-equal, because each element is added up in one place and then copied; additions are made in the tensor's
own dtype, and whole numbers wrap around. Each element is the result of k - 1 additions in some order, so with unit
round-off u, and unless it overflows, it is off by at most (k - 1) u / (1 - (k - 1) u) times the sum of the absolute
values (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., section 4.2). The order differs between
algorithms, and in ring and sharded between elements: two algorithms agree within twice the bound, not to the bit.

`traffic.count_traffic` counts the bytes of any of them; `bucketed.bucketed_` takes many tensors a device.
"""

from __future__ import annotations

from reference.all_reduce.bucketed import bucketed_tensor_
from reference.all_reduce.naive import naive_
from reference.all_reduce.protocol import AllReduce
from reference.all_reduce.ring import ring_
from reference.all_reduce.sharded import sharded_
from reference.all_reduce.tree import tree_

__all__ = ["ALL_REDUCE", "AllReduce"]

ALL_REDUCE: dict[str, AllReduce] = {
    "naive": naive_,
    "tree": tree_,
    "ring": ring_,
    "sharded": sharded_,
    "bucketed": bucketed_tensor_,
}
