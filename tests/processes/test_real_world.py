"""docs/examples/real_world_trainer.py on real gloo ranks: right as it is, and found when a line is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import count
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

EXAMPLE = REPOSITORY / "docs" / "examples" / "real_world_trainer.py"
CLIP = "        torch.nn.utils.clip_grad_norm_(self.net.parameters(), self.max_norm)\n"
UPDATE = "        self.optimizer.step()\n        return total\n"
LAST_PASS = "        total += self.accumulate(*pieces[-1], global_batch_size)"

# Name -> what is replaced by what in the code. The smaller norm makes clipping active in generated cases.
MISTAKES: dict[str, list[tuple[str, str]]] = {
    "mean of micro-batches": [
        ("32)), y) / global_batch_size", "32)), y) / (max(1, len(y)) * self.micro_batches * dist.get_world_size())")
    ],
    "clipped before the exchange": [
        ("max_norm = 1.0", "max_norm = 0.1"),
        (CLIP + UPDATE, UPDATE),
        (LAST_PASS, CLIP + LAST_PASS),
    ],
    "no_sync on every pass": [(LAST_PASS, "        with self.net.no_sync():\n    " + LAST_PASS)],
}


@pytest.fixture(scope="module")
def code() -> str:
    """The example, which fits the contract without an import of this project."""
    text = EXAMPLE.read_text(encoding="utf-8")
    assert not re.search(r"^(from|import) (reference|suite)", text, flags=re.MULTILINE)
    return text


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Return what makes a file of code, and how a worker loads its class; all share one folder's ranks."""
    folder, number = tmp_path_factory.mktemp("real"), count()

    def write(code: str) -> str:
        path = folder / f"real_{next(number)}.py"
        path.write_text(code)
        return f"{path}:RealWorldTrainer"

    return write


@pytest.fixture(scope="module")
def example(code: str, written: Callable[[str], str]) -> str:
    return written(code)


CHECKED = ["start", "trajectory", "identity", "loss", "batch_norm", "dropout", "low_precision", "resume"]


@pytest.mark.parametrize("check", CHECKED)
def test_the_class_passes_the_checks(example: str, bench: Bench, check: str) -> None:
    outcome = bench.search(example, check, examples=5)
    assert outcome.failure == ""
    assert outcome.examples


def test_the_class_passes_the_check_of_trajectories_with_active_clipping(
    code: str, bench: Bench, written: Callable[[str], str]
) -> None:
    clipping = code.replace("max_norm = 1.0", "max_norm = 0.1")
    assert bench.search(written(clipping), "trajectory", examples=5).failure == ""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_typical_mistake_is_found(code: str, bench: Bench, written: Callable[[str], str], mistake: str) -> None:
    for old, new in MISTAKES[mistake]:
        assert code.count(old) == 1, f"the example no longer has exactly one {old!r}"
        code = code.replace(old, new)
    outcome = bench.search(written(code), "trajectory", shrink=False)
    assert outcome.failure
    assert not outcome.crashed


def step_in(trainer: str, dtype: str) -> dict[str, Any]:
    """Take a step on this rank; return the dtypes that forwards returned, and all parameters in a row."""
    torch.manual_seed(dist.get_rank())
    made = cast(Any, load_object(trainer))(smooth_net().to(getattr(torch, dtype)), [CPU], lr=0.05)
    outputs: set[str] = set()
    made.replicas[0].register_forward_hook(lambda _, __, output: outputs.add(str(output.dtype)))
    X, y = torch.ones(13, 6, dtype=getattr(torch, dtype)), torch.arange(13) % CLASSES
    mine = shard_bounds(13, dist.get_world_size(), dist.get_rank())
    made.step(X[mine], y[mine], 13)
    row = torch.cat([parameter.detach().flatten() for parameter in made.replicas[0].parameters()])
    assert row.isfinite().all()
    return {"outputs": sorted(outputs), "parameters": row.tolist()}


@pytest.mark.parametrize(("dtype", "computed"), [("float64", "torch.float64"), ("float32", "torch.bfloat16")])
def test_autocast_computes_in_bfloat16_for_float32_only_and_replicas_agree(
    example: str, bench: Bench, dtype: str, computed: str
) -> None:
    function = "tests.processes.test_real_world:step_in"
    first, second = on_ranks.run(bench, function, [2], trainer=example, dtype=dtype)[2]
    assert first["outputs"] == [computed]
    assert first == second


def test_the_page_on_correctness_explains_what_the_checks_compare() -> None:
    page = (REPOSITORY / "docs" / "correctness.md").read_text(encoding="utf-8")
    assert '## What `oracle = "self"` compares' in page
