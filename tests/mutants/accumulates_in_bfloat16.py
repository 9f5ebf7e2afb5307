"""The sum is formed in bfloat16 whatever the tensors' own dtype is.

Half the bytes on the wire, and training mostly survives: it was 48 nodes before a run became unstable that had been
fine on 12. Small integers and powers of two, the favourite test inputs, are exact in eight bits of precision.

Source: pytorch/pytorch#106395, NVIDIA/Megatron-LM#502
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

KIND = "all_reduce"
KILLED_BY = "all_reduce_sums"


@torch.no_grad()
def mutant(tensors: Sequence[Tensor]) -> None:
    if len(tensors) < 2:
        return
    total = tensors[0].to(torch.bfloat16)
    for tensor in tensors[1:]:
        total = total + tensor.to(total.device, torch.bfloat16)
    for tensor in tensors:
        tensor.copy_(total)
