"""Named workloads: the built-in ones, which include the documents' own runs, and the user's from pyproject.toml.

A workload's hash covers everything that affects the time of a step or the result of training, and neither its name nor
its published figures. Models and datasets are only named here, without torch; workers build them.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, ValidationError

from reference import trainers as table
from reference.models import MODELS
from reference.schedule import scale
from suite.plan.project import named_tables, searched_from
from suite.plan.scripts import Script
from suite.room.part import Part, problem
from suite.verdict.accuracy import MARGIN, SEED_PAIRS


class Recipe(Part):
    """How a net is trained for its accuracy, on one device and in strong scaling; weak scaling grows the batch.

    k devices are compared with one over `seed_pairs` fresh nets each, and must not lose `margin` (a share).
    `cpu_epochs` and `cpu_samples` shorten it where there is no GPU; the report then says so.
    """

    dataset: str = "digits"
    batch: PositiveInt = 32
    lr: PositiveFloat = 0.1
    epochs: PositiveInt = 20
    init: str = "xavier"
    margin: float = Field(default=MARGIN, gt=0, lt=1)
    seed_pairs: int = Field(default=SEED_PAIRS, ge=2)  # one pair shows no spread and never passes
    cpu_epochs: PositiveInt | None = None
    cpu_samples: PositiveInt | None = None


class Checked(Part):
    """What `-m correctness --scaling-workload` trains on k devices and on one, module by module.

    `model` is a smaller factory for where the workload's own model does not fit (its parameters in float64, six times
    over, and the outputs of all modules twice). `batch` is at most the workload's own; 13 samples divide unevenly over
    2, 3, 4, 5 and more devices. `shards` says which ones the trainer is given: of any length, equal ones, or a number
    of which every rank's samples are a multiple; the batch is rounded up to that.
    """

    model: str | None = None
    batch: PositiveInt = 13
    shards: Literal["any", "equal"] | PositiveInt = "any"
    steps: PositiveInt = 2  # the second shows what the first one's update did to the outputs


class Published(Part):
    """A figure that a document printed for this workload at one world size."""

    sec_per_epoch: float
    accuracy: float | None = None
    source: str


class Workload(Part):
    """One named thing to train.

    Attributes:
        model: a name from `reference.models.MODELS`, or a factory (`module:function`) returning an nn.Module.
        dataset: "auto" (Fashion-MNIST where its files are under the data root, else "synthetic"), "fashion-mnist",
            "synthetic", "digits", "texts-tiny" and "texts" (generated, for language models), or a factory returning
            ((train_X, train_y), (test_X, test_y)), tensors or nests of tensors.
        batch: samples a step at world size 1.
        lr: learning rate at world size 1; weak scaling changes it by `lr_rule`.
        epochs: of the full training run. A user's workload that sets them and has no recipe is trained for so many
            to measure its accuracy.
        init: a name from `reference.models.init.INITS`.
        loader: "resident" (whole set on the device, batches by index) or "book" (per-sample transforms, worker
            processes).
        precision: of parameters and matrix products; "tf32" and "bfloat16" leave parameters in float32, "bfloat16" by
            autocast.
        memory_format: of the model's parameters, and so of what its convolutions return. The built-in workloads of
            convolutions have "channels_last".
        compile: compile the trainer's replicas; data_parallel refuses it on several devices, where it makes new ones at
            every step.
        accuracy: how the net is trained for its accuracy; None measures none.
        correctness: what `-m correctness` trains of it.
        published: what the documents print, by world size.
        script: a training script, which has model, data and everything else itself.
    """

    name: str
    model: str
    dataset: str = "auto"
    batch: PositiveInt = 256
    lr: PositiveFloat = 0.1
    lr_rule: Literal["constant", "linear", "book"] = "linear"
    epochs: PositiveInt = 10
    init: str = "default"
    loader: Literal["resident", "book"] = "resident"
    precision: Literal["float32", "tf32", "bfloat16", "float64"] = "float32"
    memory_format: Literal["contiguous", "channels_last"] = "contiguous"
    compile: bool = False
    accuracy: Recipe | None = None
    correctness: Checked = Checked()
    published: dict[int, Published] = Field(default_factory=dict)
    script: Script | None = None

    @property
    def hash(self) -> str:
        """Twelve hex digits over everything that affects what is measured."""
        judging = {"margin": True, "seed_pairs": True}
        left_out: Any = {"name": True, "published": True, "correctness": True, "accuracy": judging}
        content = self.model_dump(mode="json", exclude=left_out)
        if self.script is None:
            del content["script"]
        else:
            content = self.script.model_dump(mode="json", include={"command", "environment", "batch"})
        if self.accuracy == self.own_recipe:  # which adds nothing
            content["accuracy"] = None
        if self.loader == "book":
            content["loader"] = "book, in whole turns"  # as windows are timed (docs/adr/0003)
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def own_recipe(self) -> Recipe:
        """How the net is trained for its accuracy as it is for its time."""
        same = ("dataset", "batch", "lr", "epochs", "init")
        return Recipe(**{field: getattr(self, field) for field in same})

    @property
    def trains(self) -> str | None:
        """What its minibatches are, "samples" or "tokens"; None where only the user's own data set knows."""
        if ":" in self.dataset:
            return None
        return "tokens" if self.dataset in TEXTS else "samples"

    @property
    def is_the_users(self) -> bool:
        """Whether its model or its data set is the user's own."""
        return ":" in self.model or ":" in self.dataset

    def scales(self, mode: str) -> bool:
        """Return whether it can be measured in a mode: strong scaling has to set the batch of a script."""
        return mode != "strong" or self.script is None or self.script.takes_batch

    def suits(self, trainer: str, trains: str | None = None) -> bool:
        """Return whether a trainer can train it, as far as that is known.

        Args:
            trainer: a table name, `module:Class` or `path.py:Class`.
            trains: what a class of the user's own says; None where no worker has read it.
        """
        if self.script is not None:
            return trainer == self.name
        if ":" in trainer:
            return trains is None or self.trains in (None, trains)
        if trainer not in table.TRAINERS:  # a script
            return False
        return self.trains is None or self.trains in table.trains(trainer)


def of_script(script: Script) -> Workload:
    """Return the workload of a script's cells, which has the script's name."""
    return Workload(
        name=script.name, model="script", dataset=f"script {script.name}", batch=script.batch or 1, script=script
    )


TEXTS = ("texts-tiny", "texts")  # the built-in data sets for trainers of tokens
# The keys of `reference.data.DATASETS` and `reference.models.init.INITS`, which load torch.
DATASETS = ("fashion-mnist", "synthetic", "digits", "auto", *TEXTS)
INITS = ("default", "normal", "xavier")
_FACTORY = re.compile(r"[^:]+:[^\W\d]\w*(\.[^\W\d]\w*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")  # of TOML
_NAME = re.compile(r"\w[\w.+ -]*")
_NOTEBOOK = "lecture notebook, scratch"
_CONCISE = "d2l, concise"
_GLUON = "Gluon chapter"


def _printed(source: str, figures: dict[int, tuple[float, float | None]]) -> dict[int, Published]:
    """Return what a document prints, from (seconds an epoch, accuracy) by world size."""
    return {k: Published(sec_per_epoch=s, accuracy=share, source=source) for k, (s, share) in figures.items()}


_LENET_FIGURES = _printed(_NOTEBOOK, {1: (2.6, None), 2: (2.6, None)})
_RESNET_FIGURES = _printed(_CONCISE, {1: (12.2, 0.91)})


def _book(name: str, model: str, batch: int, lr: float, published: dict[int, Published], **more: Any) -> Workload:
    """Return a run as a document has it, trained on its own dataset for the book's closing line, shorter on a CPU."""
    deep = model != "lenet"
    fields: dict[str, Any] = {"lr_rule": "linear" if deep else "book", "init": "normal", "epochs": 10, **more}
    recipe = Recipe(
        dataset="auto",
        batch=batch,
        lr=lr,
        epochs=fields["epochs"],
        init=fields["init"],
        cpu_epochs=1,
        cpu_samples=2 * batch if deep else None,  # a ResNet epoch is 153 TFLOP: most of an hour on a core
    )
    return Workload(
        name=name,
        model=model,
        batch=batch,
        lr=lr,
        memory_format="channels_last",
        accuracy=recipe,
        published=published,
        **fields,
    )


_BUILT_IN = (
    Workload(
        name="lenet",
        model="lenet",
        lr=0.2,
        lr_rule="book",  # the chapters' (256, .1) -> (512, .2), the notebook's (256, .2) -> (512, .3)
        init="normal",
        memory_format="channels_last",
        accuracy=Recipe(batch=16, lr=0.05),  # small, so that eight times as much still leaves enough steps
        published=_LENET_FIGURES,
    ),
    Workload(
        name="resnet18",
        model="resnet18",
        init="normal",
        memory_format="channels_last",
        accuracy=Recipe(batch=16, lr=0.025, epochs=10, init="default"),
        published=_RESNET_FIGURES,
    ),
    # For GPUs: 8 of them have 128 samples each in strong scaling, 2.5 GFLOP a sample.
    Workload(
        name="resnet18-bf16",
        model="resnet18",
        batch=1024,
        lr_rule="constant",
        precision="bfloat16",
        memory_format="channels_last",
        accuracy=Recipe(batch=16, lr=0.025, epochs=10, init="default"),
    ),
    # Language models on generated texts: one for a CPU core, and for GPUs one of GPT-2's small size.
    Workload(
        name="gpt-tiny",
        model="gpt-tiny",
        dataset="texts-tiny",
        batch=32,
        lr=0.2,
        accuracy=Recipe(dataset="texts-tiny", batch=16, lr=0.1, epochs=4, init="default"),
    ),
    Workload(
        name="gpt",
        model="gpt",
        dataset="texts",
        batch=32,
        lr_rule="constant",
        precision="bfloat16",
        accuracy=Recipe(dataset="texts-tiny", batch=16, lr=0.05, epochs=4, init="default"),
    ),
    _book("book-lenet-256", "lenet", 256, 0.2, _LENET_FIGURES),
    _book("book-lenet-512", "lenet", 512, 0.3, _printed(_NOTEBOOK, {2: (2.4, None)})),
    _book("book-lenet-256-loader", "lenet", 256, 0.2, {}, loader="book"),
    _book("book-resnet18-256", "resnet18", 256, 0.1, _RESNET_FIGURES),
    _book("book-resnet18-512", "resnet18", 512, 0.2, _printed(_CONCISE, {2: (7.5, 0.73)})),
    _book(
        "book-gluon-256",
        "gluon-resnet18",
        256,
        0.1,
        _printed(_GLUON, {1: (14.2, 0.905), 2: (10.2, 0.8897)}),
        epochs=5,
        init="xavier",
    ),
    _book("book-gluon-512", "gluon-resnet18", 512, 0.2, _printed(_GLUON, {2: (8.1, 0.9074)}), epochs=5, init="xavier"),
)

BUILT_IN: dict[str, Workload] = {workload.name: workload for workload in _BUILT_IN}
LAUNCH_BOUND = "lenet"  # the model that is too small for a GPU at the book's batches


def default(kind: str) -> str:
    """Return the workload of a run that names none, by the kind of its devices: on GPUs one that can occupy them."""
    return "lenet" if kind == "cpu" else "resnet18-bf16"


def defaults(kind: str, trainers: Sequence[str]) -> tuple[str, ...]:
    """Return the workloads of a run that names none and these trainers: for each, the first that it can train."""
    names = (default(kind), "gpt-tiny" if kind == "cpu" else "gpt")
    fitting = (next((name for name in names if BUILT_IN[name].suits(trainer)), names[0]) for trainer in trainers)
    return tuple(dict.fromkeys(fitting)) or names[:1]


def published(workload: Workload, mode: str, world_size: int) -> Published | None:
    """Return what a document prints for a run of the same model, data, world size, global batch and learning rate.

    Weak scaling may have the batch and rate of another workload: `lenet` on two devices has those of `book-lenet-512`.
    """
    try:
        batch, lr = scale(mode, world_size, workload.batch, workload.lr, workload.lr_rule)
    except (ValueError, OverflowError):  # a record from elsewhere may hold any mode and world size
        return None
    for other in (workload, *BUILT_IN.values()):
        same = (other.model, other.dataset, other.batch) == (workload.model, workload.dataset, batch)
        if world_size in other.published and same and math.isclose(other.lr, lr):
            return other.published[world_size]
    return None


def available(pyproject: Path) -> dict[str, Workload]:
    """Return the built-in workloads and those of `[tool.scaling.workloads.NAME]` in a pyproject.toml, if it exists.

    Raises:
        ValueError: a workload of the user's own has a wrong field or name, or the name of a built-in one.
    """
    workloads, letters = dict(BUILT_IN), "letters, digits, spaces, or any of . _ + -"
    for name, fields in named_tables(pyproject, "workload", _NAME, letters):
        if name in BUILT_IN:
            raise ValueError(f"workload {name!r} in {pyproject.name} has the name of a built-in one; rename it")
        try:
            workload = Workload.model_validate({**fields, "name": name})
            _check_names(workload)
        except ValidationError as error:
            raise ValueError(f"workload {name!r} in {pyproject.name}: {problem(error)}") from error
        except ValueError as error:
            raise ValueError(f"workload {name!r} in {pyproject.name}: {error}") from error
        if "epochs" in fields and workload.accuracy is None:
            workload = workload.model_copy(update={"accuracy": workload.own_recipe})
        workloads[name] = _from(pyproject.parent, workload)
    return workloads


def _check_names(workload: Workload) -> None:
    """Refuse a model, data set or initialisation that is neither built in nor, but for the last, a factory.

    Raises:
        ValueError: there is one; the message has its key and what is valid.
    """
    factories: list[tuple[str, str, Collection[str]]] = [
        ("model", workload.model, MODELS),
        ("dataset", workload.dataset, DATASETS),
    ]
    inits = [("init", workload.init)]
    if workload.correctness.model is not None:
        factories.append(("correctness.model", workload.correctness.model, MODELS))
    if workload.accuracy is not None:
        factories.append(("accuracy.dataset", workload.accuracy.dataset, DATASETS))
        inits.append(("accuracy.init", workload.accuracy.init))
    for key, value, valid in factories:
        if value not in valid and not _FACTORY.fullmatch(value):
            raise ValueError(f"{key} {value!r}: valid values are {', '.join(valid)}, module:name or path.py:name")
    for key, value in inits:
        if value not in INITS:
            raise ValueError(f"{key} {value!r}: valid values are {', '.join(INITS)}")


def no_recipe(name: str) -> str:
    """Return that a workload is not trained for its accuracy, and what to write so that it is."""
    table = f"[tool.scaling.workloads.{_key(name)}.accuracy] with dataset, batch, lr and epochs"
    return f"workload {name!r} has no recipe to train by; set its epochs, or write {table}"


def _key(name: str) -> str:
    """Return a workload's name as a key of TOML."""
    return name if _BARE_KEY.fullmatch(name) else f'"{name}"'


def _from(folder: Path, workload: Workload) -> Workload:
    """Return a workload that a file in `folder` has, with models and data as workers find them."""

    def found(part: Any, *names: str) -> Any:
        specs = {name: getattr(part, name) for name in names}
        return part.model_copy(update={name: searched_from(spec, folder) for name, spec in specs.items() if spec})

    parts = {"correctness": found(workload.correctness, "model")}
    if workload.accuracy is not None:
        parts["accuracy"] = found(workload.accuracy, "dataset")
    named: Workload = found(workload, "model", "dataset")
    return named.model_copy(update=parts)
