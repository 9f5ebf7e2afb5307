"""Pages, read strictly, because a browser repairs what is broken; and what a first screen says of a record."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

from suite.records.record import Record
from suite.render import lead
from tests.support import records

# A browser separates the text after these.
BLOCKS = frozenset(
    ("caption", "dd", "div", "dt", "figcaption", "h1", "h2", "h3", "li", "p", "pre", "summary", "td", "th", "title")
)
VOID = frozenset(("meta", "link", "br", "hr", "img", "input", "col", "wbr"))


@dataclass
class Element:
    """One element with its attributes, and the text inside it: a part of the page's, from its start to its end."""

    tag: str
    attributes: dict[str, str]
    ancestors: tuple[str, ...] = field(default=(), repr=False)
    page: list[str] = field(default_factory=list, repr=False)
    start: int = 0
    end: int = 0

    @property
    def text(self) -> str:
        """The text as it is written, white space included."""
        return "".join(self.page[self.start : self.end])


class Page(HTMLParser):
    """A parsed page.

    Raises:
        ValueError: a tag is closed that is not open, or one stays open.
    """

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self._text: list[str] = []
        self.feed(html)
        self.close()
        if self._open:
            raise ValueError(f"<{self._open[-1].tag}> is never closed")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        if len(names) != len(set(names)):
            raise ValueError(f"<{tag}> has an attribute twice: {names}")
        ancestors = tuple(element.tag for element in self._open)
        attributes = {name: value or "" for name, value in attrs}
        element = Element(tag, attributes, ancestors, self._text, start=len(self._text), end=len(self._text))
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1].tag != tag:
            raise ValueError(f"</{tag}> closes {self._open[-1] if self._open else 'nothing'}")
        self._open.pop().end = len(self._text)
        if tag in BLOCKS:
            self._text.append(" ")

    def handle_data(self, data: str) -> None:
        self._text.append(data)

    def all(self, *tags: str) -> list[Element]:
        """Return the elements of these tags, in order."""
        return [element for element in self.elements if element.tag in tags]

    def one(self, tag: str) -> Element:
        """Return the only element of this tag."""
        [found] = self.all(tag)
        return found

    def section(self, name: str) -> str:
        """Return the text of a section, with single spaces."""
        [found] = [element for element in self.all("section") if element.attributes.get("id") == name]
        return " ".join(found.text.split())

    @property
    def structure(self) -> list[tuple[str, tuple[str, ...]]]:
        """Every tag with the names of its attributes, which must not depend on any text."""
        return [(element.tag, tuple(element.attributes)) for element in self.elements]


TYPED = ["-m", "scaling", "--scaling-world-sizes=1,2"]


def cells_of(world_sizes: str, mode: str = "strong", trainer: str = "ddp") -> str:
    """Return the options that choose these cells of `lenet`."""
    chosen = f"--scaling-trainer={trainer} --scaling-workload=lenet --scaling-mode={mode}"
    return f"{chosen} --scaling-world-sizes={world_sizes}"


def first_run(**changes: object) -> Record:
    """Return a run of twelve cells with nothing to compare with, two of them with a cause."""
    cells = records.matrix(trainers=("scratch", "data_parallel", "ddp"), outcome="NO BASELINE", accuracy=0.97)
    cells[1]["waterfalls"] = [records.waterfall()]
    cells[3]["waterfalls"] = [records.waterfall(exchange=0.0112)]
    cells[5]["waterfalls"] = [unsure()]
    nets = [
        records.accuracy(trainer=trainer, mode=mode, world_size=k)
        for trainer in ("scratch", "data_parallel", "ddp")
        for mode, k in (("strong", 1), ("strong", 2), ("weak", 2))
    ]
    return records.make(**({"cells": cells, "accuracies": nets, "repeat": TYPED} | changes))


def unsure() -> dict[str, object]:
    """Return a waterfall whose intervals support no cause."""
    fall = records.waterfall()
    for bar in fall["bars"]:
        bar["step_s"] = records.interval(bar["step_s"]["estimate"], 5.0)
    return fall


def facts(record: Record) -> dict[str, str]:
    return {fact.name: "\n".join(fact.lines) for fact in lead.facts(record)}


def steps(record: Record) -> dict[str, str]:
    return {step.what: step.command for step in lead.steps(record)}
