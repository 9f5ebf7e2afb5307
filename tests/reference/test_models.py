"""The networks, their initialisation, and finding them by name."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from reference.load import load_object
from reference.models.init import INITS, build
from reference.models.lenet import LeNet, lenet, lenet_params
from reference.models.resnet import Residual
from tests.support.project import REPOSITORY

pytestmark = pytest.mark.usefixtures("one_intra_op_thread")


def shapes_through(net: nn.Sequential, X: Tensor) -> list[tuple[int, ...]]:
    """Return the sample's shape after each layer."""
    shapes = []
    for layer in net:
        X = layer(X)
        shapes.append(tuple(X.shape[1:]))
    return shapes


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("lenet", 129_068),
        ("resnet18", 11_175_818),
        ("gluon-resnet18", 2_777_868),
        ("toy", 12),
        ("gpt-tiny", 104_768),
        ("gpt", 88_886_016),
    ],
)
def test_parameter_counts(name: str, count: int) -> None:
    """The counts of LeNet and ResNet-18 are published; the others are counted by hand."""
    assert sum(param.numel() for param in build(name).parameters()) == count


def test_gpt_sees_no_later_token_and_predicts_nothing_at_the_start() -> None:
    """A head that shares the embedding's weight must not score tokens by themselves before anything is learned."""
    net, tokens = build("gpt-tiny", seed=1), torch.randint(32, (3, 64))
    changed = tokens.clone()
    changed[:, 40:] = (changed[:, 40:] + 1) % 32
    first, second = net(tokens), net(changed)
    assert first.shape == (3, 64, 32)
    torch.testing.assert_close(first[:, :40], second[:, :40])
    assert not torch.allclose(first[:, 40], second[:, 40])
    torch.testing.assert_close(net(tokens[:, :7]), first[:, :7])
    entropy = nn.functional.cross_entropy(first.flatten(0, 1), tokens.roll(-1, 1).flatten())
    assert entropy.item() == pytest.approx(math.log(32), abs=0.1)


def test_lenet_passes_through_the_notebooks_sizes() -> None:
    """28 -> 26 -> 13 -> 9 -> 4: W3 has 50 * 4 * 4 = 800 rows, so no other side but 4 fits."""
    assert lenet(torch.zeros(2, 1, 28, 28), lenet_params()).shape == (2, 10)
    assert lenet_params()[4].shape == (50 * 4**2, 128)


def test_lenet_params_are_small_normal_weights_and_zero_biases() -> None:
    """N(0, 0.01) from the given generator."""
    params = lenet_params(torch.Generator().manual_seed(1))
    again = lenet_params(torch.Generator().manual_seed(1))
    assert all(torch.equal(a, b) for a, b in zip(params, again, strict=True))
    assert all(not bias.any() for bias in params[1::2])
    assert params[4].std().item() == pytest.approx(0.01, rel=0.02)


def test_lenet_module_is_the_function_of_its_parameters() -> None:
    net = LeNet()
    for n in (0, 3):
        X = torch.randn(n, 1, 28, 28)
        assert torch.equal(net(X), lenet(X, list(net.parameters())))


def test_resnet18_keeps_28_then_halves_three_times() -> None:
    """No max-pooling: 28, 28, 14, 7, 4."""
    shapes = shapes_through(build("resnet18").eval(), torch.zeros(1, 1, 28, 28))  # type: ignore[arg-type]
    widths = [(64, 28, 28)] * 5 + [(128, 14, 14)] * 2 + [(256, 7, 7)] * 2 + [(512, 4, 4)] * 2
    assert shapes == [*widths, (512, 1, 1), (512,), (10,)]


def test_gluon_resnet18_is_the_chapters_network() -> None:
    """Input normalisation, valid convolution, max-pooling, six blocks of 64, 128 and 256 channels."""
    shapes = shapes_through(build("gluon-resnet18").eval(), torch.zeros(1, 1, 28, 28))  # type: ignore[arg-type]
    blocks = [(64, 12, 12)] * 2 + [(128, 6, 6)] * 2 + [(256, 3, 3)] * 2
    assert shapes == [(1, 28, 28), (64, 26, 26), (64, 12, 12), *blocks, (256, 1, 1), (256,), (10,)]


@pytest.mark.parametrize("downsample", [False, True])
def test_residual_equals_torchvisions_basic_block_without_biases(downsample: bool) -> None:
    """Same weights, biases zero, in training mode: outputs and running statistics agree."""
    from torchvision.models.resnet import BasicBlock  # loads torch's compiler, for two seconds

    channels = 8 if downsample else 4
    ours = Residual(4, channels, downsample=downsample).double()
    shortcut = nn.Conv2d(4, channels, 1, 2, bias=False) if downsample else None
    theirs = BasicBlock(4, channels, stride=2 if downsample else 1, downsample=shortcut).double()
    INITS["xavier"](ours)
    weights = {key.replace("shortcut", "downsample"): value for key, value in ours.state_dict().items()}
    theirs.load_state_dict({key: weights[key] for key in theirs.state_dict()})
    X = torch.randn(3, 4, 6, 6, dtype=torch.float64)
    torch.testing.assert_close(ours(X), theirs(X))
    torch.testing.assert_close(ours.bn2.running_var, theirs.bn2.running_var)


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("model", ["lenet", "gluon-resnet18", "toy"])
def test_equal_seeds_give_bit_equal_weights_and_leave_the_generator_alone(model: str, init: str) -> None:
    state = torch.get_rng_state()
    first, second, other = (list(build(model, init, seed).parameters()) for seed in (7, 7, 8))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("init", "bound"), [("normal", 0.06), ("xavier", (6 / (800 + 128)) ** 0.5)])
def test_init_reaches_lenets_own_matrices(init: str, bound: float) -> None:
    """LeNet's parameters belong to no nn.Linear or nn.Conv2d, and are initialised nevertheless."""
    net = build("lenet", init, 0)
    assert isinstance(net.W3, Tensor)
    assert isinstance(net.b3, Tensor)
    assert bound / 2 < net.W3.abs().max().item() <= bound
    assert not net.b3.any()


@pytest.mark.parametrize("init", ["normal", "xavier"])
def test_init_zeroes_biases_and_leaves_normalisation_the_identity(init: str) -> None:
    """Batch normalisation starts with weight 1 and bias 0."""
    for name, module in build("gluon-resnet18", init, 0).named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            assert module.bias is not None, name
            assert [module.weight.any().item(), module.bias.any().item()] == [True, False], name
        if isinstance(module, nn.BatchNorm2d):
            assert torch.equal(module.weight, torch.ones_like(module.bias)), name
            assert not module.bias.any(), name


def test_a_users_model_is_built_from_its_file(tmp_path: Path) -> None:
    """path.py:factory, importing a neighbour from its own folder."""
    (tmp_path / "width_of_mine.py").write_text("WIDTH = 3\n")
    (tmp_path / "mine.py").write_text(
        "from torch import nn\nfrom width_of_mine import WIDTH\ndef make():\n    return nn.Linear(WIDTH, 1)\n"
    )
    net = build(f"{tmp_path / 'mine.py'}:make")
    assert isinstance(net, nn.Linear)
    assert net.in_features == 3


def test_one_file_is_one_module_and_two_of_the_same_name_are_two(tmp_path: Path) -> None:
    """Classes keep their identity, and pickle can find the loaded module."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.py").write_text(f"class Mine:\n    folder = {folder!r}\n")
    a, again, b = (load_object(f"{tmp_path / folder / 'same.py'}:Mine") for folder in "aab")
    assert a is again
    assert a is not b
    assert isinstance(a, type)
    assert sys.modules[a.__module__].Mine is a


def test_a_dotted_attribute_is_followed() -> None:
    assert load_object("pathlib:Path.exists") is Path.exists


def test_a_file_that_raises_is_reported_and_forgotten(tmp_path: Path) -> None:
    """The next attempt must not find half a module."""
    path = tmp_path / "broken.py"
    path.write_text("1 / 0\n")
    with pytest.raises(ImportError, match=r"executing .*broken.py raised ZeroDivisionError: division by zero"):
        load_object(f"{path}:Mine")
    path.write_text("Mine = 1\n")
    assert load_object(f"{path}:Mine") == 1


def test_a_file_that_is_not_in_the_working_directory_is_searched_as_a_module_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "nets.py").write_text("one = 1\n")
    (tmp_path / "here" / "both.py").write_text("one = 2\n")
    (tmp_path / "both.py").write_text("one = 1\n")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.syspath_prepend(tmp_path)
    assert (load_object("nets.py:one"), load_object("both.py:one")) == (1, 2)


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        *((spec, ValueError, "names no object: write module:name or path.py:name") for spec in ("", "torch", "torch:")),
        *((spec, ValueError, "names no object: write module:name or path.py:name") for spec in (":nn", "torch:a b")),
        ("nowhere.py:Mine", FileNotFoundError, r"there is no file {}/nowhere\.py; relative paths start at"),
        ("linked.py:one", ImportError, r"few\.txt is not a Python source file; name one that ends with \.py"),
        (
            "no_such_module:Mine",
            ImportError,
            r"importing no_such_module raised ModuleNotFoundError.*; install it, put its",
        ),
        ("few.py:three", AttributeError, r"has no 'three'; it defines one$"),
    ],
)
def test_a_name_that_cannot_be_loaded_is_reported(
    spec: str, error: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths are relative to the working directory; a missing attribute is reported with the public names."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "few.py").write_text("one = 1\n_two = 2\n")
    (tmp_path / "few.txt").write_text("one = 1\n")
    (tmp_path / "linked.py").symlink_to("few.txt")
    with pytest.raises(error, match=message.format(tmp_path)):
        load_object(spec)


@pytest.mark.parametrize(
    ("named", "error", "message"),
    [
        (
            ("alexnet",),
            ValueError,
            "unknown model 'alexnet': choose one of lenet, resnet18, gluon-resnet18, gpt-tiny, gpt, toy",
        ),
        (("lenet", "zero"), ValueError, "unknown init 'zero': choose one of default, normal, xavier"),
        (("math:pi",), TypeError, "model 'math:pi' .*a float: it must be a factory"),
        (("builtins:dict",), TypeError, "model 'builtins:dict' .*a dict: its factory must"),
    ],
)
def test_what_cannot_be_built_is_reported(named: tuple[str, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build(*named)


def test_tables_and_pure_modules_do_not_import_torch() -> None:
    """The pytest plugin reads them, and --help must stay fast."""
    modules = "load, models, schedule, closing_line, trainers, trainers.protocol"
    imports = "; ".join(f"import reference.{name}" for name in modules.split(", "))
    code = f"import sys; {imports}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY).returncode == 0
