"""Named workloads: the built-in ones, the user's own, and what their hash covers."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference.data import DATASETS
from reference.models import MODELS
from reference.models.init import INITS
from suite.plan import workloads
from suite.plan.workloads import BUILT_IN, Recipe, Workload


def test_every_run_of_the_documents_has_a_workload() -> None:
    """Rows 0-grid (five runs) and 3-table (three runs): model, batch, learning rate, epochs."""
    runs = {
        (w.model, w.batch, w.lr, w.epochs)
        for w in BUILT_IN.values()
        if w.name.startswith("book-") and w.loader == "resident"
    }
    assert runs == {
        ("lenet", 256, 0.2, 10),
        ("lenet", 512, 0.3, 10),
        ("resnet18", 256, 0.1, 10),
        ("resnet18", 512, 0.2, 10),
        ("gluon-resnet18", 256, 0.1, 5),
        ("gluon-resnet18", 512, 0.2, 5),
    }


def test_built_in_workloads_name_things_that_exist() -> None:
    assert {workload.model for workload in BUILT_IN.values()} <= MODELS.keys()
    recipes = [workload.accuracy for workload in BUILT_IN.values() if workload.accuracy is not None]
    assert {named.init for named in (*BUILT_IN.values(), *recipes)} <= INITS.keys()


def test_the_names_that_are_known_without_torch_are_those_of_the_tables() -> None:
    assert tuple(DATASETS) == workloads.DATASETS
    assert tuple(INITS) == workloads.INITS


def test_the_data_sets_of_texts_are_those_with_tokens(tmp_path: Path) -> None:
    """A worker counts the tokens of a sample; what a workload is made of must be known before one is asked."""
    generated = {name for name, load in DATASETS.items() if load.__module__ == "reference.data.texts"}
    assert generated == set(workloads.TEXTS)
    assert {w.name for w in BUILT_IN.values() if w.trains == "tokens"} == {"gpt-tiny", "gpt"}


@pytest.mark.parametrize(
    ("workload", "trainer", "trains", "suits"),
    [
        ("gpt-tiny", "ddp", None, False),
        ("gpt-tiny", "ddp_tokens", None, True),
        ("gpt-tiny", "single", None, True),
        ("lenet", "single", None, True),
        ("lenet", "fsdp_tokens", None, False),
        ("gpt-tiny", "own.py:Mine", None, True),
        ("gpt-tiny", "own.py:Mine", "tokens", True),
        ("gpt-tiny", "own.py:Mine", "samples", False),
        ("lenet", "own.py:Mine", "tokens", False),
        ("mine", "ddp", None, True),
        ("mine", "own.py:Mine", "samples", True),
    ],
)
def test_what_a_trainer_can_train_is_told_by_names_as_far_as_they_tell(
    workload: str, trainer: str, trains: str | None, suits: bool
) -> None:
    """A data set of the user's own may hold anything, and a trainer of the user's own is only known to a worker."""
    known = {**BUILT_IN, "mine": Workload(name="mine", model="toy", dataset="my.data:load")}
    assert known[workload].suits(trainer, trains) is suits


def test_the_hash_covers_what_is_measured_and_nothing_else() -> None:
    lenet = BUILT_IN["lenet"]
    assert lenet.model_copy(update={"name": "other", "published": {}}).hash == lenet.hash
    assert lenet.model_copy(update={"batch": 128}).hash != lenet.hash
    assert lenet.model_copy(update={"precision": "float64"}).hash != lenet.hash
    assert lenet.model_copy(update={"memory_format": "contiguous"}).hash != lenet.hash


def test_built_in_convolutions_run_in_channels_last_and_a_users_as_the_user_says() -> None:
    for workload in BUILT_IN.values():
        convolves = "lenet" in workload.model or "resnet" in workload.model
        assert (workload.memory_format == "channels_last") == convolves, workload.name
    assert Workload(name="mine", model="my.net:make").memory_format == "contiguous"


def test_the_users_own_workload_joins_the_built_in_ones(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text('[tool.scaling.workloads.mine]\nmodel = "my.net:make"\nbatch = 64\n')
    found = workloads.available(file)
    assert (found["mine"].model, found["mine"].batch) == ("my.net:make", 64)
    assert "lenet" in found
    assert workloads.available(tmp_path / "none.toml") == BUILT_IN


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[tool.scaling.workloads.mine]\nmodel = "a:b"\nbatch = 0',
            "workload 'mine' .*: batch: Input should be gr",
        ),
        ('[tool.scaling.workloads.mine]\nmodel = "a:b"\nbatchsize = 1', "workload 'mine' .*: batchsize: Extra inputs"),
        ("[tool.scaling.workloads.mine]\nbatch = 1", "workload 'mine' in pyproject.toml: model: Field required"),
        ('[tool.scaling.workloads.mine]\nmodel = "a:b"\nname = "x"', "workload 'mine' .*: name: .*; remove it"),
        *(
            (
                f'[tool.scaling.workloads.mine]\nmodel = "{model}"',
                f"workload 'mine' in pyproject.toml: model '{model}': valid values are lenet, .*, module:name or path",
            )
            for model in ("nets", "", "nets:", ":make", "nets:a b", "nets.py::make")
        ),
        (
            '[tool.scaling.workloads.mine]\nmodel = "toy"\ndataset = "nope"',
            "dataset 'nope': valid values are fashion-mnist, .*texts, module:name or path.py:name",
        ),
        (
            '[tool.scaling.workloads.mine]\nmodel = "toy"\ninit = "a:nope"',
            "init 'a:nope': valid values are default, normal, xavier$",
        ),
        (
            '[tool.scaling.workloads.mine]\nmodel = "toy"\naccuracy.init = "nope"',
            "accuracy.init 'nope': valid values are default, normal, xavier$",
        ),
        (
            '[tool.scaling.workloads.mine]\nmodel = "toy"\naccuracy.dataset = "nope"',
            "accuracy.dataset 'nope': valid values are fashion-mnist",
        ),
        (
            '[tool.scaling.workloads.mine]\nmodel = "toy"\ncorrectness.model = "nope"',
            "correctness.model 'nope': valid values are lenet",
        ),
        (
            "[[tool.scaling.floor]]\nefficiency = 0.5",
            "tool.scaling.floor in pyproject.toml: unknown; valid keys are workloads, scripts, floors, and options are",
        ),
        ('[tool.scaling.workloads.lenet]\nmodel = "a:b"', "workload 'lenet' .* has the name of a built-in one"),
        (
            '[tool.scaling.workloads."../up"]\nmodel = "a:b"',
            "workload '../up' .*: expected a letter or digit, and after it letters, digits, spaces, or .*; rename it",
        ),
        ('[tool.scaling.workloads.".hidden"]\nmodel = "a:b"', "workload '.hidden' .*: expected a letter"),
        ('[tool.scaling.workloads."a\\u001b[31m"]\nmodel = "a:b"', r"workload 'a\\x1b\[31m' .*: expected a letter"),
        ("tool = 3", r"tool = 3 in pyproject.toml: expected a table, \[tool\]"),
        ("[tool]\nscaling = 5", r"tool.scaling = 5 in pyproject.toml: expected a table, \[tool.scaling\]"),
        ("[tool.scaling]\nworkloads = []", r"tool.scaling.workloads = \[\] in pyproject.toml: expected a table"),
        ("[tool.scaling.workloads]\nmine = 3", r"tool.scaling.workloads.mine = 3 in pyproject.toml: expected a table"),
    ],
)
def test_a_wrong_workload_is_named_with_its_field(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(f"{text}\n")
    with pytest.raises(ValueError, match=message):
        workloads.available(file)


@pytest.mark.parametrize(
    ("name", "mode", "world_size", "expected"),
    [
        ("lenet", "strong", 2, (2.6, None)),
        ("lenet", "weak", 2, (2.4, None)),
        ("book-lenet-256", "weak", 2, (2.4, None)),
        ("book-lenet-512", "strong", 1, None),
        ("book-resnet18-256", "weak", 1, (12.2, 0.91)),
        ("book-resnet18-256", "weak", 2, (7.5, 0.73)),
        ("book-resnet18-256", "strong", 2, None),
        ("book-gluon-256", "strong", 2, (10.2, 0.8897)),
        ("book-gluon-256", "weak", 2, (8.1, 0.9074)),
        ("book-gluon-512", "weak", 2, None),
        ("lenet", "sideways", 2, None),
        ("lenet", "weak", 10**400, None),
    ],
)
def test_a_published_figure_is_found_by_the_run_and_not_by_the_workload(
    name: str, mode: str, world_size: int, expected: tuple[float, float | None] | None
) -> None:
    """Model, data, world size, global batch and rate: (1, 256, .1) and (2, 512, .2) are one workload's weak cells."""
    found = workloads.published(BUILT_IN[name], mode, world_size)
    assert (found and (found.sec_per_epoch, found.accuracy)) == expected


@pytest.mark.parametrize("change", [{"model": "resnet18"}, {"dataset": "digits"}, {"batch": 128}, {"lr": 0.1}])
def test_another_run_has_no_published_figure(change: dict[str, object]) -> None:
    own = BUILT_IN["lenet"].model_copy(update={"published": {}})
    assert workloads.published(own, "weak", 2) is not None
    assert workloads.published(own.model_copy(update=change), "weak", 2) is None


@pytest.mark.parametrize("name", ["mine", "net.v2 wide"])
def test_the_table_that_gives_a_workload_a_recipe_can_be_written_as_the_message_has_it(
    name: str, tmp_path: Path
) -> None:
    table = workloads.no_recipe(name).partition(", or write ")[2].removesuffix(" with dataset, batch, lr and epochs")
    recipe = 'dataset = "data:load"\nbatch = 8\nlr = 0.1\nepochs = 3\n'
    own = f'[tool.scaling.workloads."{name}"]\nmodel = "lenet"\n'
    (tmp_path / "pyproject.toml").write_text(f"{own}{table}\n{recipe}")
    recipe_read = workloads.available(tmp_path / "pyproject.toml")[name].accuracy
    assert recipe_read is not None
    assert recipe_read.epochs == 3


def test_a_workload_that_says_its_epochs_is_trained_by_its_own_figures(tmp_path: Path) -> None:
    own = '[tool.scaling.workloads.mine]\nmodel = "lenet"\ndataset = "digits"\nbatch = 64\nlr = 0.3\ninit = "xavier"\n'
    for epochs, accuracy in (
        ("", None),
        ("epochs = 3\n", Recipe(dataset="digits", batch=64, lr=0.3, epochs=3, init="xavier")),
        ("epochs = 3\naccuracy = { epochs = 2 }\n", Recipe(epochs=2)),
    ):
        (tmp_path / "pyproject.toml").write_text(own + epochs)
        assert workloads.available(tmp_path / "pyproject.toml")["mine"].accuracy == accuracy
