"""The commands that the controller can send to a worker: one function each, and a table of them (worker's side).

Every function takes the worker's `State` and the command's arguments, which `obey` reads as they are declared, and
returns what is sent: a frozen value that the controller reads by the same class, or a dict that it keeps as it is.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
import warnings
from base64 import b64encode
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import torch
from torch import distributed as dist

from reference.load import load_object
from suite.processes.channel import hints_of, read
from suite.processes.folder import FOLDER
from suite.processes.jobs import (
    OUT,
    Apart,
    CaseJob,
    Connected,
    Counted,
    Epoch,
    Exchange,
    Job,
    ModelJob,
    Parameters,
    Place,
    Prepared,
    Probed,
    ScriptRun,
    SetUp,
    Timed,
    TorchGpu,
    TorchGpus,
    Traced,
    TrainingRecipe,
    WatchedScript,
)
from suite.properties import compared, contract, one_device
from suite.properties import observe as observation
from suite.properties import trainer as trainer_checks
from suite.properties.answers import Described, Judgement, Observed
from suite.properties.case import Case
from suite.properties.seen import Seen
from suite.rank import arm as arms
from suite.rank import collectives, counting, kept, own_model, purity, recorder, training
from suite.rank.timing import LossNotFinite, Others, first_not_finite
from suite.room import accelerator
from suite.script import isolation, recording
from suite.script import judge as script_judge
from suite.script.isolation import Kept
from suite.script.timed import TimedScript

Value = TypeVar("Value")

# Errors whose message suffices, without a traceback.
SELF_EXPLAINING = (
    *(contract.ContractError, own_model.TooLarge, LossNotFinite, ImportError, FileNotFoundError),
    recording.NoUpdate,
)


PART_BYTES = 8 * 1024 * 1024  # of a file in a message, whose base64 is a third longer


@dataclass
class State:
    """What a worker keeps between commands."""

    rank: int
    timed: dict[str, arms.TimedArm | TimedScript] = field(default_factory=dict)
    unproven: dict[str, Apart | None] = field(default_factory=dict)
    oracle: str = "sgd"
    loss: observation.Loss | None = None
    learner: training.Training | None = None
    written: Path = Path()  # what this rank saw last, for the one that judges

    def keep(self, seen: dict[str, Any], name: str) -> str:
        """Write what this rank saw to the run's folder on this host; return the file's path."""
        self.written = Path(os.environ[FOLDER], f"seen-{name}-{self.rank}")
        kept.write(seen, self.written)
        return str(self.written)

    def close(self) -> None:
        """Close all trainers and leave the process group."""
        for arm in self.timed.values():
            arm.close()
        if self.learner is not None:
            self.learner.close()
        if dist.is_initialized():
            dist.destroy_process_group()


def describe(state: State, trainer: str, apart: Apart | None = None) -> Described:
    """Return this interpreter's versions, and what the controller must know of a trainer."""
    if apart is not None:
        purity.redirect(apart)
    loaded = contract.load_trainer(trainer)
    if apart is not None:
        purity.require_pure(apart)
    return Described(about=contract.describe(loaded), versions=versions())


def gpus(state: State) -> TorchGpus:
    """Return what torch can use of the GPUs in this process; it does not raise."""
    architectures = tuple(torch.cuda.get_arch_list())
    shows = partial(TorchGpus, torch=str(torch.__version__), cuda=torch.version.cuda or "", architectures=architectures)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an old driver warns and then raises, in the same words
            torch.cuda.init()  # type: ignore[no-untyped-call]
            shown = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    except (RuntimeError, AssertionError) as error:  # without CUDA in the build it is an AssertionError
        return shows(reason=" ".join(str(error).split()))
    return shows(gpus=tuple(map(_shown_gpu, shown)))


def _shown_gpu(gpu: Any) -> TorchGpu:
    """Return a GPU as torch's properties have it; on ROCm its architecture is followed by features: "gfx942:xnack-"."""
    architecture = gpu.gcnArchName.partition(":")[0] if torch.version.hip else ""
    return TorchGpu(name=gpu.name, uuid=str(gpu.uuid), capability=(gpu.major, gpu.minor), architecture=architecture)


def versions() -> dict[str, str]:
    """Return the versions that affect how fast a step is, of the packages that are installed."""
    installed = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for package in ("torchvision", "numpy"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed[package] = metadata.version(package)
    return installed | accelerator.versions()


def prepare(state: State, dataset: str, data_root: str, folder: str) -> Prepared:
    """Write a dataset for all later workers, as `suite.rank.arm.prepare_dataset` does."""
    return arms.prepare_dataset(dataset, data_root, folder)


@dataclass(frozen=True)
class Takeover:
    """The main thread belongs to a script from now on, and another one serves the controller.

    Attributes:
        reach: waits in the other one until the script has come as far as the command wants, and returns its answer.
    """

    run: Callable[[], NoReturn]  # the script, in the main thread
    reach: Callable[[], object]
    so_far: Callable[[], str]  # returns in words how far it has come


def setup(state: State, name: str, arm: Job) -> SetUp | Takeover:
    """Prepare an arm for timing under a name."""
    if arm.apart is not None:
        purity.redirect(arm.apart)
    if arm.script is not None:
        return _set_up_script(state, name, arm, arm.script)
    timed = state.timed[name] = arms.TimedArm(state.rank, arms.bind(state.rank, arm), arm)
    state.unproven[name] = arm.apart
    return SetUp(timed.gradient_bytes, timed.sample_flop)


def _isolated(state: State, script: ScriptRun) -> tuple[ScriptRun, Kept]:
    """Keep apart what a script will write; return it as it runs then."""
    scratch = Path(os.environ[FOLDER], "scripts", os.environ["TORCHELASTIC_RUN_ID"])
    begins = [script.directory, script.script_from or script.directory]
    kept = isolation.isolated(script.isolated, scratch, begins, first=state.rank == 0)
    out = scratch / "out"
    out.mkdir(exist_ok=True)
    words = tuple(word.replace(OUT, str(out)) for word in script.words)
    directory, script_from = kept.moved(script.directory), script.script_from and kept.moved(script.script_from)
    return replace(script, words=words, directory=directory, script_from=script_from), kept


def _set_up_script(state: State, name: str, job: Job, script: ScriptRun) -> Takeover:
    timed, kept = _timed_script(state, job, script)
    state.timed[name], state.unproven[name] = timed, job.apart

    def reach() -> SetUp:
        timed.reach()
        return SetUp(timed.gradient_bytes, timed.sample_flop, kept.note)

    return Takeover(timed.run, reach, timed.so_far)


def _timed_script(state: State, job: Job, script: ScriptRun) -> tuple[TimedScript, Kept]:
    devices = arms.settle(state.rank, job)
    filled, kept = _isolated(state, script)
    has_cores = bool(job.pinned) and devices[0].type == "cpu"
    return TimedScript(devices, filled, kept, has_cores=has_cores, cores=job.free_cores), kept


def _below(folder: str) -> Path:
    """Return a folder as it is below the overlays that come, so that what is written to it stays."""
    return Path(f"/proc/self/fd/{os.open(folder, os.O_RDONLY)}") if sys.platform == "linux" else Path(folder)


def watch_script(state: State, arm: WatchedScript) -> Takeover:
    """Run a script for a few updates and write what it does, as `suite.script.recording.Recording` does."""
    arms.settle(state.rank, arm)
    folder = _below(arm.folder)
    filled, kept = _isolated(state, arm.script)
    watched = recording.Recording(replace(arm, script=filled, folder=str(folder)), state.rank)
    return Takeover(watched.run, lambda: {**watched.reach(), "notes": [kept.note, kept.changed()]}, watched.so_far)


def judge_script(state: State, folder: str, ranks: int, replay: str, parts: int, why: str) -> dict[str, Any]:
    """Return a verdict for each item of the records of so many ranks, as `suite.script.judge.judge` does.

    `replay` is the one that counts, and `why` there is none; of `parts` ranks there are replays of their own rows.
    """
    records = [recording.read(Path(folder), rank) for rank in range(ranks)]
    replayed = recording.read(Path(folder), 0, replay) if replay else None
    alone = [recording.read(Path(folder), 0, str(rank)) for rank in range(parts)]
    return {item: asdict(verdict) for item, verdict in script_judge.judge(records, replayed, alone, why).items()}


def window(state: State, name: str, steps: int, lead_in: int = 0, keeps: bool = False) -> Timed:
    """Time one window of the arm that was set up under this name, as `suite.rank.timing.window` does."""
    timed = state.timed[name]
    peak = counting.Peak(timed.devices)
    duration_ns, others_ns = _beside_others(timed, partial(timed.window, steps, lead_in, keeps=keeps))
    held = peak.read()
    if (apart := state.unproven.pop(name, None)) is not None:  # after the first window, because a step may import
        purity.require_pure(apart)
    return Timed(duration_ns=duration_ns, memory=held, others_ns=others_ns, unclean=timed.unclean)


def parameters(state: State, name: str) -> Parameters:
    """Check that the parameters of the arm that was set up under this name are finite; its windows are over.

    What they have kept of the accelerators' memory is given back, for what comes afterwards.
    """
    timed = state.timed[name]
    accelerator.release(timed.devices)
    passes, rows = (timed.work.passes, timed.work.rows) if isinstance(timed, TimedScript) else (0.0, 0.0)
    return Parameters(not_finite=first_not_finite(timed), passes=passes, rows=rows)


def connections(state: State) -> Connected:
    """Return how NCCL connected this process, as `suite.rank.recorder.logged` does."""
    return Connected(recorder.logged())


def close(state: State, name: str) -> dict[str, Any]:
    """Close the trainer of the arm that was set up under this name, if one was: it may fail, and is told then."""
    timed = state.timed.pop(name, None)
    if timed is not None:
        timed.close()
    return {"note": timed.kept.changed()} if isinstance(timed, TimedScript) else {}


def probe(state: State, name: str, steps: int, variant: dict[str, Any]) -> Probed:
    """Time one window of a diagnostic variant of an arm, as `suite.rank.arm.TimedArm.probe` does."""
    timed = state.timed[name]
    duration_ns, others_ns = _beside_others(timed, partial(timed.probe, steps, **variant))
    if isinstance(timed, TimedScript):
        return Probed(duration_ns=duration_ns, others_ns=others_ns, unclean=timed.unclean, unfed=timed.unfed)
    return Probed(duration_ns=duration_ns, others_ns=others_ns)


def count(state: State, name: str, steps: int) -> Counted:
    """Count what steps of an arm do, as `suite.rank.arm.TimedArm.count` does."""
    timed = state.timed[name]
    if isinstance(timed, TimedScript):
        return counting.over_steps(partial(timed.advance, 1), steps, timed.devices)
    return timed.count(steps)


def trace(state: State, arm: Job, warm_up: int, steps: int, path: str) -> Traced | Takeover:
    """Trace steps of an arm after a warm-up, into the file `path` with this rank's suffix."""
    name = f"{os.path.basename(path)}-rank{state.rank}.json.gz"
    if arm.script is None:
        with contextlib.closing(arms.TracedArm(state.rank, arms.bind(state.rank, arm), arm)) as traced:
            traced.window(warm_up)
            return arms.trace(traced, steps, Path(os.path.dirname(path), name))
    folder = _below(os.path.dirname(path))
    timed, _ = _timed_script(state, arm, arm.script)

    def reach() -> Traced:
        with contextlib.closing(timed):
            timed.reach()
            timed.window(warm_up)
            return arms.trace(timed, steps, folder / name)

    return Takeover(timed.run, reach, timed.so_far)


def _beside_others(timed: arms.TimedArm | TimedScript, act: Callable[[], Value]) -> tuple[Value, int | None]:
    """Return what `act` returns, and for how many nanoseconds meanwhile others had this rank's cores."""
    others = Others() if timed.has_cores else None
    value = act()
    return value, None if others is None else others.read_ns()


def train(state: State, arm: Job, recipe: TrainingRecipe, epoch: int) -> Epoch:
    """Train one epoch by a recipe, and evaluate. Epoch 0 begins with a fresh net and drops an unfinished one."""
    if epoch == 0:
        if state.learner is not None:
            state.learner.close()
        state.learner = training.Training(state.rank, arms.bind(state.rank, arm), arm, recipe)
    if state.learner is None:
        raise ValueError(f"epoch {epoch} was asked for and no net is in training: epoch 0 begins with one")
    answer = state.learner.epoch(epoch)
    if state.learner.finished:
        state.learner = None
        accelerator.release(arms.bind(state.rank, arm))
    return answer


def bind(state: State, arm: CaseJob) -> dict[str, Any]:
    """Prepare for cases: bind devices, join the process group, and import the trainer, which can take longer."""
    arms.bind(state.rank, arm)
    contract.load_trainer(arm.trainer)
    return {}


def observe(state: State, arm: CaseJob, case: dict[str, Any], check: str, plain: bool, name: str) -> Observed:
    """Run a trainer through a case of a correctness check, and write what this rank saw under a name."""
    trainer, devices = contract.load_trainer(arm.trainer), arms.bind(state.rank, arm)
    seen, state.loss = observation.observe(trainer, devices, Case.from_json(case), state.rank, check=check, plain=plain)
    state.oracle = getattr(trainer, "oracle", "sgd")
    returned = None not in seen["losses"]
    return Observed(state.keep(seen, name), seen["raised"], returned=returned)


def train_model(state: State, arm: ModelJob, name: str) -> Observed:
    """Train the first minibatches of a workload, and write under a name what the modules did on this rank."""
    seen = own_model.train(contract.load_trainer(arm.trainer), arms.bind(state.rank, arm), arm, state.rank)
    training = any(a_pass["training"] for step in seen["steps"] for a_pass in step["passes"])
    return Observed(state.keep(seen, name), training=training)


def send(state: State, start: int, ranks: list[int]) -> dict[str, Any]:
    """Return a part of what this rank wrote last, if it is one of these, which are on other hosts than the judge.

    The file is removed with its last part.

    Returns:
        The "bytes" from `start` on, in base64, and whether "more" are left; no bytes on other ranks.
    """
    if state.rank not in ranks or not state.written.exists():  # what was sent as a whole is gone
        return {"bytes": "", "more": False}
    with state.written.open("rb") as file:
        file.seek(start)
        part, more = file.read(PART_BYTES), bool(file.read(1))
    if not more:
        state.written.unlink(missing_ok=True)
    return {"bytes": b64encode(part).decode(), "more": more}


def judge(state: State, check: str, case: dict[str, Any], variants: int, files: dict[str, list[str]]) -> Judgement:
    """Apply a check to what was seen in the last observed case; only rank 0 gets this command.

    `files` has those of the records in each field of `suite.properties.seen.Seen`, which also describes `variants`.
    """
    records = {field: list(map(kept.read, map(Path, of_field))) for field, of_field in files.items()}
    [alone] = records.pop("alone", [None])
    told = Seen(Case.from_json(case), alone=alone, oracle=state.oracle, loss=state.loss, variants=variants, **records)
    return trainer_checks.judge(check, told)


def reacts(state: State, files: list[str]) -> dict[str, Any]:
    """Return whether what a trainer did "reacts" to other minibatches, as `suite.properties.one_device.reacts` says."""
    return {"reacts": one_device.reacts(*map(kept.read, map(Path, files)))}


def compare_models(state: State, alone: str, ranks: list[str]) -> Judgement:
    """Compare what the modules of a user's own model did on k devices with what they did on one."""
    return compared.judge(kept.read(Path(alone)), [kept.read(Path(file)) for file in ranks])


def collective(state: State, exchange: Exchange, size_bytes: int, calls: int, check: bool, lead_in: int) -> Timed:
    """Time one window of a collective, as `suite.rank.collectives.time_calls` does."""
    duration_ns = collectives.time_calls(state.rank, exchange, size_bytes, calls, check=check, lead_in=lead_in)
    return Timed(duration_ns=duration_ns)


def load(state: State, place: Place, function: str, folder: str) -> dict[str, Any]:
    """Prepare for calls: bind devices, join the process group, and import the function, which can take longer.

    `function` is `module:function` or `path.py:function`, also one in `folder`.
    """
    arms.bind(state.rank, place)
    if folder and folder not in sys.path:
        sys.path.append(folder)
    load_object(function)
    return {}


def call(state: State, function: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Call `module:function` or `path.py:function` and return its JSON; on a CPU group where none was bound before."""
    torch.set_num_threads(1)
    arms.join("gloo", torch.device("cpu"))
    returned = cast(Callable[..., Any], load_object(function))(**arguments)
    try:
        json.dumps(returned)
    except (TypeError, ValueError) as error:
        raise TypeError(f"what {function} returned is not JSON: {error}; return tensor.tolist(), for example") from None
    return {"returned": returned}


_ALL = (
    *(describe, gpus, prepare, setup, window, parameters, connections, probe, count, trace, train, close),
    *(bind, observe, train_model, send, judge, reacts, compare_models, collective, load, call),
    *(watch_script, judge_script),
)
COMMANDS: dict[str, Callable[..., object]] = {command.__name__: command for command in _ALL}


def obey(state: State, name: str, arguments: dict[str, Any]) -> object:
    """Call a command with arguments that arrived as JSON, each read as the kind that the command declares."""
    command = COMMANDS[name]
    kinds = hints_of(command)
    return command(state, **{key: read(kinds[key], value) for key, value in arguments.items()})
