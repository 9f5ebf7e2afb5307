"""Checks that compare floats hold on a device that rounds otherwise; `python -m tests.right --of rounding` has more."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from reference.loss import token_loss
from suite.checks.draw import TEXT_CHECKS, WITH_ONE_DEVICE
from suite.properties import nets
from suite.properties.answers import RIGHT
from suite.properties.case import Case, Net, Text
from suite.properties.seen import derivative, flat
from suite.room import devices
from tests.right.__main__ import block
from tests.support import other_device
from tests.support.in_this_process import InThisProcess
from tests.support.other_device import OtherDevice

pytestmark = pytest.mark.usefixtures("one_intra_op_thread")

HERE = "tests.support.other_device:"
CASES = {
    "smooth": Case(1, (5,), net=Net(inputs=3, hidden=(4, 3), tied=True, buffer=True)),
    "convolution": Case(1, (5,), net=Net(inputs=32, conv=True, hidden=(4,))),
    "layer": Case(1, (5,), net=Net(inputs=3, hidden=(5,), norm="layer")),
    "batch": Case(1, (5,), net=Net(inputs=3, hidden=(4,), norm="batch")),
    "layer_texts": Case(1, (5,), text=Text(4, 3, 4, blocks=2, norm="layer", weighted=True, ignored=True)),
    "rms_texts": Case(1, (5,), text=Text(4, 3, 4, blocks=2, norm="rms", rotary=True, tied=True)),
}
# What the checks once found wrong: the scores before a tanh cancel; a language model of one text, of which nothing but
# weights and scores can be moved; a net whose scores are nearly those of its buffer; plain SGD that diverges.
ONCE = [
    ("Single", "identity", {"batches": [7, 1], "seed": 330, "net": {"hidden": [1, 1], "classes": 4, "tied": True}}),
    (
        "SingleTokens",
        "low_precision",
        {"batches": [3, 2, 1, 1], "seed": 2492, "dtype": "bfloat16", "lr": 1.0}
        | {"text": {"vocabulary": 3, "blocks": 2, "norm": "layer", "silent": 2}},
    ),
    (
        "Single",
        "low_precision",
        {"batches": [2, 1], "seed": 122, "dtype": "bfloat16"}
        | {"net": {"inputs": 32, "hidden": [2, 1], "conv": True, "buffer": True}},
    ),
    ("SingleTokens", "trajectory", {"batches": [1, 1, 1, 1, 1], "text": {"blocks": 2, "tied": True}}),
]


@pytest.fixture
def here() -> InThisProcess:
    """A bench without processes."""
    return InThisProcess(None, devices.one_host(devices.parse("cpu")))


def gradient(case: Case) -> Tensor:
    net, (X, y) = nets.build(case), nets.minibatch(case, 0)
    scores = net(X)
    return flat(derivative(net, F.cross_entropy(scores, y) if case.text is None else token_loss(scores, y)))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("toward", [-1, 0, 1])
def test_the_other_device_computes_the_same_up_to_rounding(case: Case, toward: int) -> None:
    right = gradient(case)
    with OtherDevice(2, toward):
        other, again = gradient(case), gradient(case)
    assert torch.equal(other, again)
    assert not torch.equal(other, right)
    assert float((other - right).abs().max()) < 1e-12 * float(right.abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("toward", [-1, 0, 1])
def test_a_function_is_off_by_two_units_in_the_last_place_at_most(dtype: torch.dtype, toward: int) -> None:
    x = torch.cat([torch.randn(1000, generator=torch.Generator().manual_seed(1)).to(dtype), torch.zeros(1)]).to(dtype)
    exact = x.exp()
    with OtherDevice(2, toward):
        off = (x.exp() - exact) / (torch.nextafter(exact, torch.full_like(exact, torch.inf)) - exact)
    assert set(off.tolist()) == ({-2, -1, 0, 1, 2} if toward == 0 else {0, 2 * toward})
    assert off[-1] == 0


def test_what_has_fewer_digits_is_rounded_once() -> None:
    x = torch.tensor([[3.0, 2.0, -1.0]], dtype=torch.bfloat16)
    with OtherDevice(2):
        assert torch.equal(x.log_softmax(1), x.float().log_softmax(1).bfloat16())


@pytest.mark.parametrize(("name", "check", "case"), ONCE, ids=[f"{name}-{check}" for name, check, _ in ONCE])
def test_right_trainers_that_were_found_wrong_are_not(
    here: InThisProcess, name: str, check: str, case: dict[str, object]
) -> None:
    size = 1 if check == "identity" else 2
    assert here.judge(HERE + name, check, Case.from_json({"world_size": size, **case})) == RIGHT


@pytest.mark.parametrize("check", WITH_ONE_DEVICE)
@pytest.mark.parametrize("name", ["Single", "SingleTokens", pytest.param("Scratch", marks=pytest.mark.nightly)])
def test_no_check_finds_a_right_trainer_on_the_other_device_wrong(here: InThisProcess, name: str, check: str) -> None:
    result = here.search(HERE + name, check, examples=4)
    assert result.failure == ""
    assert bool(result.examples) == (
        (check in TEXT_CHECKS or name != "SingleTokens") and (check, name) != ("state", "Scratch")
    )


@pytest.mark.parametrize(("name", "check"), [("Single", "gradient"), ("Single", "identity"), ("Scratch", "trajectory")])
def test_functions_that_are_off_by_200_units_are_found(
    here: InThisProcess, monkeypatch: pytest.MonkeyPatch, name: str, check: str
) -> None:
    monkeypatch.setattr(getattr(other_device, name), "ulps", 200)
    assert "where rounding explains" in here.search(HERE + name, check, examples=30, shrink=False).failure


def test_a_block_counts_its_cases_by_dtype_and_keeps_the_nearest_errors(here: InThisProcess) -> None:
    first, second = (block(here, f"{HERE}SingleTokens", "gradient", seed, 5) for seed in (1, 2))
    assert [sum(line["dtypes"].values()) for line in (first, second)] == [first["cases"], second["cases"]] == [5, 5]
    assert not first["finding"]
    assert first["nearest"]
    assert all(0 <= share < 1 for share in first["nearest"].values())
