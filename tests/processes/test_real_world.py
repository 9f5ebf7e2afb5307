"""The class of docs/real-world-trainer.md, on real gloo ranks, and what becomes of it when a line is written wrong."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import distributed as dist

from reference.load import load_object
from reference.scatter import shard_bounds
from suite.checks.bench import Bench
from tests.support import on_ranks
from tests.support.project import REPOSITORY
from tests.support.strategies import CLASSES, CPU, smooth_net

PAGE = REPOSITORY / "docs" / "real-world-trainer.md"
WORLD_SIZES = [1, 2, 3]
BATCHES = [13, 4, 2]  # on 3 ranks shards of 5, 5, 3, of 2, 2, 0 and of 1, 1, 0, each in 3 pieces
CLIP = "        torch.nn.utils.clip_grad_norm_(self.net.parameters(), self.max_norm)\n"
LAST_PASS = "        total += self.accumulate(*pieces[-1], global_batch_size)"

# Name -> what is replaced by what in the page's code.
VARIANTS: dict[str, list[tuple[str, str]]] = {
    "right": [],
    "right in float32": [],
    "right without autocast": [("dtype=torch.bfloat16)", "dtype=torch.bfloat16, enabled=False)")],
    "never clipped": [("max_norm = 1.0", "max_norm = 1e9")],
    "mean of micro-batches": [
        (", y) / global_batch_size", ", y) / (max(1, len(y)) * self.micro_batches * dist.get_world_size())")
    ],
    "clipped before the exchange": [(CLIP, ""), (LAST_PASS, CLIP + LAST_PASS)],
    "no_sync on every pass": [(LAST_PASS, "        with self.net.no_sync():\n    " + LAST_PASS)],
}


def train(folder: str, variants: list[str]) -> dict[str, Any]:
    """Take three steps with each variant; the ranks start from different weights, of which rank 0's count."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    answers = {}
    for number, name in enumerate(variants):
        dtype = torch.float32 if name.endswith("float32") else torch.float64
        trainer_class = cast(Any, load_object(f"{folder}/variant_{number}.py:RealWorldTrainer"))
        torch.manual_seed(rank)
        trainer = trainer_class(smooth_net().to(dtype), [CPU], lr=0.05)
        outputs = set()
        trainer.replicas[0].register_forward_hook(lambda _, __, output, seen=outputs: seen.add(str(output.dtype)))
        trajectory = [values(trainer)]
        for size in BATCHES:
            X = 5 * torch.randn(size, 6, generator=torch.Generator().manual_seed(size), dtype=dtype)
            y = torch.arange(size) % CLASSES
            mine = shard_bounds(size, world_size, rank)
            trainer.step(X[mine], y[mine], size)
            trajectory.append(values(trainer))
        answers[name] = {"trajectory": trajectory, "outputs": sorted(outputs)}
    return answers


def values(trainer: Any) -> list[float]:
    """Return all parameters in a row; JSON keeps every bit of them."""
    row: list[float] = torch.cat([p.detach().flatten() for p in trainer.replicas[0].parameters()]).tolist()
    return row


@pytest.fixture(scope="module")
def code() -> str:
    """The page's one block of Python."""
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    return cast(str, block)


@pytest.fixture(scope="module")
def trained(code: str, bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Any]]:
    """What `train` answers, by world size and rank."""
    folder = tmp_path_factory.mktemp("ranks")
    for number, replacements in enumerate(VARIANTS.values()):
        variant = code
        for old, new in replacements:
            assert variant.count(old) == 1, f"the page no longer has exactly one {old!r}"
            variant = variant.replace(old, new)
        (folder / f"variant_{number}.py").write_text(variant)
    arguments = {"folder": str(folder), "variants": list(VARIANTS)}
    return on_ranks.run(bench, "tests.processes.test_real_world:train", WORLD_SIZES, **arguments)


@pytest.mark.parametrize("check", ["start", "gradient", "trajectory", "identity", "loss", "batch_norm", "dropout"])
def test_the_class_passes_the_checks(code: str, bench: Bench, tmp_path: Path, check: str) -> None:
    """As somebody else's would, by its path."""
    (tmp_path / "real.py").write_text(code)
    assert bench.search(f"{tmp_path}/real.py:RealWorldTrainer", check, examples=10).failure == ""


def worst(trained: dict[int, list[Any]], variant: str, world_size: int) -> float:
    """Return how far any step's parameters are from one rank's, over sqrt(eps) of the largest change: above 1 is wrong.

    Half of the digits, because Adam divides by the gradient's own size and so may amplify rounding.
    """
    start, *alone = trained[1][0][variant]["trajectory"]
    ratio = 0.0
    for expected, found in zip(alone, trained[world_size][0][variant]["trajectory"][1:], strict=True):
        change = max(abs(e - s) for e, s in zip(expected, start, strict=True))
        error = max(abs(e - f) for e, f in zip(expected, found, strict=True))
        ratio = max(ratio, error / (math.sqrt(torch.finfo(torch.float64).eps) * change))
    return ratio


def agree(trained: dict[int, list[Any]], variant: str, world_size: int) -> bool:
    first, *others = (answer[variant]["trajectory"] for answer in trained[world_size])
    return all(other == first for other in others)


@pytest.mark.parametrize("world_size", WORLD_SIZES[1:])
def test_any_number_of_ranks_is_one_rank(trained: dict[int, list[Any]], world_size: int) -> None:
    assert worst(trained, "right", world_size) <= 1
    assert agree(trained, "right", world_size)


@pytest.mark.parametrize("world_size", WORLD_SIZES[1:])
@pytest.mark.parametrize("mistake", ["mean of micro-batches", "clipped before the exchange", "no_sync on every pass"])
def test_a_typical_mistake_is_found(trained: dict[int, list[Any]], mistake: str, world_size: int) -> None:
    """Each errs in the first digits, not by a little more than it may."""
    assert worst(trained, mistake, world_size) > 1e4
    # Only ranks that do not exchange at all drift apart: the other two are the same mistake on every rank.
    assert agree(trained, mistake, world_size) is (mistake != "no_sync on every pass")


def test_every_part_of_the_trainer_takes_part(trained: dict[int, list[Any]]) -> None:
    """Clipping is active here, or doing it in the wrong place could not show."""
    (answer,) = trained[1]
    assert answer["right"]["trajectory"] != answer["never clipped"]["trajectory"]


def test_autocast_leaves_float64_alone(trained: dict[int, list[Any]]) -> None:
    for ranks in trained.values():
        for answer in ranks:
            assert answer["right"]["outputs"] == ["torch.float64"]
            assert answer["right"]["trajectory"] == answer["right without autocast"]["trajectory"]


def test_in_float32_autocast_computes_in_bfloat16_and_replicas_agree(trained: dict[int, list[Any]]) -> None:
    for k, ranks in trained.items():
        for answer in ranks:
            assert answer["right in float32"]["outputs"] == ["torch.bfloat16"]
            assert all(math.isfinite(value) for row in answer["right in float32"]["trajectory"] for value in row)
        assert agree(trained, "right in float32", k)


def test_the_page_names_what_is_tested_here(code: str) -> None:
    """The class fits the contract by its text alone: no import of this project."""
    assert not re.search(r"^(from|import) (reference|suite)", code, flags=re.MULTILINE)
    assert '## What `oracle = "self"` compares' in PAGE.read_text()
