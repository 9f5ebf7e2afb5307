"""The numbers, examples and names of docs/your-trainer.md on three ways to split training come from the code."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from torch import nn

from reference.models.init import build
from reference.models.lenet import SHAPES
from tests.support.project import REPOSITORY

PAGE = (REPOSITORY / "docs" / "your-trainer.md").read_text(encoding="utf-8")
SECTION = " ".join(PAGE.partition("## Three ways to split training")[2].split())


def inputs_of_layers(name: str) -> list[int]:
    """Return how many numbers of a sample each linear layer and 3x3 convolution reads, in order."""
    net, widths = build(name).eval(), []
    for layer in net.modules():
        if isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv2d) and layer.kernel_size == (3, 3)):
            layer.register_forward_pre_hook(lambda _, inputs: widths.append(inputs[0][0].numel()))
    net(torch.zeros(1, 1, 28, 28))
    return widths


def test_the_numbers_on_the_parallelism_page_are_worked_out_again() -> None:
    """The numbers with a thousands separator in the section are those that the code's own shapes give."""
    batch, k, float_bytes = 256, 8, 4
    lenet, resnet = (sum(p.numel() for p in build(name).parameters()) for name in ("lenet", "resnet18"))
    gradients = [float_bytes * lenet, float_bytes * resnet]

    # LeNet is a function, so its sides are followed here: 26 -> 13 -> 9 -> 4.
    sides, out1, out2 = (26, 13, 9, 4), SHAPES["W1"][0], SHAPES["W2"][0]
    widths = [out1 * sides[1] ** 2, out2 * sides[3] ** 2, SHAPES["W3"][1]]
    assert widths[1] == SHAPES["W3"][0]
    resnet_widths = inputs_of_layers("resnet18")
    after_block_4 = resnet_widths[9]  # the stem and two convolutions a block read before it
    cuts = [2 * float_bytes * batch * width for width in (widths[1], after_block_4)]
    layers = [float_bytes * batch * n for n in (sum(widths), sum(resnet_widths[1:]))]
    on_page = {int(number.replace(",", "")) for number in re.findall(r"\d{1,3}(?:,\d{3})+", SECTION)}
    assert on_page == {*gradients, *cuts, *layers}

    work = [
        out1 * sides[0] ** 2 * math.prod(SHAPES["W1"][1:]),
        out2 * sides[2] ** 2 * math.prod(SHAPES["W2"][1:]),
        math.prod(SHAPES["W3"]),
        math.prod(SHAPES["W4"]),
    ]
    for phrase in (
        f"{cuts[0]:,} after the second pooling ({100 * sum(work[:2]) / sum(work):.1f} % of the work before it)",
        f"ResNet-18 {2 * gradients[1] / 1e6:.1f} MB",
        f"10^10 parameters {8 * 10**10 / 1e9:.0f} GB",
        f"two moments {16 * 10**10 / 1e9:.0f} GB",
        f"at k = 8 that is {8 * 10**10 / k / 1e9:.0f} GB and {16 * 10**10 / k / 1e9:.0f} GB",
    ):
        assert phrase in SECTION, phrase


def test_the_batch_norm_example_on_the_parallelism_page_is_worked_out_again(capsys: pytest.CaptureFixture[str]) -> None:
    command = re.search(r'python -c "(import torch; x .*)"$', PAGE, re.MULTILINE)
    assert command is not None
    exec(command[1])
    assert capsys.readouterr().out == "[3.5, 31.5, 72.5] 28.5\n"
    of_shards = [float(np.mean(part)) for part in np.split(np.arange(10) ** 2, [4, 8])]
    assert "3.5, 31.5 and 72.5" in SECTION
    assert f"the mean of those is {np.mean(of_shards):.2f}; the mean of all is {np.mean(np.arange(10) ** 2)}" in SECTION


def test_the_parallelism_page_names_what_is_there() -> None:
    """Every file and function that the text names exists."""
    named = re.findall(r"`((?:\w+/)*\w+\.py)(?:: (\w+)(?:\.(\w+))?)?`", " ".join(PAGE.split()))
    assert len(named) > 10
    for path, *names in named:
        places = [REPOSITORY / folder / path for folder in ("", "reference", "reference/all_reduce")]
        source = next((each.read_text() for each in places if each.is_file()), None)
        assert source is not None, path
        for name in filter(None, names):
            assert re.search(rf"(def|class) {name}\b", source), (path, name)
