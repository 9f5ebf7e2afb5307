"""The user's own training scripts: a command as it stands behind torchrun's own options, and the table that names it.

    [tool.scaling.scripts.pretrain]
    command = "train.py --batch_size {batch} --out_dir {out}"
    batch = 64

Nothing of a script is imported or read here; workers run it (`suite.script`).
"""

from __future__ import annotations

import os
import re
import shlex
import string
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import Field, PositiveInt, ValidationError

from suite.plan.project import named_tables
from suite.room.part import Part, problem

PLACES = ("batch", "global_batch", "world_size", "out")
SAME = 0.2  # by which the rows of some updates may differ, such as by a last minibatch that is smaller
_NAME = re.compile(r"\w[\w.+-]*")
_UPDATE = re.compile(r"[^:\s]+:[^\W\d]\w*(\.[^\W\d]\w*)*")
_LAUNCHERS = {name: name for name in ("torchrun", "deepspeed", "mpirun", "srun")} | {"accelerate": "accelerate launch"}
_PYTHON = re.compile(r"(.*/)?python[0-9.]*")


class Script(Part):
    """A training script, as the user starts it.

    Attributes:
        command: what stands behind torchrun's own options: a path and its arguments, or `-m package.module` and its
            arguments. `{batch}` is what one rank gets, `{global_batch}` what all get, `{world_size}` how many ranks
            there are, and `{out}` a fresh folder that is deleted; braces are doubled to stand for themselves.
        batch: samples of one device at world size 1, in the command's own unit; None where there is no `{batch}`.
        environment: variables that are set for it.
        update: `module:function` or `module:Class.method`, which makes an update where no torch optimizer does.
        as_cuda: whether correctness checks on a machine without GPUs show it the CPU as its GPU.
    """

    name: str
    command: str
    batch: PositiveInt | None = None
    environment: Mapping[str, str] = Field(default_factory=dict)
    update: str | None = None
    as_cuda: bool = False

    @property
    def words(self) -> list[str]:
        """The command's words, placeholders as they stand."""
        return shlex.split(self.command)

    @property
    def module(self) -> bool:
        """Whether it is started with -m."""
        return self.words[0] == "-m"

    @property
    def target(self) -> str:
        """The path or the module that runs as `__main__`."""
        return self.words[1 if self.module else 0]

    @property
    def places(self) -> set[str]:
        """The placeholders of the command."""
        return {place for word in self.words for _, place, _, _ in string.Formatter().parse(word) if place is not None}

    @property
    def takes_batch(self) -> bool:
        """Whether its batch can be set, without which only weak scaling is measured."""
        return bool({"batch", "global_batch"} & self.places)

    def per_rank(self, mode: str, world_size: int) -> int:
        """Return how many samples one rank gets, in the command's own unit.

        Raises:
            ValueError: the batch does not divide by the world size.
        """
        batch = self.batch or 1
        if mode == "weak" or world_size == 1:
            return batch
        if batch % world_size:
            raise ValueError(
                f"script {self.name!r}: a batch of {batch} does not divide by world size {world_size}; choose a "
                f"multiple of it (--scaling-batch), leave {world_size} out of --scaling-world-sizes, or use "
                "--scaling-mode=weak"
            )
        return batch // world_size

    def arguments(self, mode: str, world_size: int, out: str) -> list[str]:
        """Return the words of the command for a cell.

        Args:
            mode: "strong" or "weak".
            world_size: k.
            out: the folder for `{out}`.

        Raises:
            ValueError: as `per_rank`.
        """
        each = self.per_rank(mode, world_size)
        filled = {"batch": each, "global_batch": each * world_size, "world_size": world_size, "out": out}
        return [word.format(**filled) for word in self.words]


def available(pyproject: Path) -> dict[str, Script]:
    """Return the scripts of `[tool.scaling.scripts.NAME]` in a pyproject.toml, if it exists.

    Raises:
        ValueError: a script has a wrong field or name.
    """
    found = {}
    for name, fields in named_tables(pyproject, "script", _NAME, "letters, digits, or any of . _ + -"):
        try:
            script = Script.model_validate({**fields, "name": name})
            check(script)
        except ValueError as error:
            why = problem(error) if isinstance(error, ValidationError) else error
            raise ValueError(f"script {name!r} in {pyproject.name}: {why}") from error
        found[name] = script
    return found


def named(value: str, known: Mapping[str, Script], batch: int | None) -> Script:
    """Return the script that `--scaling-script` names: one of a table, or a command.

    Args:
        value: of the option.
        known: those of the table.
        batch: of `--scaling-batch`; None where it was not given.

    Raises:
        ValueError: the command cannot be run; the message has value, rule and remedy.
    """
    script = known.get(value) or Script(name=_name_of(_words(value)), command=value)
    if batch is not None:
        script = script.model_copy(update={"batch": batch})
    check(script)
    return script


def chosen(
    values: Iterable[str], known: Mapping[str, Script], batch: int | None, taken: Collection[str]
) -> tuple[Script, ...]:
    """Return the scripts that the option names, each with a name of its own.

    Args:
        values: of the option.
        known, batch: as `named` has them.
        taken: names of trainers and workloads.

    Raises:
        ValueError: as `named`.
    """
    found: dict[str, Script] = {}
    for value in values:
        script = named(value, known, batch)
        possible = (script.name, f"{script.name}.py", *(f"{script.name}.{n}" for n in range(2, len(found) + 3)))
        name = next(each for each in possible if each not in taken and each not in found)
        found[name] = script.model_copy(update={"name": name})
    return tuple(found.values())


def of_base(value: str, known: Mapping[str, Script], batch: int | None) -> Script:
    """Return the script that a base names, whose file is in the working directory; arguments and errors as `named`."""
    script = named(value, known, batch)
    require([script], Path.cwd())
    return script


def check(script: Script) -> None:
    """Refuse a command that cannot be run as it stands.

    Raises:
        ValueError: why, and what to write.
    """
    words = _words(script.command)
    program = os.path.basename(words[0])
    if program in _LAUNCHERS:
        raise ValueError(
            f"command {script.command!r} begins with {words[0]}: the ranks are started with torchrun's environment: "
            f"leave out {_LAUNCHERS[program]} and its own options"
        )
    if _PYTHON.fullmatch(words[0]):
        raise ValueError(f"command {script.command!r} begins with {words[0]}: leave it out, and begin with the script")
    if words[0] == "-m" and len(words) == 1:
        raise ValueError(f"command {script.command!r}: expected a module after -m")
    try:
        unknown = sorted(script.places - set(PLACES))
        if not unknown:
            script.arguments("weak", 1, "")
    except (ValueError, IndexError, KeyError) as error:
        raise ValueError(f"command {script.command!r}: {error}; double the braces that stand for themselves") from None
    if unknown:
        some, valid = (", ".join(f"{{{place}}}" for place in places) for places in (unknown, PLACES))
        raise ValueError(
            f"command {script.command!r} has {some}: valid placeholders are {valid}; double the braces that stand for "
            "themselves"
        )
    if script.takes_batch and script.batch is None:
        raise ValueError(
            f"command {script.command!r} has a place for the batch: say how many samples one device gets at world size "
            "1 (--scaling-batch, or batch in its table)"
        )
    if script.update is not None and not _UPDATE.fullmatch(script.update):
        raise ValueError(f"update {script.update!r}: expected module:function or module:Class.method")


def require(scripts: Sequence[Script], folder: Path, modes: Sequence[str] = ("strong", "weak")) -> None:
    """Refuse a script whose file is not in a folder, or that no mode can measure.

    Raises:
        ValueError: its path, and where it was looked for; or its command has no place for the batch that strong
            scaling sets.
    """
    for script in scripts:
        if not script.module and not os.path.isfile(folder / script.target):
            is_path = script.target.endswith(".py")
            hint = "" if is_path else "; the command begins with the script's path, or with -m and a module"
            raise ValueError(f"script {script.name!r}: there is no file {script.target} in {folder}{hint}")
        if not script.takes_batch and "weak" not in modes:
            raise ValueError(
                f"script {script.name!r}: strong scaling sets the batch of a rank, and the command has no {{batch}}; "
                "write it where the batch stands, or measure weak scaling (--scaling-mode=weak)"
            )


def divided_twice(
    script: Script, mode: str, world_size: int, own: tuple[float, float], one: tuple[float, float]
) -> str:
    """Return that a script divides its work by the number of ranks where the command does so already; "" if not.

    Args:
        script: as it is started.
        mode: "strong" or "weak".
        world_size: k.
        own: rows of minibatches, 0 where they are not known, and backward passes in an update of one of k ranks.
        one: of one device.
    """
    (rows, passes), (rows_of_one, passes_of_one) = own, one
    unit, each, alone, share = "passes", passes, passes_of_one, 1.0
    if rows and rows_of_one:
        share = script.per_rank(mode, world_size) / script.per_rank(mode, 1)
        unit, each, alone = "rows", rows, rows_of_one
    expected = share * alone
    if not expected or not 1 - SAME < each * world_size / expected < 1 + SAME:
        return ""
    remedy = "write {global_batch} where the command has the batch"
    if passes_of_one > max(1, passes):
        remedy = "let the number of passes in the command grow with {world_size}"
    return (
        f"script {script.name!r}, {mode}: in an update a rank of {world_size} has {each:.3g} {unit} and one device "
        f"{alone:.3g}, and {expected:.3g} were to be expected: the script divides them by the number of ranks itself; "
        f"{remedy}"
    )


def kept_as_they_are(root: Path) -> tuple[str, ...]:
    """Return the folders that a script may write to, and that keep what they have.

    They are the project, the repository around the working directory, that directory itself, and the user's caches.

    Args:
        root: of the project.
    """
    here = Path.cwd()
    repository = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)
    return tuple(map(str, dict.fromkeys((root, repository, here, Path.home() / ".cache"))))


def _name_of(words: Sequence[str]) -> str:
    target = words[1] if words[0] == "-m" and len(words) > 1 else words[0]
    name = Path(target).stem if target.endswith(".py") else target
    return re.sub(r"[^\w.+-]", "-", name).lstrip(".+-") or "script"


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ValueError(f"command {command!r}: {error}; quote it as for a shell") from None
    if not words:
        raise ValueError(f"command {command!r}: expected the script's path and its arguments")
    return words
