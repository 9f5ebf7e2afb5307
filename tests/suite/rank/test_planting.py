"""Planted faults: a step slower by what was asked, and a gradient that only the gradient checks see."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from torch import nn

from reference.trainers import TRAINERS, trains
from suite.checks.bench import Bench
from suite.properties.contract import ContractError, load_trainer
from suite.rank.planting import slowed, wrong

HERE = f"{__file__}:"
CPU = torch.device("cpu")


class Clocked:
    """Not a real trainer: its step spins for 2 ms and keeps how long that was."""

    processes = "one"
    oracle = "self"

    def __init__(self, model: nn.Module, devices: list[torch.device], *, lr: float) -> None:
        self.replicas = [model for _ in devices]
        self.step_ns = 0

    def step(self, X: torch.Tensor, y: torch.Tensor, global_batch_size: int) -> float:
        start_ns = time.perf_counter_ns()
        while time.perf_counter_ns() < start_ns + 2_000_000:
            pass
        self.step_ns = time.perf_counter_ns() - start_ns
        return 0.5


def timed(planted: type[Clocked], devices: int = 2) -> tuple[int, int]:
    """Nanoseconds of a step, all of it and without what was planted."""
    trainer = planted(nn.Linear(1, 1), [CPU] * devices, lr=0.1)
    X, y = torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64)
    start_ns = time.perf_counter_ns()
    assert trainer.step(X, y, 4) == 0.5, "what the step returns is handed on"
    return time.perf_counter_ns() - start_ns, trainer.step_ns


def test_a_slowed_step_takes_at_least_the_share_more() -> None:
    whole_ns, step_ns = timed(slowed(HERE + "Clocked", 0.5))
    assert whole_ns >= 1.5 * step_ns


def test_it_is_slow_at_one_world_size_only() -> None:
    """At another one nothing is added; the fastest of many steps shows it on any machine, and 400 % would be seen."""
    slow = slowed(HERE + "Clocked", 4.0, at=2)
    whole_ns, step_ns = timed(slow, devices=2)
    assert whole_ns >= 5 * step_ns
    assert min(whole / step for whole, step in (timed(slow, devices=1) for _ in range(20))) < 2


def test_only_every_tenth_step_is_slowed() -> None:
    trainer = slowed(HERE + "Clocked", 4.0, every=10)(nn.Linear(1, 1), [CPU], lr=0.1)
    X, y = torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64)
    slow = []
    for number in range(1, 31):
        start_ns = time.perf_counter_ns()
        trainer.step(X, y, 4)
        if time.perf_counter_ns() - start_ns >= 5 * trainer.step_ns:
            slow.append(number)
    at_once = {number % 10 for number in range(1, 31) if number not in slow}
    assert at_once == set(range(1, 10)), "a busy machine can slow one of three, and never lets a planted one be fast"


def test_it_stays_the_trainer_it_was() -> None:
    planted = slowed(HERE + "Clocked", 0.5)
    assert (planted.processes, planted.oracle) == ("one", "self")
    assert issubclass(slowed("ddp", 0.5), load_trainer("ddp"))


@pytest.mark.parametrize("share", [-0.1, float("nan")])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match=rf"share {share}: a slowdown is a share of the step's time, 0 or more"):
        slowed("ddp", share)


def test_what_is_no_trainer_is_refused() -> None:
    with pytest.raises(ContractError, match="`processes` is missing"):
        slowed("torch.nn:Linear", 0.1)
    with pytest.raises(ContractError, match="`processes` is missing"):
        wrong("torch.nn:Linear")


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with every trainer made wrong, so that all share one folder's ranks."""
    path = tmp_path_factory.mktemp("planted") / "planted.py"
    classes = [f"of_{trainer} = planting.wrong({trainer!r})\n" for trainer in TRAINERS]
    path.write_text("from suite.rank import planting\n\n" + "".join(classes))
    return path


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_wrong_gradient_is_seen_in_every_trainer_and_by_nothing_else(
    bench: Bench, planted: Path, trainer: str
) -> None:
    """One device alone is right, and replicas agree to the bit: without the check of gradients it would go unseen."""
    # With the squares of a z-loss, steps of twice the length diverge, and what is not a number equals nothing.
    diverges = trains(trainer) == ("tokens",)
    for check in ("start", "identity", *(() if diverges else ("replicas", "inputs"))):
        assert not bench.search(f"{planted}:of_{trainer}", check, examples=3).failure
    assert "the gradient of" in bench.search(f"{planted}:of_{trainer}", "gradient", shrink=False).failure
