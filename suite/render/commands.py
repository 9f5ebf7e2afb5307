"""What to type next, made from what was typed for the run itself. Pure.

A command has the options of the run (`Record.repeat`), so that it measures the same; one for some of the cells names
them instead. Everything is quoted for a shell. Records from before that field name all their cells.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from suite.records.record import CellRecord, Record

_CHOOSING = ("trainer", "workload", "mode", "world-sizes")  # options that say which cells there are
_MEASURING = ("devices", "data-root", "report-dir")  # where and on what


def only(record: Record, cells: Sequence[CellRecord]) -> str:
    """Measure these cells again as they were measured, beside the same base."""
    return _shell("pytest", *_narrowed(record, cells))


def longer(record: Record, cells: Sequence[CellRecord]) -> str:
    """Measure these cells in the sessions of the full profile, whatever the run's own budget was."""
    return _shell("pytest", *_without(_narrowed(record, cells), ("budget", "profile")), "--scaling-profile=full")


def accept(record: Record, value: str = "") -> str:
    """Measure the same again and accept it; `value` is "slower" after a FAIL."""
    option = f"--scaling-accept={value}" if value else "--scaling-accept"
    return _shell("pytest", *_without(_repeat(record), ("against",)), option)


def against_main(record: Record) -> str:
    """Measure the same beside the branch that changes go to."""
    base = f"--scaling-against=ref:{record.environment.main or 'main'}"
    return _shell("pytest", *_without(_repeat(record), ("against",)), base)


def correctness(record: Record) -> str:
    """Check the gradients of the run's trainers."""
    repeat = _repeat(record)
    options = _with(repeat, (*_MEASURING, "trainer"))
    where = ["--pyargs", "suite.checks"] if "--pyargs" in repeat else []
    return _shell("pytest", *where, "-m", "correctness", *options)


def trace(record: Record, cell: CellRecord) -> str:
    """Look into the steps of one cell."""
    return _shell("python", "-m", "suite", "trace", *_with(_repeat(record), _MEASURING), *_cells([cell]))


def weak(record: Record, cell: CellRecord) -> str:
    """Measure a cell's trainer in weak scaling, which keeps the batch on a device."""
    return only(record, [cell.model_copy(update={"mode": "weak"})])


def sweep(record: Record, cell: CellRecord) -> str:
    """See which accuracy a larger batch leads to, and with which rate."""
    chosen = [option for option in _cells([cell]) if not option.startswith("--scaling-mode")]
    return _shell("python", "-m", "suite", "sweep", *_with(_repeat(record), _MEASURING), *chosen)


def _repeat(record: Record) -> Sequence[str]:
    return record.repeat or ("-m", "scaling", *_cells(record.cells))


def _narrowed(record: Record, cells: Sequence[CellRecord]) -> list[str]:
    """The run's arguments with other cells: whole options where these make no others, names of items otherwise."""
    kept = _without(_repeat(record), _CHOOSING)
    if "-k" in kept:  # it may leave out what is wanted, and a node id names what is not
        at = kept.index("-k")
        kept[at : at + 2] = []
    kept = list(dict.fromkeys(part if part.startswith("-") else part.partition("::")[0] for part in kept))
    kept += _cells(cells)
    made = 1
    for field in ("trainer", "workload", "mode", "world_size"):
        made *= len({getattr(cell, field) for cell in cells})
    if made != len(cells):
        kept += ["-k", " or ".join(f"[{cell.id}]" for cell in cells)]
    return kept


def _cells(cells: Sequence[CellRecord]) -> list[str]:
    trainers, workloads, modes = (
        dict.fromkeys(getattr(cell, field) for cell in cells) for field in ("trainer", "workload", "mode")
    )
    sizes = sorted({cell.world_size for cell in cells})
    return [
        f"--scaling-trainer={','.join(trainers)}",
        *([f"--scaling-workload={','.join(workloads)}"] if list(workloads) != ["lenet"] else []),
        f"--scaling-mode={','.join(modes)}",
        f"--scaling-world-sizes={','.join(map(str, sizes))}",
    ]


def _with(arguments: Sequence[str], options: Sequence[str]) -> list[str]:
    return [argument for argument in arguments if _named(argument, options)]


def _without(arguments: Sequence[str], options: Sequence[str]) -> list[str]:
    return [argument for argument in arguments if not _named(argument, options)]


def _named(argument: str, options: Sequence[str]) -> bool:
    return argument.partition("=")[0] in {f"--scaling-{name}" for name in options}


def _shell(*arguments: str) -> str:
    return shlex.join(arguments)
