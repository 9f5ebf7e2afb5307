"""What a worker answers about a trainer: frozen values that travel as JSON. Standard library only.

Also what ranks observed, on its way to the controller and back to the rank that judges it: JSON is slow with long lists
of numbers, and twice as long as the base64 of their bytes.
"""

from __future__ import annotations

from array import array
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from typing import Any, Literal

UNSEEN = (
    'checks compare it with itself on one device (oracle "self"), so an error that does not depend on the number of '
    "devices stays unseen"
)

SHARED_DRAWS = "the step draws random numbers, and was compared on those that one device draws for each sample"

OWN_SIGNATURE = "OwnSignature"
"""The name of the error of a trainer whose step calls its model otherwise than generated networks can be called."""


NONE_FITS = "no bug in particular"
OF_PRECISION = "the error of "  # begins the suspects that blame low precision
FACTOR = "times the right gradient"
NO_EXCHANGE = "no exchange: the gradient of one shard alone"
OTHER_BUGS = "the bug that the check `gradient` or `trajectory` names, where that fails too"
SKIPPED_ALONE = (
    "whether to skip a step is decided on one rank's own loss or gradient (ecmwf/WeatherGenerator#2718): let all agree"
)
LONG = 1000  # numbers
FORMATS = {"float32": "f", "float64": "d"}  # the module array's names of them, the shorter one first


@dataclass(frozen=True, kw_only=True)
class About:
    """What the controller must know of a trainer; `reference.trainers.protocol.Trainer` describes its parts.

    Attributes:
        processes: "one" process drives all devices, or there is one "per-device".
        oracle: what its gradients are compared with.
        trains: what its minibatches are in generated cases: samples with a label each, or texts.
        unsynced: whether it has `step_unsynced`.
        shares_gpus: whether two of its ranks can share a GPU.
        resumes: whether it has `state_dict` and `load_state_dict`.
        has_reference: whether it has `reference_step`, with which oracle "self" compares instead.
        shards: of how many samples each rank's shard is a multiple; 0 where shards of unequal length may come.
    """

    processes: Literal["one", "per-device"]
    oracle: Literal["sgd", "self"] = "sgd"
    trains: Literal["samples", "tokens"] = "samples"
    unsynced: bool = False
    shares_gpus: bool = True
    resumes: bool = False
    has_reference: bool = False
    shards: int = 0

    @property
    def only_with_itself(self) -> bool:
        """Whether it is compared with nothing but itself on one device."""
        return self.oracle == "self" and not self.has_reference


@dataclass(frozen=True, kw_only=True)
class Described:
    """The answer to `describe`.

    Attributes:
        about: the trainer.
        versions: of the worker's interpreter and packages, by name.
    """

    about: About
    versions: dict[str, str]


@dataclass(frozen=True)
class Judgement:
    """The result of a check, and the answer to `judge`: right, wrong, or right with a note.

    Attributes:
        finding: what is wrong, where, and by how much; empty when nothing is.
        suspects: the known bugs that it looks like; there may be none.
        note: what a reader should know of a right trainer.
        details: a traceback.
        crashed: whether the trainer raised, as opposed to computing something wrong.
        refused: whether it raised where it may; `note` has what it said.
        step: the step of the case that is wrong; -1 where that is no single one.
    """

    finding: str = ""
    suspects: tuple[str, ...] = ()
    note: str = ""
    details: str = ""
    crashed: bool = False
    refused: bool = False
    step: int = -1


RIGHT = Judgement()


@dataclass(frozen=True)
class Records:
    """What was observed in one case, as `suite.properties.observe.observe` returns it.

    Attributes:
        ranks: of the trainer in k ranks, or in the one process that drives all devices.
        alone: of the trainer on one device, and on each variant of the case; for oracle "self".
        moved: of the trainer on one device, from starts and minibatches that differ by rounding.
        parts: of the trainer on one device, with each rank's samples alone in one step.
    """

    ranks: list[dict[str, Any]]
    alone: list[dict[str, Any]] = field(default_factory=list)
    moved: list[dict[str, Any]] = field(default_factory=list)
    parts: list[dict[str, Any]] = field(default_factory=list)

    def unpacked(self) -> Records:
        """Return these records, of which `packed` made each."""
        return Records(*map(unpacked, (self.ranks, self.alone, self.moved, self.parts)))


def packed(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with its lists of more than `LONG` floats as text, in the shortest format that loses no bit."""
    return {name: _packed(part) for name, part in record.items()}


def unpacked(record: Any) -> Any:
    """Return what `packed` was given; also of several records in a list."""
    if isinstance(record, list):
        return [unpacked(part) for part in record]
    if not isinstance(record, dict):
        return record
    for name, code in FORMATS.items():
        if record.keys() == {name}:
            return array(code, b64decode(record[name])).tolist()
    return {name: unpacked(part) for name, part in record.items()}


def _packed(part: Any) -> Any:
    if isinstance(part, dict):
        return packed(part)
    if not isinstance(part, list):
        return part
    if len(part) > LONG and set(map(type, part)) == {float}:
        double, single = array("d", part), array("f", part)
        name, numbers = ("float32", single) if array("d", single).tobytes() == double.tobytes() else ("float64", double)
        return {name: b64encode(numbers.tobytes()).decode()}
    return [_packed(each) for each in part]
