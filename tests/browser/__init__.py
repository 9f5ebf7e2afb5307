"""Tests in a browser: pages load nothing else, run no script, fit on a phone and can be used by keyboard."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Page = Any  # playwright is not among what the tests need, and has its own types


@dataclass
class Watched:
    """A page, its requests and its console messages."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))

    def open(self, path: Path) -> None:
        """Load a file and wait until the network is idle."""
        self.page.goto(path.as_uri(), wait_until="networkidle")

    def outside(self, path: Path) -> list[str]:
        """Requests for anything but this file itself."""
        return [url for url in self.requests if url != path.as_uri() and not url.startswith("data:")]
