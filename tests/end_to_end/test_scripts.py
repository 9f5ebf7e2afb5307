"""Training scripts, unmodified, from the command line to the report, and their checks, most of which are nightly."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median
from textwrap import dedent, indent

import pytest

from suite.checks.bench import Bench
from suite.checks.script import AS_CUDA, check
from suite.plan import scripts
from suite.script.items import ITEMS
from tests.scripts import FOLDER, GATE, Entry, entries, verify
from tests.scripts.test_scripts import BEGINNING
from tests.support.project import REPOSITORY, Project, needs_two_cores, run_suite
from tests.support.repositories import Repository
from tests.support.traces import events

DDP = REPOSITORY / "tests" / "scripts" / "right" / "ddp.py"
# A user namespace in which no other one can be made, and no right to mount.
REFUSES = (
    "unshare", "--user", "--map-root-user", "sh", "-c",
    "echo 0 >/proc/sys/user/max_user_namespaces"
    ' && exec setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin --no-new-privs "$@"',
    "sh",
)  # fmt: skip
needs_refusal = pytest.mark.skipif(
    shutil.which("setpriv") is None or subprocess.run([*REFUSES, "true"], capture_output=True).returncode != 0,
    reason="this machine makes no user namespaces",
)
COMMAND = "train.py --batch_size {batch} --width 64 --out_dir {out}"


@needs_two_cores
def test_a_script_is_timed_beside_an_older_commit_of_it(project: Project) -> None:
    """The base's script is slower: the run measures each commit's own file."""
    repository = Repository(project.path)
    slow = DDP.read_text().replace(
        "optimizer.zero_grad()", "[sum(range(400_000)) for _ in range(2)]; optimizer.zero_grad()"
    )
    repository.commit({"train.py": slow})
    repository.commit({"train.py": 'open("train.log", "a").write("begun")\n' + DDP.read_text()})
    result = project.pytest(
        "-m", "scaling", "--scaling-devices=cpu:2", f"--scaling-script={COMMAND}", "--scaling-batch=64",
        "--scaling-against=ref:HEAD~1", "--scaling-mode=strong", "--scaling-world-sizes=2", "--scaling-budget=10",
    )  # fmt: skip
    assert result.ret == 0, result.stdout.str()
    [record] = project.records()
    assert [cell.id for cell in record.cells] == ["train-train-strong-2"]
    timed = [cell for cell in record.cells if cell.slowdown is not None]
    assert timed
    assert all(cell.slowdown.estimate < 0.8 for cell in timed)
    assert "ms a step" in result.stdout.str()
    assert not (project.path / "train.log").exists()


def test_a_script_can_be_compared_with_another_one(project: Project) -> None:
    shutil.copy(DDP, project.path / "new.py")
    shutil.copy(DDP, project.path / "old.py")
    result = project.pytest(
        "-m", "scaling", "--scaling-devices=cpu:1", "--scaling-script=new.py --batch_size {batch}",
        "--scaling-batch=64", "--scaling-against=script:old.py --batch_size {batch}", "--scaling-mode=weak",
        "--scaling-budget=10",
    )  # fmt: skip
    assert result.ret == 0, result.stdout.str()
    [record] = project.records()
    assert [(base.kind, base.label) for base in record.bases] == [("script", "old")]
    [cell] = record.cells
    assert cell.slowdown is not None


def test_windows_hold_no_evaluation(project: Project) -> None:
    """The script evaluates after every sixth update, which takes longer than all of them."""
    text = DDP.read_text().replace(
        "            schedule.step()\n",
        "            schedule.step()\n"
        "            if schedule.last_epoch % 6 == 0:\n"
        "                net.eval(), __import__('time').sleep(0.2), net.train()\n",
    )
    (project.path / "train.py").write_text(text)
    result = project.pytest(
        "-m", "scaling", "--scaling-devices=cpu:1", "--scaling-script=train.py", "--scaling-budget=10",
    )  # fmt: skip
    assert result.ret == 0, result.stdout.str()
    result.stdout.fnmatch_lines(["*train: only weak scaling is measured, because the command has no {batch}*"])
    [record] = project.records()
    assert [cell.id for cell in record.cells] == ["train-train-weak-1"]
    windows = [window for session in record.sessions for window in session.windows]
    assert windows
    steps = record.arms[0].steps_per_window
    assert all(max(window.duration_ns) < 0.2e9 for window in windows), steps


def test_sides_that_do_not_fit_into_memory_together_are_timed_one_after_the_other(project: Project) -> None:
    """A file that only one process may hold stands for a GPU's memory."""
    holds = f"""\
        import fcntl
        held = open({str(project.path.parent / "memory")!r}, "w")
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.") from None
    """
    text = DDP.read_text().replace(
        "    torch.manual_seed(0)\n", indent(dedent(holds), "    ") + "    torch.manual_seed(0)\n"
    )
    Repository(project.path).commit({"train.py": text})
    result = project.pytest(
        "-m", "scaling", "--scaling-devices=cpu:1", "--scaling-script=train.py", "--scaling-against=ref:HEAD",
        "--scaling-budget=30",
    )  # fmt: skip
    assert result.ret == 0, result.stdout.str()
    result.stdout.fnmatch_lines(["*do not fit into memory together: sessions start them one after the other*"])
    [record] = project.records()
    [cell] = record.cells
    assert cell.slowdown is not None
    assert not cell.waterfalls
    for session in record.sessions:
        sides = [window.arm.partition(":")[0] for window in session.windows]
        first, last = ("base", "candidate")[:: -1 if session.number % 2 else 1]
        assert sides == [first] * (len(sides) // 2) + [last] * (len(sides) // 2)
        assert len(session.conditions) == 1 + max(window.block for window in session.windows)


@needs_two_cores
def test_the_parts_of_a_scripts_step_are_timed_and_its_feed_apart(project: Project) -> None:
    """Every sample takes 2 ms to load, and nothing else of the step takes long."""
    text = DDP.read_text().replace(
        "    data = TensorDataset(X, y)\n",
        "    class Slow(TensorDataset):\n"
        "        def __getitem__(self, number):\n"
        "            __import__('time').sleep(0.002)\n"
        "            return super().__getitem__(number)\n"
        "    data = Slow(X, y)\n",
    )
    assert "Slow" in text
    (project.path / "train.py").write_text(text)
    result = project.pytest(
        "-m", "scaling", "--scaling-devices=cpu:2", "--scaling-script=train.py --batch_size {batch}",
        "--scaling-batch=16", "--scaling-mode=weak", "--scaling-world-sizes=2", "--scaling-budget=20",
    )  # fmt: skip
    assert result.ret == 0, result.stdout.str()
    [record] = project.records()
    [fall] = record.cells[0].waterfalls
    step_ms = {bar.causes: 1e3 * bar.step_s.estimate for bar in fall.bars}
    assert set(step_ms) == {("overhead",), ("contention",), ("imbalance",), ("exchange",), ("feed",)}
    points = {probe.point for session in record.sessions for probe in session.probes}
    assert points == {"one", "one_resident", "alone", "apart", "resident", "step"}
    resident, fed = (
        [ns / probe.steps for probe in record.sessions[0].probes if probe.point == point for ns in probe.duration_ns]
        for point in ("resident", "step")
    )
    assert median(resident) < 16 * 2e6 <= min(fed)
    gap_ms = 1e3 * (fall.measured_s.estimate - fall.ideal_s.estimate)
    assert sum(step_ms.values()) == pytest.approx(gap_ms)


def test_every_rank_of_a_script_leaves_a_trace(project: Project) -> None:
    (project.path / "train.py").write_text(DDP.read_text())
    script = ("--scaling-script=train.py --batch_size {batch}", "--scaling-batch=64", "--scaling-devices=cpu:2")
    done = run_suite(project.path, "trace", *script, "--scaling-mode=strong", "--scaling-world-sizes=2")
    assert done.returncode == 0, done.stderr
    assert re.search(r"trace: train-train-strong-2: \d+\.\d ms a step while traced; rank 0:\n", done.stdout)
    files = sorted(project.path.glob("reports/*/traces/*/*.json.gz"))
    assert [path.name for path in files] == [f"train-train-strong-2-rank{rank}.json.gz" for rank in (0, 1)]
    for path in files:
        names = [event["name"] for event in events(path)]
        assert sum(name.startswith("Optimizer.step") for name in names) == 5


@needs_refusal
def test_where_overlays_are_refused_a_script_runs_in_a_copy(project: Project) -> None:
    """As in a container without rights: what the script writes to its folder is gone, and another file is named."""
    cache = project.path / "home" / ".cache"
    cache.mkdir(parents=True)
    writes = """\
        if dist.get_rank() == 0:
            open("snapshot.txt", "x").close()
            open(__import__("os").path.expanduser("~/.cache/kept.txt"), "w").close()
    """
    text = DDP.read_text().replace(
        "    torch.manual_seed(0)\n", indent(dedent(writes), "    ") + "    torch.manual_seed(0)\n"
    )
    (project.path / "train.py").write_text(text)
    options = ("--scaling-devices=cpu:1", "--scaling-script=train.py", "--scaling-budget=5")
    pytest = (sys.executable, "-m", "pytest", "-p", "suite.plugin", "--pyargs", "suite.benchmarks.test_scaling")
    done = subprocess.run(
        [*REFUSES, *pytest, "-m", "scaling", *options],
        cwd=project.path,
        env=os.environ | {"HOME": str(cache.parent), "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout
    assert not (project.path / "snapshot.txt").exists()
    assert f"the script runs in a copy of {project.path}; elsewhere what it writes stays" in done.stdout
    assert f"while the script ran, these files changed: {cache / 'kept.txt'}" in done.stdout


EVERY = [pytest.param(each, id=each.name, marks=[] if each.name in GATE else pytest.mark.nightly) for each in entries()]


@pytest.mark.parametrize("entry", EVERY)
def test_a_script_is_red_in_what_its_file_names(entry: Entry, bench: Bench) -> None:
    verify(entry, entry.check(bench))


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["iterable", "mean_of_means", "fully_sharded"])
def test_three_ranks_see_what_two_do(name: str, bench: Bench) -> None:
    [entry] = [entry for entry in entries() if entry.name == name]
    verify(entry, entry.check(bench, 3))


@pytest.mark.nightly
def test_passes_that_do_not_divide_by_the_ranks_are_not_compared(bench: Bench) -> None:
    """Three ranks make one pass each of the four that one device makes."""
    [entry] = [entry for entry in entries() if entry.name == "accumulation_by_ranks"]
    verdicts = entry.check(bench, 3).verdicts
    why = "on one device the script draws 4 time(s) an update, and each of 3 ranks 1: "
    assert verdicts["gradient"].unchecked.startswith(why)
    assert verdicts["schedule"].unchecked.startswith(why)


WHOLE_STEP = """
def train_step(X, y):
    net.zero_grad()
    ({factor} * nn.functional.cross_entropy(net(X), y)).backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= 0.1 * parameter.grad
"""
BY_LOADER = """
for epoch in range(100):
    sampler.set_epoch(epoch)
    for X, y in loader:
        train_step(X, y)
"""
BY_HAND = """
X, y = data.tensors
for step in range(100):
    own = torch.arange(dist.get_rank() + step, len(X), dist.get_world_size())[step * parts.batch():][:parts.batch()]
    train_step(X[own], y[own])
"""


@pytest.mark.parametrize("loop", [BY_LOADER, BY_HAND], ids=["loader", "by_hand"])
@pytest.mark.parametrize(
    ("factor", "red"), [("1", set()), ("dist.get_world_size()", {"gradient"})], ids=["mean", "sum"]
)
def test_a_function_that_makes_the_whole_step_is_checked(
    loop: str, factor: str, red: set[str], bench: Bench, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(BEGINNING + WHOLE_STEP.format(factor=factor) + loop)
    script = scripts.named(f"{tmp_path}/train.py --batch_size {{batch}}", {}, 8)
    script = script.model_copy(update={"update": "train:train_step"})
    verdicts = check(bench.pool, bench.devices, script, 2, tmp_path).verdicts
    assert {item for item, verdict in verdicts.items() if verdict.finding} == red
    assert {item for item, verdict in verdicts.items() if verdict.unchecked} == {"random", "schedule"}


def test_a_rank_that_leaves_the_others_waiting_is_named(bench: Bench, tmp_path: Path) -> None:
    right = (FOLDER / "right" / "ddp.py").read_text(encoding="utf-8")
    leaves = "if dist.get_rank() and schedule.last_epoch: return"
    (tmp_path / "train.py").write_text(
        right.replace("optimizer.zero_grad()", f"{leaves}\n            optimizer.zero_grad()")
    )
    checked = check(bench.pool, bench.devices, scripts.named(str(tmp_path / "train.py"), {}, None), 2, tmp_path)
    said = "rank 1: the script: it ended after 1 step(s) of an optimizer; the other ranks wait for it"
    assert checked.failure.startswith(f"script 'train': {said}")


def test_a_script_that_asks_for_cuda_gets_the_cpu_and_a_note(bench: Bench) -> None:
    [entry] = [entry for entry in entries() if entry.name == "asks_for_cuda"]
    assert entry.check(bench).notes == (AS_CUDA,)


def test_a_wrong_script_is_a_failure_with_a_command_that_shows_it_again(project: Project) -> None:
    script = shlex.join([str(FOLDER / "wrong" / "schedule_once_a_process.py"), "--batch_size", "{batch}"])
    result = project.correctness(f"--scaling-script={script}", "--scaling-batch=16", "-rs")
    result.assert_outcomes(passed=len(ITEMS) - 2, failed=1, skipped=1)
    result.stdout.re_match_lines_random(
        [
            r"script 'schedule_once_a_process', schedule: update 1: the groups' rates are 0.003 on 2 ranks, .*",
            r" *looks like: the schedule advances 2 times an update",
            r"SKIPPED .* not checked: the model draws no random numbers",
        ]
    )
    [command] = [line.partition("again: ")[2] for line in result.outlines if line.startswith("  see it again: ")]
    again = project.typed(command)
    again.assert_outcomes(failed=1, deselected=len(ITEMS) - 1)


def test_a_script_that_cannot_be_run_is_one_failing_item(project: Project) -> None:
    Path("train.py").write_text("import no_such_module\n")
    result = project.correctness("--scaling-script=train.py", "-rs")
    result.assert_outcomes(failed=1, skipped=len(ITEMS) - 1)
    result.stdout.fnmatch_lines_random(
        [
            "script 'train': rank * ModuleNotFoundError: No module named 'no_such_module'; see that it trains under *",
            "  see it again: pytest -m correctness --pyargs suite.checks --scaling-script=train.py -k 'train-world]'",
            "SKIPPED *not checked: script 'train' could not be run, as the failure of another item says",
        ]
    )
