"""Fabric() under torchrun trains once in every process: docs/upstream/fabric_torchrun.md.

torchrun --nproc-per-node=2 docs/upstream/fabric_torchrun.py
"""

import os

import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, TensorDataset

rank = os.environ["RANK"]
for told in ({}, {"accelerator": "cpu", "devices": 2, "strategy": "ddp"}):
    fabric = Fabric(**told)
    fabric.launch()
    loader = fabric.setup_dataloaders(DataLoader(TensorDataset(torch.arange(8)), 2))
    rows = torch.cat([batch[0] for batch in loader]).tolist()
    print(f"Fabric({told}): process {rank} of torchrun has world size {fabric.world_size} and rows {rows}", flush=True)
