"""List the error messages in the code, and what each says to do.

    python -m tests.docs.messages > docs/messages.md

A message is the text that an exception is made with, or that one of `WRITERS` writes. It says first what is wrong, and
then what to do: after the first semicolon, else after the last colon. The page shows both parts in the words of the
code. `tests/docs/test_messages.py` refuses a message without the second part, and a message that no test reads.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.project import REPOSITORY

TOPS = ("suite", "reference")
CONFLICT = "torch_scaling_suite.py"  # beside them
HOLE = "…"  # what differs from case to case
ERRORS = re.compile(r"(\w*Error|\w*Exception|\w*Failure|Stop|WrongSum|LossNotFinite|fail|raised)")
# What returns or collects the text of a message that its caller raises or shows: functions and tables.
WRITERS = {
    "suite/base/bases.py": ("_no_such_commit", "_why_not_run"),
    "suite/base/git.py": ("NO_COMMIT", "_remedy"),
    "suite/plan/config.py": ("misfit",),
    "suite/plan/workloads.py": ("no_recipe",),
    "suite/plugin.py": ("_missing_devices", "pytest_collection_modifyitems"),
    "suite/processes/failure.py": ("OUT_OF_MEMORY",),
    "suite/processes/folder.py": ("unusable",),
    "suite/processes/jobs.py": ("remedy", "DIVERGED"),
    "suite/processes/launchers.py": ("did_not_start",),
    "suite/processes/pool.py": ("_why_ended",),
    "suite/properties/contract.py": ("_breaches",),
    "suite/records/baselines.py": ("NOTHING_SELECTED", "NOTHING_COULD_RUN", "NOTHING_IN_TIME", "refusal"),
    "suite/room/devices.py": ("survey", "_unsliced", "_AMD", "_REFUSED"),
    "suite/room/errors.py": ("described", "too_old"),
    "suite/room/limits.py": ("lacking",),
    "suite/room/nvml.py": ("refusal",),
    "suite/run/confirming.py": ("problem", "mismatch"),
    "suite/run/execute.py": ("keep",),
    "suite/template.py": ("_start",),
    "suite/worker.py": ("_send",),
    CONFLICT: ("conflict",),
}
MOST_ALTERNATIVES = 8  # of one message, where it has conditional parts
LEAST_WORDS = 4  # a shorter text in a writer is a part of another one
# How a remedy may begin where nothing precedes it.
RULE = ("expected", "valid values are", "check", "lower lr", "repair")
HEAD = """\
# Messages

Every error message in the code that can be looked up by its words: what is wrong, and what to do. `…` stands for what
differs from case to case: a name, a value, or the text of git or of an exception. Where a message ends with `…`,
another message follows, which has the remedy. [Reliability](reliability.md) says what happens after a failure, and with
which exit status.

A message about something that you did not write, name or set is a defect of the suite: please report it.
"""

Known = Mapping[str, ast.expr]


class Message(NamedTuple):
    """One message: the file that writes it, and its text with `HOLE` for every value."""

    file: str
    text: str

    @property
    def parts(self) -> tuple[str, str]:
        """What is wrong, and what to do; the second is empty where the text does not say it."""
        if self.text.startswith(RULE):
            return "", self.text
        wrong, _, remedy = self.text.partition("; ")
        if not remedy:
            wrong, _, remedy = self.text.rpartition(": ")
            says = remedy.startswith(RULE) or (_words(remedy) > 1 and _words(wrong) > 0)
            return (wrong, remedy) if says else (self.text, "")
        return (wrong, remedy) if _words(remedy) else (self.text, "")

    @property
    def introduces(self) -> bool:
        """Whether it only says where another message, which follows it, comes from."""
        return bool(re.search(rf"([:;,] |\(){HOLE}\)?$", self.text)) and not self.parts[1]


def messages(folder: Path) -> list[Message]:
    """Return the messages in the modules of `TOPS` and in `CONFLICT`, by file, in the order of the code."""
    paths = {str(path.relative_to(folder)): path for top in TOPS for path in sorted((folder / top).rglob("*.py"))}
    paths |= {CONFLICT: folder / CONFLICT} if (folder / CONFLICT).exists() else {}
    every = [messages_in(file, path.read_text(encoding="utf-8"), WRITERS.get(file, ())) for file, path in paths.items()]
    return list(itertools.chain.from_iterable(every))


def messages_in(file: str, code: str, writers: Iterable[str] = ()) -> list[Message]:
    """Return the messages of one module, each once; `writers` are its functions and tables of texts."""
    tree = ast.parse(code)
    return [Message(file, text) for text in dict.fromkeys(_texts_in(tree, _assigned(tree), writers))]


def _texts_in(tree: ast.AST, known: Known, writers: Iterable[str], *, writes: bool = False) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        inside, here = writes, known
        if writes and isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            continue  # it is read where its name is
        if isinstance(node, ast.FunctionDef):
            inside, here = node.name in writers, {**known, **_assigned(node)}
        elif isinstance(node, ast.Assign) and not writes:
            inside = any(ast.unparse(target) in writers for target in node.targets)
        if isinstance(node, ast.Call) and ERRORS.fullmatch(ast.unparse(node.func).rpartition(".")[2]):
            texts = [text for argument in node.args for text in alternatives(argument, here)]
            most = max(map(_words, texts), default=0)
            yield from (text for text in texts if _words(text) == most > 1)
        elif inside and isinstance(node, ast.JoinedStr | ast.Constant | ast.BinOp):
            yield from (text for text in alternatives(node, here) if _words(text) >= LEAST_WORDS)
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):  # a docstring
            yield from _texts_in(node, here, writers, writes=inside)


def alternatives(node: ast.expr, known: Known, depth: int = 3) -> list[str]:
    """Return the texts that an expression may have; `known` are the expressions behind names."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=values):
            each = [alternatives(value, known, depth) for value in values]
            return ["".join(some) for some in itertools.islice(itertools.product(*each), MOST_ALTERNATIVES)]
        case ast.FormattedValue(value=value):
            return alternatives(value, known, depth)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            both = itertools.product(alternatives(left, known, depth), alternatives(right, known, depth))
            return list(map("".join, both))
        case ast.IfExp(body=body, orelse=other):
            return [*alternatives(body, known, depth), *alternatives(other, known, depth)]
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format_map")):
            return [re.sub(r"\{\w+\}", HOLE, text)]
        case ast.Name(id=name) if depth and name in known:
            return alternatives(known[name], known, depth - 1)
    return [HOLE]


def _assigned(tree: ast.AST) -> dict[str, ast.expr]:
    """Return the texts that names of a module or a function stand for; a later one replaces an earlier one."""
    kinds = ast.JoinedStr | ast.Constant | ast.BinOp | ast.IfExp
    pairs = [
        (target, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.NamedExpr) and isinstance(node.value, kinds)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    return {target.id: value for target, value in pairs if isinstance(target, ast.Name)}


def _words(text: str) -> int:
    return len(re.findall(r"[A-Za-z]{2,}", text))


def page(every: Sequence[Message]) -> str:
    """Return the page in Markdown: a table for each room, with its summary over it."""
    lines = [HEAD]
    for room, some in itertools.groupby(every, lambda message: _room(message.file)):
        lines += [f"## `{room}`", "", _summary(room), "", "| what is wrong | what to do |", "|---|---|"]
        found = [message.parts for message in some if _words(message.parts[0])]  # else there is nothing to look up
        lines += [f"| {' | '.join(map(_cell, parts))} |" for parts in found]
        lines.append("")
    return "\n".join(lines)


def _room(file: str) -> str:
    path = Path(file)
    return str(path if path.parent.name in ("", *TOPS) else path.parent)


def _summary(room: str) -> str:
    path = REPOSITORY / room
    source = path if path.is_file() else path / "__init__.py"
    docstring = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    return " ".join(docstring.partition("\n\n")[0].split())


def _cell(text: str) -> str:
    """Return a text as code in a table; its backticks and bars are its own."""
    text = " ".join(text.split()).replace("|", "\\|")
    ticks = "``" if "`" in text else "`"
    space = " " if "`" in text else ""
    return f"{ticks}{space}{text}{space}{ticks}" if text else ""


if __name__ == "__main__":
    print(page(messages(REPOSITORY)), end="")
