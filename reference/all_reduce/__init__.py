"""All-reduce algorithms: each replaces one tensor per device by the sum of all, in place. One per file, one table.

The figures are for n bytes on each of k devices. A device sends as many bytes as it receives. The figures of ring and
sharded are exact where k divides the tensor; their own files give the others. In a round a device sends to at most one
other device, and receives from at most one.

| algorithm | rounds         | bytes per device                          | source                                      |
|-----------|----------------|-------------------------------------------|---------------------------------------------|
| naive     | 2 (k - 1)      | (k - 1) n on the first, n on the others   | the book's `allreduce`                      |
| tree      | 2 ceil(log2 k) | n per link: ceil(log2 k) n at the root, n | binomial tree: Thakur, Rabenseifner, Gropp, |
|           |                | at a leaf                                 | IJHPCA 19(1), 2005                          |
| ring      | 2 (k - 1)      | 2 (k - 1) / k n, the least possible       | Patarasuk, Yuan, JPDC 69(2), 2009           |
| sharded   | up to 2 k      | 2 (k - 1) / k n                           | the book's exercise "different parameters   |
|           |                |                                           | on different GPUs"                          |
| bucketed  | ring's, for    | ring's                                    | Li et al., VLDB 2020 (torch's               |
|           | each bucket    |                                           | DistributedDataParallel)                    |

Common to all algorithms: the sum is in the caller's own tensors, for any strides and devices. The copies are bit-equal,
because each element is summed in one place and then copied. Additions are made in the tensor's own dtype, and whole
numbers wrap around. Each element is the result of k - 1 additions in some order, so with unit round-off u, and unless
it overflows, its error is at most (k - 1) u / (1 - (k - 1) u) times the sum of the absolute values (Higham, "Accuracy
and Stability of Numerical Algorithms", 2nd ed., section 4.2). The order differs between algorithms, and in ring and
sharded between elements, so two algorithms agree within twice the bound, not to the bit.

`traffic.count_traffic` counts the bytes of any algorithm; `bucketed.bucketed_` reduces many tensors per device.
"""

from __future__ import annotations

from reference.all_reduce.bucketed import bucketed_tensor_
from reference.all_reduce.check import AllReduce
from reference.all_reduce.naive import naive_
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
