"""Gradients against one device: one-process trainers on virtual devices, per-device ones on real gloo ranks.

A check that cannot fail is worth nothing, so wrong trainers stand beside the right ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from suite import properties
from suite.pool import Group, Pool
from tests import trainers_under_test

HERE = f"{trainers_under_test.__file__}:"
RANKS = (1, 2, 4)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Nets, dtypes and minibatch sizes, uneven and smaller than the world included; float32 only on a smooth net."""
    dtype = draw(st.sampled_from(["float64", "float32"]))
    image = draw(st.booleans()) and dtype == "float64"
    return {
        "model": "lenet" if image else "toy",
        "input_shape": [1, 28, 28] if image else [5],
        "classes": 10 if image else 2,
        "init": draw(st.sampled_from(["default", "xavier"])),
        "dtype": dtype,
        "seed": draw(st.integers(0, 1000)),
        "lr": draw(st.sampled_from([0.05, 0.5])),
        "batches": draw(st.lists(st.integers(1, 11), min_size=1, max_size=3)),
    }


def in_process(trainer: str, world_size: int, case: dict[str, Any]) -> tuple[bool, float]:
    """Whether the replicas agree, and the worst error over its bound."""
    devices = [torch.device("cpu")] * world_size
    arm = {"trainer": trainer, "processes": "one", "world_size": world_size}
    taken = properties.trajectory(0, devices, arm, case)
    return taken.replicas_equal, max(deviation.ratio for deviation in properties.against_sgd(taken, case))


@pytest.mark.parametrize("trainer", ["single", "scratch", "data_parallel"])
@settings(max_examples=25)
@given(case=cases(), world_size=st.integers(1, 8))
def test_one_process_trainers_compute_one_devices_gradient(trainer: str, case: dict[str, Any], world_size: int) -> None:
    equal, ratio = in_process(trainer, world_size, case)
    assert equal
    assert ratio <= 1


@pytest.fixture(scope="module")
def groups(pool: Pool) -> Iterator[dict[int, Group]]:
    """One group of gloo ranks for each world size, reused by all examples."""
    made = {k: pool.launch(f"ranks-{k}", k) for k in RANKS}
    for group in made.values():
        group.wait_connected()
    yield made
    for group in made.values():
        group.close()


def on_ranks(group: Group, trainer: str, case: dict[str, Any], folder: Path = Path()) -> dict[str, Any]:
    arm = {
        "trainer": trainer,
        "processes": "per-device",
        "world_size": group.size,
        "devices": ["cpu"] * group.size,
        "pinned": [],
        "backend": "gloo",
    }
    return group.request("check", arm=arm, case=case, folder=str(folder))[0]


def worst(answer: dict[str, Any]) -> float:
    return max(deviation["ratio"] for deviation in answer["deviations"])


@pytest.mark.parametrize("world_size", RANKS)
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases())
def test_ddp_computes_one_devices_gradient_on_real_ranks(
    groups: dict[int, Group], world_size: int, case: dict[str, Any]
) -> None:
    answer = on_ranks(groups[world_size], "ddp", case)
    assert answer["replicas_equal"]
    assert worst(answer) <= 1, answer


CASE = {
    "model": "toy",
    "input_shape": [5],
    "classes": 2,
    "init": "default",
    "dtype": "float64",
    "seed": 3,
    "lr": 0.1,
    "batches": [13, 5, 8],
}


def test_mean_of_means_is_found_on_uneven_shards(groups: dict[int, Group]) -> None:
    """13 = 7 + 6: the mean of the ranks' means is not the mean."""
    assert worst(on_ranks(groups[2], HERE + "MeanOfMeans", CASE)) > 1e6


def test_mean_of_means_is_right_on_even_shards(groups: dict[int, Group]) -> None:
    """Which is why hand-picked even batches never found it."""
    assert worst(on_ranks(groups[2], HERE + "MeanOfMeans", CASE | {"batches": [8, 4]})) <= 1


def test_a_missing_exchange_is_found(groups: dict[int, Group]) -> None:
    answer = on_ranks(groups[2], HERE + "NoExchange", CASE)
    assert not answer["replicas_equal"]
    assert worst(answer) > 1e6


@pytest.mark.parametrize(("trainer", "right"), [("Adam", True), ("AdamWithoutExchange", False)])
def test_oracle_self_compares_with_the_same_class_on_one_device(
    groups: dict[int, Group], tmp_path: Path, trainer: str, right: bool
) -> None:
    assert on_ranks(groups[1], HERE + trainer, CASE, tmp_path)["deviations"] == []
    answer = on_ranks(groups[2], HERE + trainer, CASE, tmp_path)
    assert len(answer["deviations"]) == len(CASE["batches"])
    assert (worst(answer) <= 1) is right


def test_a_wrong_gradient_of_one_part_in_a_million_is_found() -> None:
    """The bound is tight: it leaves room for rounding and for nothing else."""
    case = CASE | {"batches": [8]}
    arm = {"trainer": "single", "processes": "one", "world_size": 1}
    taken = properties.trajectory(0, [torch.device("cpu")], arm, case)
    before, after = taken.parameters
    off = [b + (a - b) * (1 + 1e-6) for b, a in zip(before, after, strict=True)]
    wrong = properties.Trajectory([before, off], True, "sgd", None)
    assert max(d.ratio for d in properties.against_sgd(wrong, case)) > 100


def test_nan_is_wrong() -> None:
    case = CASE | {"batches": [8]}
    before = [torch.zeros(2, 5, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)]
    nan = [torch.full_like(value, float("nan")) for value in before]
    wrong = properties.Trajectory([before, nan], True, "sgd", None)
    assert max(d.ratio for d in properties.against_sgd(wrong, case)) == float("inf")
