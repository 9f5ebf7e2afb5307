"""Variants of a script's step on real ranks: without its feed, without its exchange, and rank 0 alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from suite.processes.failure import WorkerFailure

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
