"""The same properties on real GPUs (`pytest -m gpu`): gradients, chunks, NCCL ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from reference.scatter import chunk_sizes, scatter
from suite import properties
from suite.devices import cuda_count
from suite.pool import Pool

pytestmark = pytest.mark.gpu

CASE: dict[str, Any] = {
    "model": "lenet",
    "input_shape": [1, 28, 28],
    "classes": 10,
    "init": "xavier",
    "dtype": "float64",
    "seed": 3,
    "lr": 0.1,
    "batches": [13, 5, 1],
}


def gpus() -> list[torch.device]:
    return [torch.device("cuda", index) for index in range(cuda_count())]


@pytest.mark.parametrize("trainer", ["single", "scratch", "data_parallel"])
def test_one_process_trainers_compute_one_devices_gradient(trainer: str) -> None:
    devices = gpus()
    arm = {"trainer": trainer, "processes": "one", "world_size": len(devices)}
    taken = properties.trajectory(0, devices, arm, CASE)
    assert taken.replicas_equal
    assert max(deviation.ratio for deviation in properties.against_sgd(taken, CASE)) <= 1


@pytest.mark.parametrize("ranks_per_gpu", [1, 2], ids=["nccl", "oversubscribed-gloo"])
def test_ddp_computes_one_devices_gradient(pool: Pool, ranks_per_gpu: int) -> None:
    names = [str(device) for device in gpus()] * ranks_per_gpu
    group = pool.launch(f"gpu-ranks-{ranks_per_gpu}", len(names))
    group.wait_connected()
    arm = {
        "trainer": "ddp",
        "processes": "per-device",
        "world_size": len(names),
        "devices": names,
        "pinned": [],
        "backend": "nccl" if ranks_per_gpu == 1 else "gloo",
    }
    answer = group.request("check", arm=arm, case=CASE, folder="")[0]
    group.close()
    assert answer["replicas_equal"]
    assert max(deviation["ratio"] for deviation in answer["deviations"]) <= 1


def test_our_chunks_are_torchs_chunks() -> None:
    devices = gpus()
    for samples in range(1, 3 * len(devices) + 2):
        shards = scatter(torch.arange(samples, device=devices[0]), devices)
        assert [len(shard) for shard in shards] == chunk_sizes(samples, len(devices))
        assert [shard.device for shard in shards] == devices[: len(shards)]
