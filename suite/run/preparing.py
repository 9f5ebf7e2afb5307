"""Before a session: ask workers about trainers, load datasets, and make every arm's job.

The controller imports neither torch nor any trainer. A worker of each side describes its trainers, and one worker loads
every dataset for all others. A failure costs the arms that need what failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

from reference.schedule import scale
from reference.trainers import TRAINERS
from suite.base.git import CheckoutError
from suite.base.sides import Sides
from suite.plan.cells import APART, PLAIN, SINGLE, Arm
from suite.plan.scripts import kept_as_they_are
from suite.plan.workloads import Workload
from suite.processes.failure import WorkerFailure
from suite.processes.group import START_TIMEOUT_S
from suite.processes.jobs import OUT, Job, ModelSpec, Place, Prepared, ScriptRun
from suite.properties.answers import About, Described
from suite.room.quiet import available_cores
from suite.run import accuracy
from suite.run.observations import Observations
from suite.run.session import Say

TARGETS_REMEDY = (
    "a trainer of your own with a `loss` takes any targets (docs/your-trainer.md); class labels are int64, y.long()"
)
OF_A_SCRIPT = About(processes="per-device", oracle="self")
TIMEOUT_S = 900.0  # for a dataset, at most; it is a part of the budget


def prepare(run: Observations, sides: Sides, arms: Sequence[Arm], say: Say) -> None:
    """Add the jobs of these arms to `run.jobs`, and arms that cannot be timed to `run.lost`.

    Arms that are in either already stay as they are.
    """
    new = [arm for arm in arms if arm not in run.jobs and arm not in run.lost]
    _describe(run, sides, new, say)
    _load(run, sides, new, say)
    sides.dismiss()  # no idle process stays while others are timed
    for arm in new:
        if arm not in run.lost:
            try:
                run.jobs[arm] = _job(run, sides, arm)
            except CheckoutError as error:
                run.lost[arm] = WorkerFailure(arm.side, str(error))


def _describe(run: Observations, sides: Sides, arms: Sequence[Arm], say: Say) -> None:
    """Ask about versions and trainers. A trainer that cannot be used, or ends its worker, costs its own arms."""
    say("asking a worker about versions and trainers")
    for side, trainer in dict.fromkeys((arm.side, arm.trainer) for arm in arms):
        if (side, trainer) in run.trainers:
            continue
        scripted = any(arm.runs_script for arm in arms if (arm.side, arm.trainer) == (side, trainer))
        try:
            located, apart = sides.locate(side, SINGLE if scripted else trainer), sides.apart(side)
            timeout_s = run.plan.deadline_s(START_TIMEOUT_S)
            answer = sides.ask(side, Described, "describe", timeout_s, trainer=located, apart=apart)
            run.versions.setdefault(side, answer.versions)  # a trainer that changes sys.path may change later ones
            run.trainers[side, trainer] = OF_A_SCRIPT if scripted else answer.about
        except (WorkerFailure, CheckoutError) as error:
            failure = error if isinstance(error, WorkerFailure) else WorkerFailure(side, str(error))
            run.lost |= {arm: failure for arm in arms if (arm.side, arm.trainer) == (side, trainer)}


def _load(run: Observations, sides: Sides, arms: Sequence[Arm], say: Say) -> None:
    """Load the datasets that are timed or trained on. Both sides use the candidate's: the same bytes."""
    wanted: dict[str, set[str]] = {}
    for workload in map(run.plan.workload, dict.fromkeys(cell.workload for cell in run.plan.cells)):
        if workload.script is not None:
            here = Prepared(name=workload.script.name, folder="", train_samples=workload.batch, test_samples=0)
            run.datasets.setdefault(workload.dataset, here)
            continue
        wanted.setdefault(workload.dataset, set()).add(workload.name)
        if workload.accuracy is not None and run.plan.config.against is None:
            wanted.setdefault(workload.accuracy.dataset, set()).add(workload.name)
    for name, users in wanted.items():
        if name in run.datasets:
            continue
        say(f"loading the dataset {name}")
        folder = f"dataset-{len(run.datasets)}"
        if run.plan.config.devices.hosts == 1:  # else in a folder of the run's that has another name on every host
            folder = str(sides.pools["candidate"].pool.folder / folder)
        told = {"dataset": name, "data_root": str(run.plan.config.data_root), "folder": folder}
        try:
            timeout_s = run.plan.deadline_s(TIMEOUT_S)
            run.datasets[name] = sides.ask("candidate", Prepared, "prepare", timeout_s, **told)
        except WorkerFailure as failure:
            run.lost |= {arm: failure for arm in arms if arm.workload in users}


def _job(run: Observations, sides: Sides, arm: Arm) -> Job:
    devices, workload = run.plan.config.devices, run.plan.workload(arm.workload)
    names, about = devices.names[: arm.world_size], run.trainers[arm.side, arm.trainer]
    if about.processes == "one" and arm.world_size > devices.per_host:
        raise CheckoutError(
            f"{arm.trainer} drives all devices from one process, which cannot span {devices.hosts} hosts: leave it out "
            f"above world size {devices.per_host}, or choose a trainer with a process per device, such as ddp"
        )
    if not arm.runs_script and not workload.suits(arm.trainer, about.trains) and arm.trainer != PLAIN:
        raise CheckoutError(
            f"{arm.trainer} says trains = {about.trains!r}, and workload {workload.name!r} is made of "
            f"{workload.trains}; choose another --scaling-workload, or set trains = {workload.trains!r} in the trainer"
        )
    dataset = run.datasets[workload.dataset]
    if dataset.unfit and (arm.trainer in TRAINERS or arm.trainer == PLAIN):
        raise CheckoutError(f"{arm.trainer} cannot train on {dataset.name}: {dataset.unfit}; {TARGETS_REMEDY}")
    place = Place(
        processes=about.processes,
        devices=names,
        # Ranks that exchange nothing need no communicator: NCCL takes seconds to make one, and memory on every GPU.
        backend="gloo" if arm.trainer == PLAIN else devices.backend(devices.here(arm.world_size)),
        pinned=devices.pinned(arm.world_size),
    )
    job = job_of(
        arm,
        workload.model_copy(update={"model": sides.locate(arm.side, workload.model)}),
        place,
        trainer=sides.locate(arm.side, arm.trainer),
        seed=accuracy.SEED,
        dataset=dataset,
    )
    script = _script(run, sides, arm) if arm.runs_script else None
    return replace(job, free_cores=tuple(available_cores()), apart=sides.apart(arm.side), script=script)


def _script(run: Observations, sides: Sides, arm: Arm) -> ScriptRun:
    """Return what a rank of a script's arm runs.

    Raises:
        CheckoutError: the side's commit does not have its file, or its batch does not divide.
    """
    base = run.comparison.bases.get(arm.side)
    script = (base and base.script) or run.plan.workload(arm.workload).script
    assert script is not None
    try:
        words = script.arguments(arm.mode, arm.world_size, OUT)
    except ValueError as error:
        raise CheckoutError(str(error)) from error
    return ScriptRun(
        words=tuple(words),
        directory=str(Path.cwd()),
        environment=dict(script.environment),
        update=script.update or "",
        script_from=sides.directory(arm.side),
        isolated=kept_as_they_are(run.plan.config.root),
        exchanges=arm.trainer != APART,
    )


def job_of(arm: Arm, workload: Workload, place: Place, *, trainer: str, seed: int, dataset: Prepared) -> Job:
    """Return what the workers of an arm are told, of one that runs no script and belongs to the candidate.

    Args:
        arm: gives the world size, and with it batch and rate.
        workload: what to build.
        place: where the ranks run.
        trainer: as the workers of the arm's side name it.
        seed, dataset: as `suite.processes.jobs.Job` has them.
    """
    batch, lr = scale(arm.mode, arm.world_size, workload.batch, workload.lr, workload.lr_rule)
    built = {field.name: getattr(workload, field.name) for field in fields(ModelSpec)}
    return Job(
        **{field.name: getattr(place, field.name) for field in fields(Place)},
        trainer=trainer,
        world_size=arm.world_size,
        global_batch=batch,
        lr=lr,
        seed=seed,
        workload=ModelSpec(**built),
        dataset=dataset,
    )
