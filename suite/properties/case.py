"""One case of a correctness check: a small network, a world size, and the minibatches of a few steps. Pure.

A case is JSON, on its way to the ranks and in the message of a failure, and all that is needed to reproduce one. The
rules say what that JSON may hold, so that one that a person wrote ends in a message and not in a traceback.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from typing import Any

MOST_NUMBERS = 2**24  # in the parameters, in a minibatch, and in the scores of one by each other

Rule = tuple[str, Callable[[Any], bool]]  # what is expected, and whether a value is that
FLAG: Rule = ("true or false", lambda value: isinstance(value, bool))
PARTS: Rule = ("an object of its parts", lambda value: isinstance(value, Mapping))
SHARE: Rule = ("a number from 0 to 1", lambda value: type(value) in (int, float) and 0 <= value <= 1)
RATE: Rule = ("a number above 0", lambda value: type(value) in (int, float) and math.isfinite(value) and value > 0)
# Checks whose cases a trainer may refuse by raising: unused parameters, a sample that is not a number, and a batch
# normalisation of one sample, as accumulation in micro-batches can make it of any minibatch.
MAY_REFUSE = ("batch_norm", "refusals", "not_a_number")
LOW_PRECISION = "low_precision"  # the check whose cases have variants
# A convolutional net sees its features as an image: channels, height, width. With one channel, channels-last weights
# would be contiguous as well.
IMAGE = (2, 4, 4)


def _whole(least: int, most: int) -> Rule:
    return f"a whole number from {least} to {most}", lambda value: type(value) is int and least <= value <= most


def _even(least: int, most: int) -> Rule:
    return f"an even number from {least} to {most}", lambda value: value % 2 == 0 and _whole(least, most)[1](value)


def _one_of(*names: str) -> Rule:
    return f"one of {', '.join(names)}", lambda value: value in names


def _list_of(rule: Rule, most: int) -> Rule:
    expected, fits = rule
    return (
        f"a list of at most {most}, each {expected}",
        lambda value: isinstance(value, list | tuple) and len(value) <= most and all(map(fits, value)),
    )


def _or_none(rule: Rule) -> Rule:
    expected, fits = rule
    return f"{expected}, or null", lambda value: value is None or fits(value)


STEP = _or_none(_whole(0, 99))
PLACE: Rule = ("[step, rank, ranks]", lambda value: len(value) == 3 and all(map(_whole(0, 99)[1], value)))


def _part(default: Any, rule: Rule) -> Any:
    """Return the field of a part that may be left out."""
    return field(default=default, metadata={"rule": rule})


def require_valid(kind: str, content: Any) -> None:
    """Check the JSON of a case, a net or a text (`kind` is a name in `RULES`), part by part.

    Raises:
        ValueError: it is no object, or has an unknown part or one with a wrong value; the message says what is valid.
    """
    rules = RULES[kind]
    if not isinstance(content, Mapping):
        raise ValueError(f"{kind} is {_short(content)}: expected {PARTS[0]}, {', '.join(rules)}")
    if unknown := set(content) - set(rules):
        raise ValueError(f"{kind} has no {sorted(unknown)}: its parts are {', '.join(rules)}")
    for name, value in content.items():
        expected, fits = rules[name]
        if not _holds(fits, value):
            raise ValueError(f"{kind}.{name} is {_short(value)}: expected {expected}")


def _holds(fits: Callable[[Any], bool], value: Any) -> bool:
    try:
        return fits(value)
    except (TypeError, ValueError):  # such as a text where a number is expected
        return False


def _short(value: Any) -> str:
    return repr(value)[:80]


@dataclass(frozen=True)
class Net:
    """What a network is made of; `suite.properties.nets` builds it. The default is a single linear layer."""

    inputs: int = _part(2, _whole(1, 2**17))  # features of a sample; those of an IMAGE when `conv`
    hidden: tuple[int, ...] = _part((), _list_of(_whole(1, 2**14), 16))  # widths of the hidden layers
    classes: int = _part(2, _whole(2, 1024))
    activation: str = _part("tanh", _one_of("tanh", "relu"))
    conv: bool = _part(False, FLAG)  # a convolution before the first layer
    norm: str = _part("none", _one_of("none", "layer", "batch"))  # after every hidden layer
    dropout: bool = _part(False, FLAG)  # after every hidden layer, half of the features
    buffer: bool = _part(False, FLAG)  # a fixed random tensor, no parameter, that is added to the scores
    tied: bool = _part(False, FLAG)  # two layers before the last that share their weight
    frozen: bool = _part(False, FLAG)  # the first weight takes no gradient
    # A layer used "nowhere", "somewhere" (for sample 0 alone), "elsewhere" (for samples 2, 3, ...), or "later" than in
    # the first step.
    unused: str = _part("none", _one_of("none", "nowhere", "somewhere", "elsewhere", "later"))


@dataclass(frozen=True)
class Text:
    """A language model and its texts; `suite.properties.nets` builds both. The default is an embedding and a head."""

    vocabulary: int = _part(2, _whole(2, 2**14))
    positions: int = _part(1, _whole(1, 1024))  # tokens of the longest text
    width: int = _part(2, _even(2, 2**12))  # features of a token
    blocks: int = _part(0, _whole(0, 16))  # of attention and two layers
    norm: str = _part("none", _one_of("none", "layer", "rms"))  # before attention, layers and head
    rotary: bool = _part(False, FLAG)  # rotary positions instead of learned ones
    tied: bool = _part(False, FLAG)  # the head has the embedding's weight
    checkpoint: bool = _part(False, FLAG)  # blocks are recomputed in the backward
    dropout: bool = _part(False, FLAG)  # behind every attention, half of the features
    unequal: bool = _part(False, FLAG)  # texts of unequal length
    ignored: bool = _part(False, FLAG)  # some labels do not count
    silent: int = _part(0, _whole(0, 4096))  # no label of so many last texts counts, so that a rank may have none
    weighted: bool = _part(False, FLAG)  # samples have weights
    # A layer used "nowhere", or "somewhere": for text 0 alone, as an expert may be.
    unused: str = _part("none", _one_of("none", "nowhere", "somewhere"))


@dataclass(frozen=True)
class Case:
    """What one example of a check is put to a trainer with."""

    world_size: int = field(metadata={"rule": _whole(1, 64)})
    # Samples in the minibatch of each step, over all ranks.
    batches: tuple[int, ...] = field(metadata={"rule": _list_of(_whole(1, 4096), 100)})
    seed: int = _part(0, _whole(0, 2**32 - 1))
    dtype: str = _part("float64", _one_of("float64", "float32", "bfloat16"))
    lr: float = _part(0.5, RATE)
    net: Net = field(default_factory=Net, metadata={"rule": PARTS})
    # In the place of `net`, for a trainer of tokens.
    text: Text | None = field(default=None, metadata={"rule": _or_none(PARTS)})
    spoiled: int | None = _part(None, STEP)  # in this step one sample's features, or one text's weight, are NaN
    # Those features are finite instead, and so large that a loss scale makes them infinite.
    overflows: bool = _part(False, FLAG)
    # Another order of the samples, and other rounding errors in what is given, than in the others.
    variant: int = _part(0, _whole(0, 9999))
    # A variant keeps the order, and its features and first weights differ by this share at most.
    moved_by: float = _part(0.0, SHARE)
    resumed: int | None = _part(None, STEP)  # before this step the trainer is saved, and another instance goes on
    # (step, rank, ranks): in this step only the samples of one of so many.
    part: tuple[int, int, int] | None = _part(None, _or_none(PLACE))
    # In every step a sample gets the random numbers that one device would draw for it.
    shares_draws: bool = _part(False, FLAG)

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
        require_valid("Case", content)
        for name in ("world_size", "batches"):
            if name not in content:
                raise ValueError(f"Case has no {name}: expected {RULES['Case'][name][0]}")
        net, text = dict(content.get("net", {})), content.get("text")
        require_valid("Net", net)
        require_valid("Text", text or {})
        if "hidden" in net:
            net["hidden"] = tuple(net["hidden"])
        built: dict[str, Any] = {"net": Net(**net), "text": None if text is None else Text(**text)}
        part = content.get("part")
        built |= {"batches": tuple(content["batches"]), "part": None if part is None else tuple(part)}
        case = cls(**{**content, **built})
        for name, step in (("spoiled", case.spoiled), ("resumed", case.resumed)):
            if step is not None and step >= len(case.batches):
                raise ValueError(f"Case.{name} is step {step} of {len(case.batches)}: expected one of them, from 0")
        if (numbers := case.numbers()) > MOST_NUMBERS:
            raise ValueError(f"the case has tensors of {numbers} numbers: expected {MOST_NUMBERS} at most")
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
RULES: dict[str, dict[str, Rule]] = {
    kind.__name__: {part.name: part.metadata["rule"] for part in fields(kind)} for kind in (Case, Net, Text)
}
