"""What ranks observed, as it travels to the controller and back to the rank that judges it.

JSON is slow with long lists of numbers, and twice as long as the base64 of their bytes.
"""

from __future__ import annotations

from array import array
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from typing import Any

LONG = 1000  # numbers
FORMATS = {"float32": "f", "float64": "d"}  # the module array's names of them, the shorter one first


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
