"""Commands as a reader meets them: on a page, in a workflow, or in what another command has printed.

Taken from pages are shell blocks, whole; lines of an indented block and spans of code that begin with the name of a
program; and the steps of YAML and Groovy. Taken from outputs are what the first screen says to type next, and the
commands that show a failure again. A command in the middle of a sentence of an output is not found.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

PROGRAM = re.compile(
    r"""(?:[A-Z_]+=(?:"[^"]*"|\S+)\ +)*     # variables of one command
        (?:env\ (?:\S+=\S+\ )*)?
        (?:\S+/)?(?:pytest|pytest-benchmark|pip|tox|git|python[\d.]*\ -m)\ +\S""",
    re.VERBOSE,
)
AGAIN = re.compile(r"see it again: (.+)")
FENCE = re.compile(r"^ *```(\w*)$")
SPAN = re.compile(r"`([^`]+)`")
# A step of a job: `- CMD`, `run: CMD` and `sh 'CMD'`.
STEP = re.compile(r"^\s*(?:- (?:run: )?|run: |sh ')(.+?)'?$")
SCRIPT = re.compile(r"^( *)(?:- )?run: \|$")
SHOWN_AGAIN = re.compile(r"see it again|To see .* again|, again$")
LABEL = re.compile(r"^(\S.*):$")


@dataclass(frozen=True)
class Command:
    """A command, and where it was met.

    Attributes:
        text: what is run, as it was printed; one or more lines.
        met: the page and line, or what printed it.
        expected: the exit status that it has to have.
        prepares: whether the reader does this because a sentence says so, and no command was printed.
        depth: how many outputs lie between a page and this command.
        label: the words with which an output introduces it.
        repeat: whether it is run although this text was run here before.
    """

    text: str
    met: str
    expected: int = 0
    prepares: bool = False
    depth: int = 0
    label: str = ""
    repeat: bool = False


def on_page(name: str, text: str) -> list[Command]:
    """Return the commands of a Markdown page, in reading order; each text once.

    Args:
        name: the page, as the table shows it.
        text: its Markdown.
    """
    found: dict[str, Command] = {}
    for line, command in _on_page(text):
        found.setdefault(command, Command(command, f"{name}:{line}"))
    return list(found.values())


def _on_page(text: str) -> Iterator[tuple[int, str]]:
    lines = text.splitlines()
    at, prose, prose_at = 0, list[str](), 1
    while at < len(lines):
        fence, indented = FENCE.match(lines[at]), lines[at].startswith("    ")
        if not fence and not indented:
            prose_at = prose_at if prose else at + 1
            prose.append(lines[at])
            at += 1
            continue
        yield from _spans(prose_at, prose)
        prose = []
        if fence:
            end = next(end for end in range(at + 1, len(lines)) if lines[end].strip() == "```")
            yield from _of_block(fence[1], at + 2, lines[at + 1 : end])
            at = end + 1
        else:
            yield from _of_line(at + 1, lines[at])
            at += 1
    yield from _spans(prose_at, prose)


def _spans(at: int, prose: list[str]) -> Iterator[tuple[int, str]]:
    text = "\n".join(prose)
    for span in SPAN.finditer(text):
        command = " ".join(span[1].split())
        if PROGRAM.match(command):
            yield at + text.count("\n", 0, span.start()), command


def _of_block(language: str, at: int, lines: list[str]) -> Iterator[tuple[int, str]]:
    if language in ("sh", "bash"):
        yield at, "\n".join(lines)
    elif language in ("yaml", "groovy"):
        yield from ((at + line - 1, command) for line, command in in_workflow("\n".join(lines)))


def _of_line(at: int, line: str) -> Iterator[tuple[int, str]]:
    command = again[1] if (again := AGAIN.search(line)) else line.strip()
    if PROGRAM.match(command):
        yield at, command


def in_workflow(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, command) of the steps of a workflow that run a program or a script."""
    lines = text.splitlines()
    for at, line in enumerate(lines):
        if script := SCRIPT.match(line):
            inner = len(script[1]) + 2
            body = list(_taken_in(lines[at + 1 :], inner))
            yield at + 2, textwrap.dedent("\n".join(body))
        elif (step := STEP.match(line)) and PROGRAM.match(step[1]):
            yield at + 1, step[1]


def _taken_in(lines: list[str], spaces: int) -> Iterator[str]:
    for line in lines:
        if line.strip() and not line.startswith(" " * spaces):
            return
        yield line


def in_output(output: str, by: str, depth: int, status: int) -> list[Command]:
    """Return the commands that an output says to type, in its order; each text once.

    Args:
        output: what a command printed.
        by: that command, as the table shows it.
        depth: of the commands that are found.
        status: how that command ended, and so will one that shows its failure again.
    """
    found: dict[str, Command] = {}
    above = ""
    for line in output.splitlines():
        again, label = AGAIN.search(line), LABEL.match(above)
        text = again[1].strip() if again else line.strip()
        printed = again or (label and line.startswith("    "))
        if printed and PROGRAM.match(text):
            said = "see it again" if again else label[1] if label else ""
            expected = status if SHOWN_AGAIN.search(said) else 0
            found.setdefault(text, Command(text, by, expected, depth=depth, label=said))
        above = line
    return list(found.values())
