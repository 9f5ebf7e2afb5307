"""The trainers, one kind of exchange a file: table name -> class, imported on demand. `protocol` defines a trainer."""

from __future__ import annotations

TRAINERS: dict[str, str] = {
    "single": "reference.trainers.single:Single",
    "scratch": "reference.trainers.scratch:Scratch",
    "scratch_overlap": "reference.trainers.scratch_overlap:ScratchOverlap",
    "weighted": "reference.trainers.weighted:Weighted",
    "data_parallel": "reference.trainers.data_parallel:DataParallelTrainer",
    "gluon": "reference.trainers.gluon:GluonTrainer",
    "ddp": "reference.trainers.ddp:DDPTrainer",
    "ddp_sync_bn": "reference.trainers.ddp:DDPSyncBNTrainer",
    "fsdp": "reference.trainers.fsdp:FSDPTrainer",
    "ddp_tokens": "reference.trainers.ddp:DDPTokensTrainer",
    "fsdp_tokens": "reference.trainers.fsdp:FSDPTokensTrainer",
}

PLAIN_ON_ONE = ("scratch", "scratch_overlap", "data_parallel", "gluon", "ddp", "ddp_tokens")
"""On one device a step of these is that of `single`: nothing is split, and nobody is there to exchange with."""

_TRAINS = {"single": ("samples", "tokens"), "ddp_tokens": ("tokens",), "fsdp_tokens": ("tokens",)}


def trains(name: str) -> tuple[str, ...]:
    """Return what a trainer of the table can train; `reference.trainers.protocol` describes the words."""
    return _TRAINS.get(name, ("samples",))
