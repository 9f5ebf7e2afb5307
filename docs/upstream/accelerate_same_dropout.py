"""Two processes that call set_seed(42) drop out the same units: docs/upstream/accelerate_same_dropout.md.

torchrun --nproc-per-node=2 docs/upstream/accelerate_same_dropout.py
"""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.nn.functional import dropout

accelerator = Accelerator(cpu=True)
for device_specific in (False, True):
    set_seed(42, device_specific=device_specific)
    masks = accelerator.gather(dropout(torch.ones(1, 10)).bool().int()).tolist()
    accelerator.print(f"device_specific={device_specific}: units kept, by process: {masks}")
accelerator.end_training()
