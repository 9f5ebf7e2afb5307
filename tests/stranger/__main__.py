"""`python -m tests.stranger`: run everything that is printed, print a table, and fail where a command did not work."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.stranger import commands, places, rules, running
from tests.stranger.commands import Command
from tests.stranger.places import MISTAKE, Place
from tests.stranger.running import Journal, Row

DEADLINE_S = 1500.0  # of a command: it ends a hang; on a busy machine torch alone takes pip ten minutes
HEADER = """\
# Everything that is printed, as printed

`python -m tests.stranger` at commit {commit}. [Contributing](../../CONTRIBUTING.md) says what it does.

"""
ADVISED = "what the error advises"
PAGES = ("clone", "elsewhere", "jobs")
# The layouts of a whole run: each shape and each way to install at least twice.
USUAL = (
    "flat-pip-e", "flat-uv-e", "flat-none", "src-pip-e", "src-wheel", "src-none", "module-uv-e", "module-wheel",
)  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run what was asked for; return 0 if every command ended as expected, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.stranger", description=__doc__)
    parser.add_argument("--first-half", action="store_true", help="a clone, its environment and README's own commands")
    parser.add_argument(
        "--layout",
        action="append",
        choices=[*PAGES, *places.LAYOUTS, "all"],
        help="only this place; repeatable (default: the pages and eight layouts; all: all twelve)",
    )
    parser.add_argument("--folder", type=Path, help="keep everything here, and go on where an earlier call ended")
    parser.add_argument("--table", type=Path, help="write the table to this file, too")
    asked = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what runs is ended, and the folder removed
    folder = (asked.folder or Path(tempfile.mkdtemp(prefix="stranger-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return _in(folder, asked)
    finally:
        if asked.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


def _in(folder: Path, asked: argparse.Namespace) -> int:
    journal = Journal(folder / "journal.jsonl")
    if asked.first_half:
        names = ["clone"]
    elif asked.layout and "all" not in asked.layout:
        names = asked.layout
    else:
        names = [*PAGES, *(places.LAYOUTS if asked.layout else USUAL)]
    if names != ["clone"]:
        places.needs_uv()
    git_settings(folder)
    for name in names:
        Reader(place_of(name, folder, first_half=asked.first_half), journal, folder, asked.first_half).read()
    text = "\n".join([*running.table(journal.rows), "", running.summary(journal.rows)])
    if asked.table:
        commit = places.git(places.REPOSITORY, "rev-parse", "--short", "HEAD").strip()
        asked.table.write_text(f"{HEADER.format(commit=commit)}{text}\n", encoding="utf-8")
    print("", text, sep="\n")
    return int(any(row.outcome == "UNEXPECTED" for row in journal.rows))


def place_of(name: str, folder: Path, *, first_half: bool) -> Place:
    """Return a place by its name on the command line; makes what is not there yet."""
    if name == "clone":
        return places.clone(folder, depth=0 if first_half else 1)
    if name == "elsewhere":
        return places.elsewhere(folder)
    if name == "jobs":
        return places.jobs(folder)
    return places.layout(folder, name)


def git_settings(folder: Path) -> Path:
    """Return a file of git's settings that stands for the one of the home folder, which it includes."""
    file = folder / "gitconfig"
    if not file.exists():
        file.write_text("[include]\n    path = ~/.gitconfig\n", encoding="utf-8")
    return file


class Reader:
    """Runs the commands of one place in reading order, what they print, and what their errors advise."""

    def __init__(self, place: Place, journal: Journal, folder: Path, first_half: bool) -> None:
        self._place, self._journal, self._folder, self._first_half = place, journal, folder, first_half
        more = {**place.variables, "GIT_CONFIG_GLOBAL": str(git_settings(folder)), "COLUMNS": "200"}
        self._variables = running.environment(place.programs, more)
        self._seen: set[str] = set()

    def read(self) -> None:
        queue = list(self._place.commands)
        while queue:
            command = queue.pop(0)
            if command.text in self._seen and not command.repeat:
                continue
            self._seen.add(command.text)
            queue[:0] = self._try(command)

    def _try(self, command: Command) -> list[Command]:
        """Run a command, do what its error advises, and return the commands that it printed."""
        row = self._run(command)
        if row.status is None:
            return []
        output = Path(row.log).read_text(encoding="utf-8", errors="replace")
        advised = list(self._advised(command, row, output))
        if command.depth >= self._place.depth or command.prepares or command.met == MISTAKE:
            return advised
        printed = commands.in_output(output, _printed_by(command), command.depth + 1, row.status)
        return [*advised, *self._chosen(printed)]

    def _advised(self, command: Command, row: Row, output: str) -> Iterator[Command]:
        if command.met == MISTAKE:
            trainer = self._place.trainer
            mistake = next(each for each in rules.MISTAKES if each.typed(trainer) == command.text)
            text = mistake.advice(output, trainer) or f"false  # not said: {mistake.said}"
            yield Command(text, ADVISED, depth=self._place.depth)
            return
        if row.status and command.met != ADVISED:
            for text in rules.remedies(output, command.text, self._place.name, self._place.code):
                yield Command(text, ADVISED, depth=self._place.depth)

    def _chosen(self, printed: list[Command]) -> Iterator[Command]:
        """Yield the commands to run: of several that an output prints for the same reason, the first."""
        said = set[str]()
        for command in printed:
            if command.label in said and command.text not in self._seen:
                self._seen.add(command.text)
                self._skip(command, "as the one before it, of another cell")
                continue
            said.add(command.label)
            if "with all changes committed" in command.label:
                yield Command("git add --all && git commit --quiet --message 'All changes'", command.met, prepares=True)
            yield command

    def _skip(self, command: Command, reason: str) -> Row:
        return self._journal.add(Row(self._place.name, command.text, command.met, None, reason))

    def _run(self, command: Command) -> Row:
        if reason := rules.skipped(command.text, first_half=self._first_half):
            return self._skip(command, reason)
        if earlier := self._journal.earlier(self._place.name, command.text):
            return earlier
        cut, log = rules.cut(command.text), self._journal.next_log()
        text, note = command.text, cut.options
        if cut.printed:
            text, note = text.replace(cut.printed, cut.instead), f"{cut.printed} → {cut.instead}"
        variables = {**self._variables, **({"PYTEST_ADDOPTS": cut.options} if cut.options else {})}
        print(f"{self._place.name}: {command.text}", flush=True)
        status, seconds = running.run(text, self._place.folder, variables, log, DEADLINE_S)
        last = running.last_line(log.read_text(encoding="utf-8", errors="replace").replace(f"{self._folder}/", ""))
        print(f"    {status} in {seconds:.0f} s: {last}", flush=True)
        rule = None if command.met == ADVISED else rules.expected(command.text, self._place.name)
        expected = rule.status if rule else command.expected
        row = Row(self._place.name, command.text, command.met, status, last, seconds, expected, note, str(log))
        return self._journal.add(row)


def _printed_by(command: Command) -> str:
    first = command.text.splitlines()[-1]
    return f"printed by `{first if len(first) <= 60 else first[:57] + '...'}`"


if __name__ == "__main__":
    sys.exit(main())
