"""docs/seeds.md has every row with a command that exists and shows it; docs/your-trainer.md has numbers of the code."""

from __future__ import annotations

import importlib
import math
import re
import shlex
import sys

import numpy as np
import pytest
import torch
from torch import nn

from docs.evidence import grid, two_devices
from reference.book import BookRun
from reference.models.init import build
from reference.models.lenet import SHAPES
from suite.checks.draw import CHECKS
from suite.cli import pytest_run
from tests.support.project import REPOSITORY
from tests.support.strategies import CPU

ROOT = REPOSITORY
PAGE = (ROOT / "docs" / "seeds.md").read_text(encoding="utf-8")

ROWS = {
    "000": "lenet params allreduce scatter train-batch train grid figures reasons advice resnet xavier typo",
    "001": "toy table wrap to",
    "002": "splits memory steps bn overlap mxnet E1 E2 E3 E4",
    "003": "init split trainer loss table net E1 E2",
    "004": "resnet init train ratio epochs figures eval E1 E2",
}
"""The documents' rows: the last digit of a document's number comes before each."""

OWN_TEST = {
    "0-lenet": "notebooks_sizes",
    "0-params": "get_params",
    "0-train-batch": "functional_lenet",
    "0-typo": "other_name",
    "1-to": "shuffled",
    "2-memory": "peak",
    "4-figures": "books_second_run",
    "2-steps": "resnet18_on_any_split",
    "2-E3": "different_parameters_on_different_devices",
    "3-loss": "falls_back",
    "4-resnet": "torchvisions_basic_block",
    "4-init": "equal_seeds",
    "4-train": "resnet18_on_any_split",
    "4-epochs": "numbers_of_epochs",
    "4-E1": "one_process",
}
"""Row -> part of the name of a test that its command has to select: some once selected all but their own."""


def shown_by() -> dict[str, list[str]]:
    """The commands of each row, in the table's last column."""
    rows: dict[str, list[str]] = {}
    for line in PAGE.splitlines():
        if match := re.match(r"\| ((?:\d-\S+ ?)+)\|.*\|(.*)\|$", line):
            rows |= dict.fromkeys(match[1].split(), re.findall(r"`((?:pytest|python) [^`]*)`", match[2]))
    return rows


COMMANDS = shown_by()
FENCED = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
ALL = sorted({*FENCED, *(command for commands in COMMANDS.values() for command in commands)})


def of_files(command: str) -> list[str]:
    """The test functions that a command of files selects, by their names: nothing is imported for it."""
    arguments = shlex.split(command)[1:]
    words = arguments[arguments.index("-k") + 1].split(" or ") if "-k" in arguments else [""]
    sources = [(ROOT / argument).read_text(encoding="utf-8") for argument in arguments if argument.startswith("tests/")]
    names = [name for source in sources for name in re.findall(r"^ *def (test_\w+)", source, re.MULTILINE)]
    return [name for name in names if any(word in name for word in words)]


def test_every_row_of_the_documents_has_a_command() -> None:
    expected = {f"{document[-1]}-{name}" for document, names in ROWS.items() for name in names.split()}
    assert set(COMMANDS) == expected
    assert all(COMMANDS.values())


@pytest.mark.parametrize("command", [command for command in ALL if command.startswith("pytest tests/")])
def test_a_command_of_test_files_selects_something(command: str) -> None:
    assert of_files(command)


@pytest.mark.parametrize("row", OWN_TEST)
def test_a_row_names_a_test_of_its_own(row: str) -> None:
    commands = [command for command in COMMANDS[row] if command.startswith("pytest tests/")]
    assert any(OWN_TEST[row] in name for command in commands for name in of_files(command))


@pytest.mark.parametrize("command", [command for command in ALL if command.startswith("pytest -m")])
@pytest.mark.usefixtures("two_cores")
def test_a_command_of_the_gate_has_options_and_names_that_are_there(command: str) -> None:
    arguments = shlex.split(command)[1:]
    pytest_run.settings(arguments)  # ends with pytest's status where one is not
    if "-k" in arguments:
        words = arguments[arguments.index("-k") + 1].split(" or ")
        assert all(any(word in check for check in CHECKS) for word in words)


@pytest.mark.parametrize("command", [command for command in ALL if command.startswith("python")])
def test_a_python_command_names_a_module_and_options_that_are_there(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, dash_m, module, *arguments = shlex.split(command.split(">")[0])
    assert dash_m == "-m"
    if module == "tests.mutants":
        assert set(arguments) <= {path.stem for path in (ROOT / "tests" / "mutants").iterdir()}
        return
    monkeypatch.setattr(sys, "argv", [module, *[each for each in arguments if module == "suite"][:1], "--help"])
    main = importlib.import_module(f"{module}.__main__" if module == "suite" else module).main
    with pytest.raises(SystemExit, match="0"):
        main()
    said = capsys.readouterr().out
    for argument in arguments:
        assert not argument.startswith("--") or re.search(rf"{argument}\b", said), argument


def test_the_grid_has_the_documents_runs_and_puts_their_figures_beside_ours() -> None:
    """Trainer, devices, batch and seconds; every run with its own epochs."""
    runs = list(grid.runs())
    found = [
        (workload, k, BookRun((0.5,) * workload.epochs, (9.0, *(2.0,) * (workload.epochs - 1)), ("cpu",)))
        for workload, k in runs
    ]
    rows = [
        line.split(" | ")
        for line in grid.table(found).splitlines()
        if line.startswith(("| scratch", "| data", "| glu"))
    ]
    assert [(row[0][2:], row[1], row[2]) for row in rows] == [
        ("scratch, 1", "256, 0.2", "2.6"),
        ("scratch, 2", "256, 0.2", "2.6"),
        ("scratch, 2", "512, 0.3", "2.4"),
        ("data_parallel, 1", "256, 0.1", "12.2"),
        ("data_parallel, 2", "512, 0.2", "7.5"),
        ("gluon, 1", "256, 0.1", "14.2"),
        ("gluon, 2", "256, 0.1", "10.2"),
        ("gluon, 2", "512, 0.2", "8.1"),
    ]
    assert [row[6] for row in rows] == ["2.00"] * 8, "the first epoch warms up"
    assert [workload.epochs for workload, _ in runs] == [10] * 5 + [5] * 3


@pytest.mark.usefixtures("one_intra_op_thread")
def test_a_run_of_the_grid_trains_a_fresh_narrow_net_on_digits() -> None:
    """The Gluon chapter's last run, cut to one step."""
    workload, k = list(grid.runs())[-1]
    run = grid.train_narrow(workload, k, 0, devices=[CPU] * k, num_epochs=1, max_steps=1, report=str)
    assert run.devices == ("cpu", "cpu")
    assert 0 <= run.accuracies[0] < 0.5


@pytest.mark.usefixtures("one_intra_op_thread")
def test_peak_bytes_are_those_alive_at_once_in_the_step() -> None:
    """4 MB stay, 3 come and go one after the other; what making the thing took besides is not in it."""

    class Held:
        def __init__(self) -> None:
            torch.ones(5_000_000)
            self.kept = torch.ones(1_000_000)

        def step(self) -> None:
            for _ in range(2):
                torch.ones(750_000)

    assert two_devices.peak_bytes(Held, Held.step, CPU) == pytest.approx(7e6, abs=1e3)
    assert two_devices.peak_bytes(Held, Held.step, CPU) == pytest.approx(7e6, abs=1e3), "an earlier call counts nothing"


YOUR_TRAINER = (REPOSITORY / "docs" / "your-trainer.md").read_text(encoding="utf-8")
SECTION = " ".join(YOUR_TRAINER.partition("## Three ways to split training")[2].split())


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
    command = re.search(r'python -c "(import torch; x .*)"$', YOUR_TRAINER, re.MULTILINE)
    assert command is not None
    exec(command[1])
    assert capsys.readouterr().out == "[3.5, 31.5, 72.5] 28.5\n"
    of_shards = [float(np.mean(part)) for part in np.split(np.arange(10) ** 2, [4, 8])]
    assert "3.5, 31.5 and 72.5" in SECTION
    assert f"the mean of those is {np.mean(of_shards):.2f}; the mean of all is {np.mean(np.arange(10) ** 2)}" in SECTION


def test_the_parallelism_page_names_what_is_there() -> None:
    """Every file and function that the text names exists."""
    named = re.findall(r"`((?:\w+/)*\w+\.py)(?:: (\w+)(?:\.(\w+))?)?`", " ".join(YOUR_TRAINER.split()))
    assert len(named) > 10
    for path, *names in named:
        places = [REPOSITORY / folder / path for folder in ("", "reference", "reference/all_reduce")]
        source = next((each.read_text() for each in places if each.is_file()), None)
        assert source is not None, path
        for name in filter(None, names):
            assert re.search(rf"(def|class) {name}\b", source), (path, name)
