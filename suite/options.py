"""The `--scaling-*` options: one table, read once into one frozen `Config`. Nothing else reads them but the plugin."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest
from _pytest.mark.expression import Expression  # what -m is read by; pytest has no public name for it

from reference.schedule import MODES
from reference.trainers import PLAIN_ON_ONE, TRAINERS, trains
from suite.base import bases
from suite.base.sides import hosts_of
from suite.plan import floors, scripts, workloads
from suite.plan.cells import SINGLE
from suite.plan.config import BUDGET_S, Base, Budget, Config
from suite.plan.project import named_from, named_in
from suite.plan.scripts import Script
from suite.plan.workloads import Workload
from suite.processes.failure import harmless
from suite.room import devices

DEFAULT_TRAINERS = ("scratch", "data_parallel", "ddp", "ddp_tokens")  # those that can train a workload of the run
# Not those of tokens: two of the others with another loss, whose checks take a minute and a half.
CHECKED_TRAINERS = tuple(name for name in TRAINERS if "samples" in trains(name))
WHOLE = re.compile(r"[0-9]{1,6}")  # str.isdigit accepts characters that int refuses
MARKS = ("scaling", "correctness", "end_to_end")  # beside gpu
OVERRIDDEN = ("scaling_", "pythonpath")  # how the settings of an ini file begin that a command to type repeats


@dataclass(frozen=True)
class Option:
    """One option and its ini twin (`scaling_<name>`)."""

    name: str
    metavar: str
    help: str
    repeatable: bool = False
    flag: bool = False

    @property
    def dest(self) -> str:
        """The attribute on pytest's namespace, and the ini key."""
        return "scaling_" + self.name.replace("-", "_")


OPTIONS = (
    Option(
        "devices",
        "SPEC",
        "auto, cpu[:N], cuda[:N], a list such as cuda:0,cuda:1, or several hosts such as 2xcuda:8 (default: auto)",
    ),
    Option("world-sizes", "K,...", "world sizes (default: powers of two up to the number of devices, and all of them)"),
    Option(
        "trainer",
        "NAME",
        f"{', '.join(TRAINERS)}, module:Class or path.py:Class (default: of "
        f"{', '.join(DEFAULT_TRAINERS)}, those that can train the workload; on one device {SINGLE} in their place)",
        repeatable=True,
    ),
    Option(
        "script",
        "COMMAND",
        "a training script with its arguments, as it stands behind torchrun's own options, or a name from "
        "[tool.scaling.scripts]; {batch}, {global_batch}, {world_size} and {out} are filled in",
        repeatable=True,
    ),
    Option("batch", "N", "samples that one device gets of a script at world size 1, for {batch}"),
    Option(
        "workload",
        "NAME",
        "built in or from [tool.scaling.workloads] (default: lenet, on GPUs resnet18-bf16; for tokens gpt-tiny, gpt)",
        repeatable=True,
    ),
    Option("mode", "MODE", "strong, weak (default: both)", repeatable=True),
    Option("data-root", "DIR", "the folder of the datasets (default: data)"),
    Option("tolerance", "SHARE", "the slowdown that must be found (default: 0.05)"),
    Option(
        "budget",
        "SECONDS",
        "wall seconds of the whole run, starts included (default: the profile's, or what four sessions take)",
    ),
    Option(
        "against",
        "BASE",
        "what to compare with in the same run: a trainer, a python executable or a git ref, "
        "in that order; trainer:, script:, python:, ref: force it (default: the accepted baseline)",
    ),
    Option("accept", "slower", "write this run as the accepted baseline; after a FAIL only as =slower", flag=True),
    Option("require-devices", "N", "fail unless there are at least N devices"),
    Option(
        "profile", "NAME", "quick (about three minutes) or full (about thirty), at least four sessions (default: quick)"
    ),
    Option("inconclusive", "WHAT", "warn (a skip) or fail (default: warn)"),
    Option(
        "counters", "WHAT", "warn, fail or off: what follows when a step does what its base's does not (default: warn)"
    ),
    Option("require-baseline", "", "fail cells that have nothing to be compared with", flag=True),
    Option("report-dir", "DIR", "the folder of records and baselines (default: reports)"),
)


def add_options(parser: pytest.Parser) -> None:
    """Declare every option and its ini twin."""
    group = parser.getgroup("scaling", "scaling regression suite")
    for option in OPTIONS:
        keywords: dict[str, Any] = {"help": option.help, "dest": option.dest, "default": None}
        kind: Literal["linelist", "string", "bool"] = "linelist" if option.repeatable else "string"
        if option.name == "accept":
            keywords |= {"nargs": "?", "const": "yes", "metavar": "slower"}
        elif option.flag:
            keywords["action"], kind = "store_true", "bool"
        else:
            keywords |= {"action": "append" if option.repeatable else "store", "metavar": option.metavar}
        group.addoption(f"--scaling-{option.name}", **keywords)
        parser.addini(option.dest, f"{option.help} (ini twin of --scaling-{option.name})", type=kind, default=None)


def read(config: pytest.Config) -> Config:
    """Return the effective settings: command line over ini over default.

    Raises:
        pytest.UsageError: a value is unknown or impossible; the message lists the valid ones.
    """
    _refuse_detached_paths(config)
    get = _Reader(config)
    root = config.inipath.parent if config.inipath is not None else config.invocation_params.dir
    try:
        chosen = devices.parse(get.text("devices", default_devices(config)))
        known = workloads.available(root / "pyproject.toml")
        own_scripts = scripts.available(root / "pyproject.toml")
        least = floors.available(root / "pyproject.toml", [*known, *own_scripts])
        several = hosts_of(chosen) is not None
    except ValueError as error:
        raise pytest.UsageError(f"--scaling: {error}") from error
    asked = tuple(get.named("trainer", spec, root) for spec in get.texts("trainer", ()))
    for trainer in asked:
        _check_trainer("trainer", trainer)
    run_scripts = _scripts(get, own_scripts, known)
    # Accepted runs are found by a trainer's name. On several hosts each has a working directory of its own.
    home = None if several else root
    timed = tuple(dict.fromkeys(named_in(home, trainer) for trainer in asked))
    least = tuple(
        floor.model_copy(update={"trainer": floor.trainer and named_in(home, named_from(floor.trainer, root))})
        for floor in least
    )
    only_scripts = bool(run_scripts) and not asked and not get.has("workload")
    names = get.texts("workload", () if only_scripts else workloads.defaults(chosen.kind, timed))
    for name in names:
        get.one_of("workload", name, known)
    named = get.texts("workload", ())
    modes = get.texts("mode", MODES)
    for mode in modes:
        get.one_of("mode", mode, MODES)
    chosen_workloads = tuple(known[name] for name in names)
    # Of a data set that only its user knows, samples with a label each are the more likely minibatches.
    kinds = {workload.trains or "samples" for workload in chosen_workloads}
    default = tuple(name for name in DEFAULT_TRAINERS if kinds.intersection(trains(name)))
    alike: dict[str, tuple[str, ...]] = {}
    as_single = tuple(name for name in default if name in PLAIN_ON_ONE)
    if as_single and len(chosen.names) == 1 and not timed and not run_scripts:
        alike[SINGLE], default = as_single, (SINGLE, *(name for name in default if name not in as_single))
        if not get.has("mode"):
            modes, alike[MODES[0]] = MODES[:1], MODES[1:]
    trainers = timed or default
    base = _against(get, root, home, own_scripts)
    _check_pairs(trainers, base, chosen_workloads)
    if run_scripts:
        trainers = (*trainers, *(script.name for script in run_scripts))
        chosen_workloads = (*chosen_workloads, *map(workloads.of_script, run_scripts))
    profile = get.one_of("profile", get.text("profile", "quick"), BUDGET_S)
    world_sizes, too_large = _world_sizes(get, chosen)
    return Config(
        root=root,
        devices=chosen,
        world_sizes=world_sizes,
        too_large=too_large,
        trainers=trainers,
        alike=alike,
        checked=asked or (() if run_scripts else CHECKED_TRAINERS),
        scripts=run_scripts,
        workloads=chosen_workloads,
        checked_workloads=tuple(known[name] for name in named),
        modes=modes,
        data_root=get.folder("data-root", "data", root),
        tolerance=get.share("tolerance", 0.05),
        budget=Budget(get.number("budget", BUDGET_S[profile]), fixed=get.has("budget")),
        against=base,
        accept=get.one_of("accept", get.text("accept", ""), ("yes", "slower")) if get.has("accept") else None,
        require_devices=get.whole("require-devices", 0),
        profile=profile,
        inconclusive=get.one_of("inconclusive", get.text("inconclusive", "warn"), ("warn", "fail")),
        require_baseline=get.flag("require-baseline"),
        report_dir=get.folder("report-dir", "reports", root),
        counters=get.one_of("counters", get.text("counters", "warn"), ("warn", "fail", "off")),
        floors=least,
        python_path=tuple(config.getini("pythonpath")),
        repeat=_repeat(config),
    )


def asks_for_gpus(config: pytest.Config) -> bool:
    """Return whether the expression of `-m` selects tests because they need GPUs."""
    return any(on_gpus and not without for without, on_gpus in _selected(config))


def asks_for_checks(config: pytest.Config) -> bool:
    """Return whether the expression of `-m` selects tests because they check correctness."""
    selects = _selects(config)
    return any(selects(*others, "correctness") and not selects(*others) for others in ((), ("gpu",)))


def default_devices(config: pytest.Config) -> str:
    """Return what is measured where nothing names the devices: CPUs where `-m` leaves out all tests that need GPUs."""
    if asks_for_gpus(config):
        return "cuda"
    selected = _selected(config)
    left_out = any(without for without, _ in selected) and not any(on_gpus for _, on_gpus in selected)
    return "cpu" if left_out else "auto"


def _selected(config: pytest.Config) -> list[tuple[bool, bool]]:
    """Return of tests with each of our marks, and with none, whether `-m` selects them as they are, and on GPUs."""
    selects = _selects(config)
    return [(selects(*own), selects(*own, "gpu")) for own in ((), *((mark,) for mark in MARKS))]


def _selects(config: pytest.Config) -> Callable[..., bool]:
    """Return what tells whether `-m` selects a test with these marks; an expression that is broken selects all."""
    try:
        expression = Expression.compile(config.getoption("markexpr"))
    # Its kind depends on pytest's version; pytest itself refuses the expression when it has collected.
    except Exception:
        return lambda *marks: True

    def selects(*marks: str) -> bool:
        def has(mark: str, /, **_: object) -> bool:
            return mark in marks

        return expression.evaluate(has)

    return selects


def _refuse_detached_paths(config: pytest.Config) -> None:
    """Refuse a run whose root and settings may come from an option's value.

    Pytest looks for its root and its ini file before it knows our options, and reads the value in
    `--scaling-against ../other/bin/python` as a test path. A path in the working directory does no harm, as long as no
    test path is given and nothing below that directory was chosen.

    Raises:
        pytest.UsageError: there is such a value.
    """
    here = config.invocation_params.dir
    given = [*shlex.split(os.environ.get("PYTEST_ADDOPTS", "")), *map(str, config.invocation_params.args)]
    names = {f"--scaling-{option.name}" for option in OPTIONS if option.metavar}
    joined = pairwise(given)
    pairs = [(name, path, value) for name, value in joined if name in names and value and (path := _path(here, value))]
    chosen = [config.rootpath, *([] if config.inipath is None else [config.inipath.parent])]
    test_paths = any(_path(here, argument) for argument in config.getoption("file_or_dir", []))
    if not test_paths and all(folder in (here, *here.parents) for folder in chosen):
        pairs = [(name, path, value) for name, path, value in pairs if here not in path.parents]
    if pairs:
        name, _, value = pairs[0]
        raise pytest.UsageError(
            f"{name} {value}: pytest reads a path that is not joined to its option as a test path, and may use the "
            f"settings and the report folder of another project; type {name}={shlex.quote(value)}"
        )


def _path(here: Path, argument: str) -> Path | None:
    """Return the path that pytest reads in an argument; None where it does not exist."""
    path = Path(os.path.abspath(here / argument.partition("::")[0]))  # as pytest does: links are not resolved
    try:
        return path if path.exists() else None
    except OSError:  # a name that no file can have
        return None


def _repeat(config: pytest.Config) -> tuple[str, ...]:
    """Return what the command line says of the selection, of settings and of our options, joined to their values."""
    arguments = ["-m", str(config.getoption("markexpr")), *(["--pyargs"] if config.getoption("pyargs") else [])]
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        arguments += config.args
    if keyword := config.getoption("keyword"):
        arguments += ["-k", str(keyword)]
    if file := config.getoption("inifilename"):
        arguments.append(f"--config-file={file}")
    overridden = config.getoption("override_ini") or ()  # where pytest 9 also notes --strict-markers and its like
    arguments += [f"--override-ini={setting}" for setting in overridden if setting.startswith(OVERRIDDEN)]
    for option in OPTIONS:
        given = config.getoption(option.dest)
        if given is None or option.name == "accept":
            continue
        values = [""] if option.flag else [f"={value}" for value in (given if option.repeatable else [given])]
        arguments += [f"--scaling-{option.name}{value}" for value in values]
    return tuple(harmless(argument) for argument in arguments)


class _Reader:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def text(self, name: str, default: str) -> str:
        dest = _dest(name)
        value = self._config.getoption(dest)
        return _plain(name, str(value if value is not None else self._config.getini(dest) or default))

    def folder(self, name: str, default: str, root: Path) -> Path:
        """Return a folder, relative to the working directory on the command line and to the project in its ini file."""
        here = self._config.invocation_params.dir if self.on_command_line(name) else root
        if not (value := self.text(name, default)).strip():
            raise pytest.UsageError(f"--scaling-{name} {value!r}: expected the path of a folder")
        return here / value

    def on_command_line(self, name: str) -> bool:
        return self._config.getoption(_dest(name)) is not None

    def has(self, name: str) -> bool:
        """Return whether there is a value; an empty one on the command line is one, and in an ini file none."""
        return self.on_command_line(name) or bool(self._config.getini(_dest(name)))

    def texts(self, name: str, default: tuple[str, ...] = (), *, commas: bool = True) -> tuple[str, ...]:
        """Return the values of a repeatable option, each once; commas separate, too, unless they are a part of values.

        An empty value on the command line, which "$UNSET" leaves, stays one, and is refused as any unknown value is.
        """
        dest, parts = _dest(name), list[str]()
        for value in self._config.getoption(dest) or self._config.getini(dest) or ():
            parted = _plain(name, value).split(",") if commas else [_plain(name, value)]
            found = [part.strip() for part in parted if part.strip()]
            parts += found or ([""] if self.on_command_line(name) else [])
        return tuple(dict.fromkeys(parts)) or default

    def named(self, name: str, spec: str, root: Path) -> str:
        """Return a trainer relative to the working directory.

        An option's ini twin names files relative to `root`, and so may what is typed, without such a file here.
        """
        source = spec.rpartition(":")[0]
        here = os.path.isfile(source) or not os.path.isfile(root / source)
        return spec if self.on_command_line(name) and here else named_from(spec, root)

    def number(self, name: str, default: float) -> float:
        value = self.text(name, str(default))
        try:
            number = float(value)
        except ValueError:
            number = 0.0
        if not 0 < number < float("inf"):
            raise pytest.UsageError(f"--scaling-{name} {value!r}: expected a number above 0")
        return number

    def share(self, name: str, default: float) -> float:
        if (share := self.number(name, default)) > 1:
            raise pytest.UsageError(f"--scaling-{name} {share:g}: expected a share of at most 1, such as 0.05 for 5 %")
        return share

    def whole(self, name: str, default: int) -> int:
        value = self.text(name, str(default))
        if not WHOLE.fullmatch(value):
            raise pytest.UsageError(f"--scaling-{name} {value!r}: expected a whole number, 0 or more")
        return int(value)

    def flag(self, name: str) -> bool:
        """Return whether a flag is set on the command line or true in the ini file."""
        if self.on_command_line(name):
            return True
        try:
            return bool(self._config.getini(_dest(name)))
        except (ValueError, TypeError, pytest.UsageError) as error:  # which one depends on pytest's version
            raise pytest.UsageError(
                f"--scaling-{name}: {error}: valid values are true, false (as text also yes, no, on, off, 1, 0)"
            ) from None

    def one_of(self, name: str, value: str, valid: Any) -> str:
        if value not in valid:
            raise pytest.UsageError(f"--scaling-{name} {value!r}: valid values are {', '.join(filter(None, valid))}")
        return value


def _plain(name: str, value: str) -> str:
    """Return a value that every record can hold and every terminal can show.

    Raises:
        pytest.UsageError: it has control characters, or bytes that are not UTF-8.
    """
    if harmless(value, len(value)) != value or "\n" in value:
        raise pytest.UsageError(f"--scaling-{name} {value!r}: expected UTF-8 without control characters; rename it")
    return value


def _dest(name: str) -> str:
    return next(option.dest for option in OPTIONS if option.name == name)


def _check_trainer(option: str, spec: str) -> None:
    """Refuse a trainer that is wrong by its name; a worker imports it later, because only workers run user code."""
    if spec in TRAINERS:
        return
    if "::" in spec:  # as pytest names a test
        right = spec.replace("::", ":")
        raise pytest.UsageError(f"--scaling-{option} {spec!r}: a class follows one colon; write {right}")
    if ":" not in spec:
        valid = f"{', '.join(TRAINERS)}, module:Class or path.py:Class"
        raise pytest.UsageError(f"--scaling-{option} {spec!r}: valid values are {valid}")
    source, _, name = spec.rpartition(":")
    if not source or not name.isidentifier():
        raise pytest.UsageError(f"--scaling-{option} {spec!r}: expected module:Class or path.py:Class")
    if source.endswith(".py") and not os.path.isfile(source):  # Path's raises for a name that is too long
        raise pytest.UsageError(f"--scaling-{option} {spec!r}: there is no file {source}; check the path")


def _check_pairs(trainers: Sequence[str], base: Base | None, chosen: Sequence[Workload]) -> None:
    """Refuse a workload or trainer that is in no cell, and a base that cannot train every workload, by their names."""
    for workload in chosen:
        if not any(workload.suits(trainer) for trainer in trainers):
            fitting = ", ".join(name for name in TRAINERS if workload.suits(name))
            raise pytest.UsageError(
                f"--scaling-workload {workload.name!r}: {', '.join(trainers)} cannot train {workload.trains}; "
                f"choose --scaling-trainer {fitting}, or your own with trains = {workload.trains!r}"
            )
    unsuited = [("trainer", each) for each in trainers if not any(workload.suits(each) for workload in chosen)]
    if base is not None and base.trainer is not None and not all(workload.suits(base.trainer) for workload in chosen):
        unsuited.append(("against", base.trainer))
    for option, trainer in unsuited:
        fitting = ", ".join(name for name, workload in workloads.BUILT_IN.items() if workload.suits(trainer))
        raise pytest.UsageError(
            f"--scaling-{option} {trainer!r}: it trains {' or '.join(trains(trainer))}, and the run "
            f"is of {', '.join(workload.name for workload in chosen)}; choose --scaling-workload {fitting}"
        )


def _scripts(get: _Reader, own: Mapping[str, Script], known: Mapping[str, Workload]) -> tuple[Script, ...]:
    """Return the scripts to run."""
    batch = get.whole("batch", 0) or None
    try:
        found = scripts.chosen(get.texts("script", commas=False), own, batch, taken={*TRAINERS, *known})
        scripts.require(found, Path.cwd(), get.texts("mode", MODES))
    except ValueError as error:
        raise pytest.UsageError(f"--scaling-script: {error}") from error
    if batch is not None and not any(script.takes_batch for script in found):
        raise pytest.UsageError(f"--scaling-batch {batch}: no --scaling-script has a place for it, such as {{batch}}")
    return found


def _against(get: _Reader, root: Path, home: Path | None, own: Mapping[str, Script]) -> Base | None:
    if not get.has("against"):
        return None
    setting = get.text("against", "")
    try:
        batch = get.whole("batch", 0) or None
        base = bases.parse(setting, root, TRAINERS.__contains__, lambda script: scripts.of_base(script, own, batch))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    if base.script is not None:
        return base
    if base.trainer is not None:
        trainer = get.named("against", base.trainer, root)
        _check_trainer("against", trainer)
        trainer = named_in(home, trainer)
        return replace(base, label=trainer, trainer=trainer)
    if home is None:
        raise pytest.UsageError(
            f"--scaling-against {setting!r}: on several hosts a base must be a trainer: name one as module:Class, "
            "which every host has"
        )
    return base


def _world_sizes(get: _Reader, chosen: devices.Devices) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return those to measure, and those of an ini file that the devices are too few for."""
    count = len(chosen.names)
    if not get.has("world-sizes"):
        powers = {2**power for power in range(count.bit_length()) if 2**power <= count}
        return tuple(sorted(powers | {count} - {0})), ()
    given, asked = get.text("world-sizes", ""), set[int]()
    for part in given.split(","):
        if not (WHOLE.fullmatch(part.strip()) and int(part)):
            raise pytest.UsageError(f"--scaling-world-sizes {given!r}: expected whole numbers from 1, such as 1,2,4")
        asked.add(int(part))
    too_large = {size for size in asked if size > count}
    # An ini file serves machines with different numbers of devices.
    if count and too_large and get.on_command_line("world-sizes"):
        raise pytest.UsageError(
            f"--scaling-world-sizes {given!r}: world size {max(asked)} is above the {count} device(s) of {chosen}; "
            f"--scaling-devices {chosen.kind}:{max(asked)} asks for as many"
        )
    left_out = set() if get.on_command_line("world-sizes") else too_large
    return tuple(sorted(asked - left_out)), tuple(sorted(left_out))
