"""Scripts as they are on real ranks: timed from update to update, in variants of their step, and leaving no trace."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from suite.checks.bench import Bench
from suite.processes.failure import WorkerFailure
from suite.processes.group import Group
from suite.processes.jobs import Parameters, Probed, ScriptRun, SetUp, Timed
from suite.script.main import lasting
from tests.support import learners
from tests.support.project import REPOSITORY

START_S = 60.0


class Ranks:
    """The ranks of one script."""

    def __init__(self, group: Group, words: list[str], folder: Path, world_size: int, **how: Any) -> None:
        self.group, self._folder, self._world_size = group, folder, world_size
        self._words, self._how = words, how

    def set_up(self, **environment: str) -> list[SetUp]:
        told = ScriptRun(
            words=tuple(self._words),
            directory=str(self._folder),
            environment=environment,
            isolated=(str(self._folder),),
            **self._how,
        )
        job = replace(learners.job("script", self._world_size), processes="per-device", script=told)
        return self.group.request(SetUp, "setup", START_S, name="arm", arm=job)

    def window(self, steps: int, lead_in: int = 0) -> list[Timed]:
        return self.group.request(Timed, "window", START_S, name="arm", steps=steps, lead_in=lead_in)

    def parameters(self) -> list[Parameters]:
        return self.group.request(Parameters, "parameters", START_S, name="arm")

    def probe(self, steps: int, *, resident: bool = True, alone: bool = False) -> list[Probed]:
        variant = {"resident": resident, "alone": alone, "share": 1, "exchange": True, "lead_in": 1}
        return self.group.request(Probed, "probe", START_S, name="arm", steps=steps, variant=variant)


@pytest.fixture
def ranks(bench: Bench, tmp_path: Path) -> Iterator[Any]:
    """Return what starts ranks of a script with these words, in a folder of its own."""
    started: list[Group] = []

    def start(*words: str, world_size: int = 1, **how: Any) -> Ranks:
        started.append(bench.pool.launch(f"script-{tmp_path.name}-{len(started)}", world_size))
        return Ranks(started[-1], list(words), tmp_path, world_size, **how)

    yield start
    for group in started:
        group.close()


DDP = REPOSITORY / "tests" / "scripts" / "right" / "ddp.py"
SLEEPER = """
import time, torch
net = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range({updates}):
    time.sleep(0.02)
    if step % 10 == 9:
        {event}
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""


def script(folder: Path, event: str = "pass", updates: int = 400) -> str:
    """Write a script of 20 ms a step, which does something in every tenth."""
    (folder / "sleeper.py").write_text(SLEEPER.format(event=event, updates=updates))
    return "sleeper.py"


def test_a_window_is_so_many_updates_with_what_lies_between_them(ranks: Any, tmp_path: Path) -> None:
    started = ranks(script(tmp_path))
    started.set_up()
    [timed] = started.window(20, lead_in=2)
    assert 20 * 0.02e9 <= timed.duration_ns < 20 * 0.02e9 + 2e9
    assert not timed.unclean


def test_two_ranks_of_a_distributed_script_are_timed(ranks: Any) -> None:
    started = ranks(str(DDP), "--width", "8", "--workers", "1", world_size=2)
    first, second = started.set_up()
    assert first.gradient_bytes == second.gradient_bytes == 4 * (64 * 8 + 8 + 8 * 8 + 8 + 8 * 2 + 2)
    for _ in range(2):
        assert all(timed.duration_ns > 0 for timed in started.window(5))


@pytest.mark.parametrize(
    ("name", "rows", "passes"), [("ddp", 32, 1), ("accumulation", 16, 2), ("accumulation_by_ranks", 0, 4)]
)
def test_the_work_of_an_update_is_counted(ranks: Any, name: str, rows: float, passes: float) -> None:
    started = ranks(str(DDP.with_stem(name)))
    started.set_up()
    [before] = started.parameters()
    for steps in (1, 2, 2):
        started.window(steps)
    [after] = started.parameters()
    assert before.rows == before.passes == 0
    assert (after.rows, after.passes) == (rows, passes)


def test_processes_of_a_script_stand_still_while_it_does(ranks: Any) -> None:
    started = ranks(str(DDP), "--width", "8", "--workers", "1")
    started.set_up()
    started.window(3)
    [pid] = started.group.pids.values()
    loaders = psutil.Process(pid).children(recursive=True)
    assert loaders
    assert {loader.status() for loader in loaders} == {psutil.STATUS_STOPPED}
    started.window(3)


@pytest.mark.parametrize(
    ("event", "said"),
    [("net.eval(); net.train()", "an evaluation"), ("torch.save(net.state_dict(), 'net.pt')", "a checkpoint")],
)
def test_a_window_with_something_else_in_it_says_what(ranks: Any, tmp_path: Path, event: str, said: str) -> None:
    started = ranks(script(tmp_path, event))
    started.set_up()
    assert [started.window(10)[0].unclean for _ in range(2)] == [said, said]
    short = [started.window(3)[0].unclean for _ in range(4)]
    assert "" in short
    assert said in short


def test_what_a_script_writes_stays_in_its_session_and_all_ranks_see_it(ranks: Any, tmp_path: Path) -> None:
    (tmp_path / "writer.py").write_text(
        "import os, time\n"
        "from torch import distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "assert not os.path.exists('snapshot.txt'), 'another session wrote it'\n"
        "dist.barrier()\n"
        "if dist.get_rank() == 0:\n"
        "    open('snapshot.txt', 'w').write('0')\n"
        "dist.barrier()\n"
        "assert os.path.exists('snapshot.txt'), 'rank 0 wrote it'\n" + SLEEPER.format(event="pass", updates=50)
    )
    for _ in range(2):
        started = ranks("writer.py", world_size=2)
        assert [answer.note for answer in started.set_up()] == ["", ""]
        started.window(2)
    assert not (tmp_path / "snapshot.txt").exists()


def test_a_script_runs_as_it_does_under_torchrun(ranks: Any, tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "helper.py").write_text("VALUE = 3\n")
    (tmp_path / "pack" / "train.py").write_text(
        "import json, os, sys, threading, helper\n"
        "seen = {'name': __name__, 'argv': sys.argv, 'main': threading.current_thread() is threading.main_thread(),\n"
        "        'path': sys.path[0], 'helper': helper.VALUE, 'cwd': os.getcwd(), 'mine': os.environ['MINE'],\n"
        "        'world': [os.environ[n] for n in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE')]}\n"
        "raise SystemExit(json.dumps(seen))\n"
    )
    started = ranks("pack/train.py", "--lr", "0.1")
    with pytest.raises(WorkerFailure) as caught:
        started.set_up(MINE="yes")
    text = caught.value.cause
    seen = json.loads(text[text.index("{") : text.rindex("}") + 1])
    assert seen == {
        "name": "__main__",
        "argv": ["pack/train.py", "--lr", "0.1"],
        "main": True,
        "path": str(tmp_path / "pack"),
        "helper": 3,
        "cwd": str(tmp_path),
        "mine": "yes",
        "world": ["0", "0", "1", "1"],
    }


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise ValueError('no such option')", "ValueError: no such option"),
        (
            "print('nothing to do')",
            "the script ended and made no update, and it printed 'nothing to do': the step of a torch optimizer was",
        ),
        (
            "import torch.multiprocessing as mp\ndef work(rank): pass\nmp.spawn(work, nprocs=2)",
            "the script starts 2 processes by torch.multiprocessing.spawn, and here each of its ranks is started "
            "already: call work with LOCAL_RANK",
        ),
        ("import sys; sys.exit('Unable to locate sufficient GPUs')", "left with 'Unable to locate sufficient GPUs'"),
        (
            "import sys; print('Unable to locate sufficient GPUs'); sys.exit(0)",
            "the script left with 0 and made no update, and it printed 'Unable to locate sufficient GPUs': the step of",
        ),
        (
            "import os, subprocess\nsubprocess.run(['true'], env=os.environ)\n"
            "subprocess.Popen(['true'], env=os.environ | {'LOCAL_RANK': '1'})",
            "the script starts a process as local rank 1, and here each of its ranks is started already: use those of",
        ),
    ],
)
def test_a_script_that_ends_before_it_can_be_timed_says_why(ranks: Any, tmp_path: Path, source: str, said: str) -> None:
    (tmp_path / "train.py").write_text(source)
    with pytest.raises(WorkerFailure, match="rank 0") as caught:
        ranks("train.py").set_up()
    assert said in caught.value.cause


@pytest.mark.parametrize(
    ("name", "how", "said"),
    [
        ("absent.py", {}, r"there is no script .*absent\.py; check the path, or compare"),
        ("sleeper.py", {"world_size": 2}, "2 ranks were started, and it has no process group: each trains by itself"),
        (
            "sleeper.py",
            {"update": "sleeper:descent"},
            "update = 'sleeper:descent': when the script computes its first gradient",
        ),
    ],
)
def test_a_script_that_cannot_be_timed_says_why(
    ranks: Any, tmp_path: Path, name: str, how: dict[str, Any], said: str
) -> None:
    script(tmp_path)
    with pytest.raises(WorkerFailure, match=said):
        ranks(name, **how).set_up()


def test_a_script_that_makes_too_few_updates_says_how_many(ranks: Any, tmp_path: Path) -> None:
    for argument, longer in (
        ((), ", by epochs or steps"),
        (("--max_steps", "10"), ": --max_steps 10 looks like how long"),
    ):
        started = ranks(script(tmp_path, updates=10), *argument)
        started.set_up()
        with pytest.raises(WorkerFailure) as caught:
            started.window(20, lead_in=3)
        said = "the script ended after 10 update(s), and at least 17 more are to be timed; let it train for longer"
        assert said + longer in caught.value.cause


def test_a_script_without_an_update_within_the_deadline_says_how_far_it_came(
    ranks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.suite.script.test_timed.START_S", 4.0)
    (tmp_path / "train.py").write_text("import time\nwhile True:\n    time.sleep(0.1)\n")
    started = ranks("train.py")
    started.group.start_timeout_s = 4.0
    with pytest.raises(WorkerFailure, match="so far on rank 0: the step of a torch optimizer was not called; if so"):
        started.set_up()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["train.py", "--lr", "3", "--epochs", "2"], "--epochs 2"),
        (["train.py", "--save_every_steps", "10", "--max_iters=5"], "--max_iters=5"),
        (["-m", "pack.train", "trainer.max_steps=7"], "trainer.max_steps=7"),
        (["train.py", "--eval_steps", "10", "--warmup-steps=5", "--epochs"], ""),
    ],
)
def test_an_argument_looks_like_how_long_a_script_trains(words: list[str], found: str) -> None:
    assert lasting(words) == found


@pytest.mark.parametrize("update", ["train:descend", "engine:descend", "engine:Engine.descend"])
def test_a_loop_without_an_optimizer_of_torchs_names_its_update(ranks: Any, tmp_path: Path, update: str) -> None:
    descend = (
        "def descend(*net):\n"
        "    import time; time.sleep(0.02)\n"
        "    with __import__('torch').no_grad():\n"
        "        for p in net[-1].parameters(): p -= 0.1 * p.grad\n"
    )
    engine = descend + "class Engine:\n    descend = descend\n"
    (tmp_path / "engine.py").write_text(engine)
    source = {"train:descend": descend, "engine:descend": "from engine import descend\n"}
    (tmp_path / "train.py").write_text(
        "import torch\nnet = torch.nn.Linear(2, 1)\n"
        + source.get(update, "from engine import Engine\ndescend = Engine().descend\n")
        + "while True:\n    net.zero_grad()\n    net(torch.ones(1, 2)).sum().backward()\n"
        + ("    Engine().descend(net)\n" if "Engine" in update else "    descend(net)\n")
    )
    started = ranks("train.py", update=update)
    started.set_up()
    [timed] = started.window(10)
    assert 10 * 0.02e9 <= timed.duration_ns < 10 * 0.02e9 + 2e9


def test_a_module_that_names_its_own_update_goes_by_its_full_name(ranks: Any, tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "train.py").write_text(
        "import torch\nnet = torch.nn.Linear(2, 1)\ndef descend(): net.zero_grad()\n"
        "while True:\n    net(torch.ones(1, 2)).sum().backward()\n    descend()\n"
    )
    started = ranks("-m", "pack.train", update="pack.train:descend")
    started.set_up()
    assert started.window(3)[0].duration_ns > 0


def test_nothing_is_left_of_a_script_and_what_it_started(ranks: Any) -> None:
    started = ranks(str(DDP), "--width", "8", "--workers", "2")
    started.set_up()
    [pid] = started.group.pids.values()
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    assert len(family) == 3
    started.group.request(dict, "close", START_S, name="arm")
    started.group.close()
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive


OWN_S, SLOW_S, FED_S = 0.005, 0.1, 0.1
PARTS = f"""
import time, torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 10_000

    def __getitem__(self, number):
        time.sleep({FED_S / 2})
        return torch.ones(4)

dist.init_process_group("gloo")
rank = dist.get_rank()
both = dist.new_group([0, 1])
told = [rank]
dist.broadcast_object_list(told, src=1)
assert told == [1], told
every = [None, None]
dist.all_gather_object(every, rank, group=both)
assert every == [0, 1], every
if rank == 1:
    own = dist.new_group([1], use_local_synchronization=True)  # which the other rank does not call
    dist.all_gather_object(every[:1], rank, group=own)
dist.monitored_barrier()
net = DistributedDataParallel(torch.nn.Linear(4, 1))
{{hook}}
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for batch in DataLoader(Slow(), 2):
    time.sleep({SLOW_S} if rank else {OWN_S})
    net(batch).mean().backward()
    optimizer.step()
"""
ALONE = """
import time, torch
from torch.utils.data import DataLoader
net = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
rows = torch.ones(8, 1)
for epoch in range(10_000):
    for batch in {batches}:
        time.sleep(0.005)
        net(batch).mean().backward()
        optimizer.step()
        for held in DataLoader(rows, 2):
            net(held)
"""


@pytest.fixture
def parts(ranks: Any, tmp_path: Path) -> Any:
    """Return what starts two ranks, of which the second is slower, with a feed that takes longer than rank 0's step."""

    def start(hook: str = "", *, exchanges: bool) -> Any:
        (tmp_path / "train.py").write_text(PARTS.format(hook=hook))
        started = ranks("train.py", world_size=2, exchanges=exchanges)
        started.set_up()
        return started

    return start


def test_ranks_apart_do_not_wait_for_each_other_and_agree_on_objects(parts: Any) -> None:
    started, steps = parts(exchanges=False), 5
    fast, slow = started.probe(steps)
    assert steps * OWN_S * 1e9 <= fast.duration_ns < steps * SLOW_S * 1e9 <= slow.duration_ns
    fed, _ = started.probe(steps, resident=False)
    assert fed.duration_ns >= steps * (OWN_S + FED_S) * 1e9
    only, none = started.probe(steps, alone=True)
    assert steps * OWN_S * 1e9 <= only.duration_ns < steps * SLOW_S * 1e9
    assert none.duration_ns is None


def test_with_its_exchange_a_rank_waits_and_only_the_feed_is_left_out(parts: Any) -> None:
    started, steps = parts(exchanges=True), 5
    for resident, least_s in [(True, SLOW_S), (False, SLOW_S + FED_S)]:
        for answer in started.probe(steps, resident=resident):
            assert (steps - 1) * least_s * 1e9 <= answer.duration_ns
    assert started.probe(steps)[1].duration_ns < steps * (SLOW_S + FED_S) * 1e9


def test_a_script_with_a_hook_of_its_own_has_no_ranks_apart(parts: Any) -> None:
    hook = (
        "from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook\n"
        "net.register_comm_hook(None, fp16_compress_hook)"
    )
    parts(hook, exchanges=True)
    with pytest.raises(WorkerFailure, match="comm_hook can only be called once"):
        parts(hook, exchanges=False)


def test_an_evaluation_with_gradients_ends_although_minibatches_come_again(ranks: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ALONE.format(batches="DataLoader(rows, 4)"))
    started = ranks("train.py")
    started.set_up()
    [answer] = started.probe(20)
    assert answer.duration_ns >= 20 * 0.005e9


def test_without_a_loader_the_feed_is_not_told_apart(ranks: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ALONE.format(batches="rows.split(4)").replace("DataLoader(rows, 2)", "()"))
    started = ranks("train.py")
    started.set_up()
    [unfed] = started.probe(5)
    assert unfed.duration_ns is None
    assert unfed.unfed == "the script draws from no DataLoader, so that its feed is a part of the other bars"
    [whole] = started.probe(5, resident=False)
    assert whole.duration_ns >= 5 * 0.005e9
