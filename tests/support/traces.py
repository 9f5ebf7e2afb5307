"""What is in a trace that `python -m suite trace` has left."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any


def events(path: Path) -> list[dict[str, Any]]:
    """Return the complete events of a trace: what took time, with thread and duration."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        content = json.load(file)
    return [event for event in content["traceEvents"] if event.get("ph") == "X"]
