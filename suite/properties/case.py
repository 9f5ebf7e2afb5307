"""One case of a correctness check: a small network, a world size, and the minibatches of a few steps. Pure.

A case is JSON, on its way to the ranks and in the message of a failure, and all that is needed to reproduce one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

from suite.properties import case_rules

# Checks whose cases a trainer may refuse by raising: unused parameters, a sample that is not a number, and a batch
# normalisation of one sample, as accumulation in micro-batches can make it of any minibatch.
MAY_REFUSE = ("batch_norm", "refusals", "not_a_number")

LOW_PRECISION = "low_precision"  # the check whose cases have variants

# A convolutional net sees its features as an image: channels, height, width. With one channel, channels-last weights
# would be contiguous as well.
IMAGE = (2, 4, 4)


@dataclass(frozen=True)
class Net:
    """What a network is made of; `suite.properties.nets` builds it. The default is a single linear layer."""

    inputs: int = 2  # features of a sample; those of an IMAGE when `conv`
    hidden: tuple[int, ...] = ()  # widths of the hidden layers
    classes: int = 2
    activation: str = "tanh"  # or "relu"
    conv: bool = False  # a convolution before the first layer
    norm: str = "none"  # "layer" or "batch": after every hidden layer
    dropout: bool = False  # after every hidden layer, half of the features
    buffer: bool = False  # a fixed random tensor, no parameter, that is added to the scores
    tied: bool = False  # two layers before the last that share their weight
    frozen: bool = False  # the first weight takes no gradient
    # A layer used "nowhere", "somewhere" (for sample 0 alone), "elsewhere" (for samples 2, 3, ...), or "later" than in
    # the first step.
    unused: str = "none"


@dataclass(frozen=True)
class Text:
    """A language model and its texts; `suite.properties.texts` builds both. The default is an embedding and a head."""

    vocabulary: int = 2
    positions: int = 1  # tokens of the longest text
    width: int = 2  # features of a token; even
    blocks: int = 0  # of attention and two layers
    norm: str = "none"  # "layer" or "rms": before attention, layers and head
    rotary: bool = False  # rotary positions instead of learned ones
    tied: bool = False  # the head has the embedding's weight
    checkpoint: bool = False  # blocks are recomputed in the backward
    dropout: bool = False  # behind every attention, half of the features
    unequal: bool = False  # texts of unequal length
    ignored: bool = False  # some labels do not count
    silent: int = 0  # no label of so many last texts counts, so that a rank may have none
    weighted: bool = False  # samples have weights
    unused: str = "none"  # a layer used "nowhere", or "somewhere": for text 0 alone, as an expert may be


@dataclass(frozen=True)
class Case:
    """What one example of a check is put to a trainer with."""

    world_size: int
    batches: tuple[int, ...]  # samples in the minibatch of each step, over all ranks
    seed: int = 0
    dtype: str = "float64"
    lr: float = 0.5
    net: Net = field(default_factory=Net)
    text: Text | None = None  # in the place of `net`, for a trainer of tokens
    spoiled: int | None = None  # the step in which one sample's features, or one text's weight, are NaN
    overflows: bool = False  # those features are finite instead, and so large that a loss scale makes them infinite
    variant: int = 0  # another order of the samples, and other rounding errors in what is given, than in the others
    moved_by: float = 0.0  # a variant keeps the order, and its features and first weights differ by this share at most
    resumed: int | None = None  # the step before which the trainer is saved, and another instance goes on from there
    part: tuple[int, int, int] | None = None  # (step, rank, ranks): in this step only the samples of one of so many
    shares_draws: bool = False  # in every step a sample gets the random numbers that one device would draw for it

    @property
    def drops(self) -> bool:
        """Whether the net has dropout."""
        return (self.text or self.net).dropout

    def alone(self) -> Case:
        """Return this case on one device."""
        return replace(self, world_size=1)

    def plain(self) -> Case:
        """Return this case without all that a trainer may refuse (`MAY_REFUSE`)."""
        text = None if self.text is None else replace(self.text, unused="none")
        return replace(
            self, net=replace(self.net, unused="none", norm="none"), text=text, spoiled=None, overflows=False
        )

    def wider(self) -> Case:
        """Return this case with a net of more parameters, which fewer bugs make look alike."""
        net = replace(
            self.net,
            inputs=self.net.inputs if self.net.conv else max(3, self.net.inputs),
            hidden=tuple(max(3, width) for width in self.net.hidden) or (3,),
            classes=max(3, self.net.classes),
        )
        text = self.text
        if text is not None:
            sizes = {"vocabulary": 4, "width": 4, "positions": 3}
            larger = {name: max(least, getattr(text, name)) for name, least in sizes.items()}
            text = replace(text, **larger, ignored=True)
        return replace(self, net=net, text=text)

    def with_shards(self, multiple: int) -> Case:
        """Return this case with so many more samples that every rank has as many, a multiple of `multiple`."""
        each = self.world_size * multiple
        return replace(self, batches=tuple(-(-n // each) * each for n in self.batches))

    def as_json(self) -> dict[str, Any]:
        """Return what differs from the defaults; `from_json` reads it."""
        content = {name: value for name, value in asdict(self).items() if value != getattr(_SMALLEST, name)}
        content["net"] = _changed(self.net)
        if self.text is not None:
            del content["net"]
            content["text"] = _changed(self.text)
        return {**content, "world_size": self.world_size, "batches": list(self.batches)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Case:
        """Make a case from what `as_json` returned or a person wrote.

        Raises:
            ValueError: an unknown part, a missing one, or a value that is not valid; the message says what is. So is a
                case that is too large.
        """
        case_rules.require_valid("Case", content)
        for name in ("world_size", "batches"):
            if name not in content:
                raise ValueError(f"Case has no {name}: expected {case_rules.CASE[name][0]}")
        net, text = dict(content.get("net", {})), content.get("text")
        case_rules.require_valid("Net", net)
        case_rules.require_valid("Text", text or {})
        if "hidden" in net:
            net["hidden"] = tuple(net["hidden"])
        built: dict[str, Any] = {"net": Net(**net), "text": None if text is None else Text(**text)}
        part = content.get("part")
        built |= {"batches": tuple(content["batches"]), "part": None if part is None else tuple(part)}
        case = cls(**{**content, **built})
        for name, step in (("spoiled", case.spoiled), ("resumed", case.resumed)):
            if step is not None and step >= len(case.batches):
                raise ValueError(f"Case.{name} is step {step} of {len(case.batches)}: expected one of them, from 0")
        if (numbers := case.numbers()) > case_rules.MOST_NUMBERS:
            raise ValueError(f"the case has tensors of {numbers} numbers: expected {case_rules.MOST_NUMBERS} at most")
        return case

    def numbers(self) -> int:
        """Return about how many numbers are in the parameters, in a minibatch, or in its scores by each other."""
        n = max(self.batches, default=1)
        if self.text is not None:
            v, p, w = self.text.vocabulary, self.text.positions, self.text.width
            return max(v * w + p * w + 8 * self.text.blocks * w * w, n * p * max(v, p, 3 * w))
        widths = [math.prod(IMAGE) if self.net.conv else self.net.inputs, *self.net.hidden, self.net.classes]
        same = widths[-2] ** 2 if self.net.tied or self.net.unused != "none" else 0
        parameters = sum(a * b for a, b in pairwise(widths)) + same
        return max(parameters, n * max(widths), (n * self.net.classes) ** 2)

    def __str__(self) -> str:
        return json.dumps(self.as_json())


def _changed(part: Net | Text) -> dict[str, Any]:
    """Return what differs from the defaults of its kind."""
    return {name: value for name, value in asdict(part).items() if value != getattr(type(part)(), name)}


_SMALLEST = Case(1, ())
