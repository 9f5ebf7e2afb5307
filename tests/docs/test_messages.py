"""Every error message says what to do, is shown by `python -m tests.docs.messages`, and is read by a test."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import messages
from tests.docs.messages import HOLE, Message, messages_in
from tests.support.project import REPOSITORY

RUN = 10  # characters in a row of a message that a test expects, and no other message has
READS = re.compile(r"match=|fnmatch|readouterr|\.std(out|err)|\.cause|\.failure\b|fails\(|message")


@pytest.fixture(scope="module")
def every() -> list[Message]:
    return messages.messages(REPOSITORY)


def runs(text: str) -> set[str]:
    """Return every `RUN` characters in a row of a text, without its values."""
    pieces = text.split(HOLE)
    return {piece[at : at + RUN] for piece in pieces for at in range(len(piece) - RUN + 1)}


def said(pattern: str) -> str:
    """Return what a regular expression or a pattern of fnmatch expects, with `HOLE` for what varies."""
    text = re.sub(r"\\[dwsS][+*]?|\.[+*]\??|(?<!\\)[*|^$]|\(\?[a-z]\)", HOLE, pattern.replace("[[]", "["))
    return re.sub(r"\\(.)", r"\1", text)


def expected(folder: Path) -> Iterator[str]:
    """Yield the texts in the modules of tests that read messages, without their docstrings."""
    for path in sorted(folder.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if path == Path(__file__) or not READS.search(text):
            continue
        tree = ast.parse(text)
        prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
                yield said(node.value)


def unread(every: list[Message], texts: Iterator[str]) -> list[Message]:
    """Return the messages of which no text has `RUN` characters; of their own, where they have any."""
    counted = Counter(run for message in every for run in runs(message.text))
    read = {run for text in texts for run in runs(text)}

    def is_read(message: Message) -> bool:
        all_runs = runs(message.text)
        own = {run for run in all_runs if counted[run] == 1}
        return not all_runs or bool((own or all_runs) & read)

    return [message for message in every if not is_read(message)]


def test_every_message_says_what_to_do(every: list[Message]) -> None:
    silent = [message for message in every if not (message.parts[1] or message.introduces)]
    assert silent == []


def test_page_has_a_row_for_every_message_that_can_be_looked_up(every: list[Message]) -> None:
    shown = messages.page(every).splitlines()
    rows = [row for row in shown if row.startswith("| `")]
    assert len(rows) == sum(bool(re.search("[A-Za-z]{2}", message.parts[0])) for message in every) > 100
    assert "## `suite/plugin.py`" in shown


def test_every_message_is_read_by_a_test(every: list[Message]) -> None:
    assert unread(every, expected(REPOSITORY / "tests")) == []


CODE = '''
"""A module; its docstring; has a semicolon."""
_RULE = "expected a path"

def load(name):
    """Load; or not."""
    kind = "file" if name else "name"
    cause = f"{name!r} is no {kind}"
    if not name:
        raise LoadError("first", f"{cause}: {_RULE}")
    pytest.fail(f"ERROR: {name}", pytrace=False)

def _explain(name):
    """Say why."""
    lines = []
    lines.append(f"`{name}` is not there; make it")
    return "ok" if lines else "nobody has named it: name it"
'''


def test_messages_of_a_module() -> None:
    """Constants and conditional names are filled in, values are holes; what a writer returns counts, too."""
    assert messages_in("a.py", CODE, writers=("_explain",)) == [
        Message("a.py", f"{HOLE} is no file: expected a path"),
        Message("a.py", f"{HOLE} is no name: expected a path"),
        Message("a.py", f"`{HOLE}` is not there; make it"),
        Message("a.py", "nobody has named it: name it"),
    ]


@pytest.mark.parametrize(
    ("text", "parts", "introduces"),
    [
        (f"{HOLE} is late: it comes; wait", (f"{HOLE} is late: it comes", "wait"), False),
        (f"{HOLE} is late: it must be here", (f"{HOLE} is late", "it must be here"), False),
        (f"{HOLE}: expected {HOLE}", (HOLE, f"expected {HOLE}"), False),
        (f"{HOLE}: there is nothing", (f"{HOLE}: there is nothing", ""), False),
        (f"workload {HOLE}: {HOLE}", (f"workload {HOLE}: {HOLE}", ""), True),
    ],
)
def test_parts_of_a_message(text: str, parts: tuple[str, str], introduces: bool) -> None:
    message = Message("a.py", text)
    assert (message.parts, message.introduces) == (parts, introduces)


def test_a_message_that_no_test_reads_is_named() -> None:
    """A text that two messages share reads neither."""
    every = [Message("a.py", f"the file {HOLE} is broken; make it again"), Message("a.py", "it is late; make it again")]
    assert unread(every, iter([said(r"the file .* is broken"), "make it again"])) == every[1:]
