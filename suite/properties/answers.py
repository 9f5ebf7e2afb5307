"""What a worker answers about a trainer: frozen values that travel as JSON. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

UNSEEN = (
    'checks compare it with itself on one device (oracle "self"), so an error that does not depend on the number of '
    "devices stays unseen"
)

SHARED_DRAWS = "the step draws random numbers, and was compared on those that one device draws for each sample"

OWN_SIGNATURE = "OwnSignature"
"""The name of the error of a trainer whose step calls its model otherwise than generated networks can be called."""


REACTION = 1e-10  # by which starts and minibatches are moved to see whether a trainer computes in float32, with 6e-8

NONE_FITS = "no bug in particular"
OF_PRECISION = "the error of "  # begins the suspects that blame low precision
FACTOR = "times the right gradient"
NO_EXCHANGE = "no exchange: the gradient of one shard alone"
OTHER_BUGS = "the bug that the check `gradient` or `trajectory` names, where that fails too"
SKIPPED_ALONE = (
    "whether to skip a step is decided on one rank's own loss or gradient (ecmwf/WeatherGenerator#2718): let all agree"
)


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
    """The answer to `describe`: the trainer, and the versions of the worker's interpreter and packages by name."""

    about: About
    versions: dict[str, str]


@dataclass(frozen=True)
class Observed:
    """The answer to `observe` and `train_model`: where a rank wrote what it saw, and what decides what comes next.

    Attributes:
        file: on the rank's host; `suite.rank.kept` wrote it.
        raised: None, or {"where", "error", "traceback"} of the exception that ended the trainer.
        returned: whether every step returned a loss.
        training: of a user's own model, whether a module was in training mode in a forward.
    """

    file: str
    raised: dict[str, str] | None = None
    returned: bool = True
    training: bool = False


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
