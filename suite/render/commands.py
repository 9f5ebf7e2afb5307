"""Commands to type next, made from the command of the run itself. Pure.

A command has the options of the run (`Record.repeat`), so that it measures the same; one for some of the cells names
them instead. Where neither options nor `-k` can name these alone, it measures others as well. Everything is quoted for
a shell. Records from before that field name all their cells.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence

from suite.plan.cells import Cell, CollectiveCell, names
from suite.plan.config import BUDGET_S
from suite.records.record import CellRecord, CollectiveRecord, Record
from suite.verdict import Outcome

_CHOOSING = ("trainer", "workload", "mode", "world-sizes")  # options that say which cells there are
_MEASURING = ("devices", "data-root", "report-dir")  # where and on what
_TRAINED = ("trainer", "script", "batch")  # what is checked
_CHECKS = ("suite.checks", "suite/checks")  # how the paths of checks begin
_SETTINGS = ("--config-file", "--override-ini")  # where the other options come from
_SESSIONS = ("budget", "profile")  # options that say how many there are
_OVERRIDDEN_SESSIONS = tuple(f"--override-ini=scaling_{name}=" for name in _SESSIONS)
MAX_CHARACTERS = 2_000  # of a command on a page, which never shows one cut
_ADDED = 100  # characters that a caller adds to the arguments for some cells, at most
_PLAIN = re.compile(r"[A-Za-z0-9_./+-]+")  # an id that `-k` can name: pytest escapes other letters in an item's name


def only(record: Record, cells: Sequence[CellRecord]) -> str:
    """Return the command that measures these cells again, compared with the same base."""
    return shlex.join(["pytest", *_narrowed(record, cells)])


def collective(record: Record, sweep: CollectiveRecord) -> str:
    """Return the command that measures one collective again."""
    chosen = [f"--scaling-world-sizes={sweep.world_size}", "-k", f"[{collective_id(sweep)}]"]
    return shlex.join(["pytest", *_without(_unselected(record), ("world-sizes",)), *chosen])


def collective_id(sweep: CollectiveRecord) -> str:
    """Return the parameter id of a collective's pytest item."""
    return CollectiveCell(sweep.algorithm, sweep.world_size, sweep.collective).id


def longer(record: Record, cells: Sequence[CellRecord]) -> str:
    """Return the command that measures these cells in the sessions of the full profile."""
    kept = [each for each in _without(_narrowed(record, cells), _SESSIONS) if not each.startswith(_OVERRIDDEN_SESSIONS)]
    budget = [f"--scaling-budget={BUDGET_S['full']:.0f}"] if record.own_budget else []  # an ini file may set it
    return shlex.join(["pytest", *kept, "--scaling-profile=full", *budget])


def accept(record: Record) -> str:
    """Return the command that measures the same again and accepts it, after a FAIL as slower."""
    slower = any(cell.outcome is Outcome.FAIL for cell in record.cells)
    return _against(record, "--scaling-accept=slower" if slower else "--scaling-accept")


def against_main(record: Record) -> str:
    """Return the command that measures the same, compared with the branch that changes go to."""
    return _against(record, f"--scaling-against=ref:{record.environment.main}")


def _against(record: Record, option: str) -> str:
    return shlex.join(["pytest", *_without(_repeat(record), ("against",)), option])


def correctness(record: Record) -> str:
    """Return the command that checks the gradients of the run's trainers."""
    repeat = _repeat(record)
    where = ["--pyargs", "suite.checks"] if "--pyargs" in repeat else []
    return shlex.join(["pytest", *where, "-m", "correctness", *_with(repeat, (*_MEASURING, *_TRAINED))])


def trace(record: Record, cell: CellRecord) -> str:
    """Return the command that looks into the steps of one cell."""
    kept = (*_MEASURING, "script", "batch") if cell.runs_script else _MEASURING
    return shlex.join(["python", "-m", "suite", "trace", *_with(_repeat(record), kept), *_cells([cell])])


def weak(record: Record, cell: CellRecord) -> str:
    """Return the command that measures a cell's trainer in weak scaling, which keeps the batch per device."""
    return only(record, [cell.model_copy(update={"mode": "weak"})])


def sweep(record: Record, cell: CellRecord) -> str:
    """Return the command that shows which accuracy a larger batch leads to, and with which learning rate.

    Its rules start from what one device does best with.
    """
    on_one = cell.model_copy(update={"world_size": 1})
    chosen = _without(_cells([on_one, cell]), ("mode",))
    return shlex.join(["python", "-m", "suite", "sweep", *_with(_repeat(record), _MEASURING), *chosen])


def _repeat(record: Record) -> Sequence[str]:
    return record.repeat or ("-m", "scaling", *_cells(record.cells))


def fits(command: str) -> bool:
    """Return whether a page can show all of a command."""
    return len(command) <= MAX_CHARACTERS


def selects_others(record: Record, cells: Sequence[CellRecord]) -> bool:
    """Return whether the commands for these cells measure other cells as well."""
    return _narrowed(record, cells) != _exactly(record, cells)


def _narrowed(record: Record, cells: Sequence[CellRecord]) -> list[str]:
    """Return the arguments for these cells alone; where `-k` would be too long or cannot name them, for more."""
    exact = _exactly(record, cells)
    if exact is not None and (len(cells) == 1 or _short(exact)):
        return exact
    wider = _by_options(record, cells)
    return wider if _short(wider) else list(_repeat(record))


def _short(arguments: Sequence[str]) -> bool:
    return len(shlex.join(arguments)) <= MAX_CHARACTERS - _ADDED


def _exactly(record: Record, cells: Sequence[CellRecord]) -> list[str] | None:
    """Return the arguments that select these cells alone; None where pytest has no words for that."""
    options = _by_options(record, cells)
    if _are_product(cells) and not _leaves_out_scripts(record, cells):
        return options
    ids = _ids(cells)
    return [*options, "-k", " or ".join(f"[{each}]" for each in ids)] if all(map(_PLAIN.fullmatch, ids)) else None


def _by_options(record: Record, cells: Sequence[CellRecord]) -> list[str]:
    """Return the run's arguments with every combination of these cells' trainers, workloads, modes and world sizes."""
    return [*_without(_unselected(record), _CHOOSING), *_cells(cells)]


def _are_product(cells: Sequence[CellRecord]) -> bool:
    fields = ("trainer", "workload", "mode", "world_size")
    return math.prod(len({getattr(cell, field) for cell in cells}) for field in fields) == len(cells)


def _leaves_out_scripts(record: Record, cells: Sequence[CellRecord]) -> bool:
    """Return whether the run has scripts beside these cells, which no other option than their own selects."""
    scripted = {cell.trainer for cell in record.cells if cell.runs_script}
    return bool(scripted - {cell.trainer for cell in cells})


def _ids(cells: Sequence[CellRecord]) -> list[str]:
    """Return the ids of cells in a run that has no other trainers."""
    known = names(cell.trainer for cell in cells)
    return [Cell(*cell.place, known[cell.trainer]).id for cell in cells]


def _unselected(record: Record) -> list[str]:
    """Return the run's arguments without those that select some of its items, or other items than are measured."""
    kept, chosen = list(_repeat(record)), list[str]()
    if "-k" in kept:
        at = kept.index("-k")
        kept[at : at + 2] = []
    if "-m" in kept:
        at = kept.index("-m")
        # Items that are measured have this marker, on GPUs too; `not gpu` chooses CPU workers where GPUs are.
        chosen = ["-m", "scaling and not gpu" if "not gpu" in kept[at + 1] else "scaling"]
        kept[at : at + 2] = []
    measured = (part for part in kept if not part.startswith(_CHECKS))
    paths = dict.fromkeys(part if part.startswith("-") else part.partition("::")[0] for part in measured)
    return [*chosen, *paths]  # one folder may have the marker's name


def _cells(cells: Sequence[CellRecord]) -> list[str]:
    classes = [cell for cell in cells if not cell.runs_script]  # a script has its own option in the run's arguments
    trainers, workloads = (dict.fromkeys(getattr(cell, field) for cell in classes) for field in ("trainer", "workload"))
    modes, sizes = dict.fromkeys(cell.mode for cell in cells), sorted({cell.world_size for cell in cells})
    named = [f"--scaling-trainer={','.join(trainers)}", f"--scaling-workload={','.join(workloads)}"]
    return [
        *(named if classes else []),
        f"--scaling-mode={','.join(modes)}",
        f"--scaling-world-sizes={','.join(map(str, sizes))}",
    ]


def _with(arguments: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return those of the arguments that are settings or these options."""
    names = {*_SETTINGS, *_arguments(options)}
    return [argument for argument in arguments if argument.partition("=")[0] in names]


def _without(arguments: Sequence[str], options: Sequence[str]) -> list[str]:
    names = _arguments(options)
    return [argument for argument in arguments if argument.partition("=")[0] not in names]


def _arguments(options: Sequence[str]) -> set[str]:
    return {f"--scaling-{name}" for name in options}
