"""Training that freezes the interpreter for good if Python's garbage collector runs while replicas compute.

docs/upstream/get_rng_state_deadlock.md describes the freeze: a collection begins while one thread saves the state of
torch's generator, and another one asks for that state. The net here does that in every layer, and leaves tensors in
cycles. Collections come at random moments, and threads are switched often.

`python -m tests.support.freezing SECONDS` trains so long with every one-process trainer on four CPU devices, each in a
forked process of its own, and says how they ended. With ``--collect`` the net switches the collector on inside the
replicas' threads, as if nobody had switched it off. A frozen process is ended by faulthandler's watchdog, which prints
its stacks, `HANG_S` after its last step.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from reference.load import load_named
from reference.trainers import TRAINERS

ONE_PROCESS = ("scratch", "scratch_overlap", "weighted", "data_parallel", "gluon")
HANG_S = 10.0  # a busy machine takes seconds for a first step
NEVER = 1_000_000


class Layer(nn.Linear):
    """A linear layer that restores torch's generator and leaves tensors in reference cycles."""

    checkpointed = False
    collect = False

    def forward(self, X: Tensor) -> Tensor:
        return checkpoint(self.compute, X, use_reentrant=False) if self.checkpointed else self.compute(X)

    def compute(self, X: Tensor) -> Tensor:
        if self.collect:
            gc.enable()
        with torch.random.fork_rng(devices=()):
            gc.set_threshold(NEVER)
            for _ in range(20):
                param = nn.Parameter(torch.zeros(1))
                param.register_post_accumulate_grad_hook(id)
                param.itself = param
            # At one of the next 60 allocations: often the one inside `torch.get_rng_state`.
            gc.set_threshold(gc.get_count()[0] + random.randrange(60))
            return super().forward(X)


def train(trainer: str, seconds: float, after_step: Callable[[], None] = lambda: None) -> int:
    """Train with a one-process trainer; return the number of steps."""
    make: Any = load_named(trainer, TRAINERS, "trainer")
    made = make(nn.Sequential(*(Layer(6, 6) for _ in range(4))), [torch.device("cpu")] * 4, lr=0.01)
    X, y = torch.randn(8, 6), torch.arange(8) % 6
    switch_s, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-5)
    end, steps = time.monotonic() + seconds, 0
    try:
        while time.monotonic() < end:
            made.step(X, y, len(X))
            steps += 1
            after_step()
    finally:
        sys.setswitchinterval(switch_s)
        gc.set_threshold(*thresholds)
        made.close()
    return steps


def agrees_under_stress(trainer: str, steps: int) -> bool:
    """Return whether training comes to the same bits with threads that change as often as they can.

    Python may then run another thread every microsecond, and collects garbage at every allocation where it may at all.
    """
    switch_s, thresholds = sys.getswitchinterval(), gc.get_threshold()
    calm = _trained(trainer, steps)
    sys.setswitchinterval(1e-6)
    gc.set_threshold(1)
    try:
        stressed = _trained(trainer, steps)
    finally:
        sys.setswitchinterval(switch_s)
        gc.set_threshold(*thresholds)
    return all(torch.equal(*pair) for pair in zip(calm, stressed, strict=True))


def _trained(trainer: str, steps: int) -> list[Tensor]:
    """Return all replicas' parameters after training a small convolutional net on four CPU devices."""
    torch.manual_seed(1)
    make: Any = load_named(trainer, TRAINERS, "trainer")
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 6))
    # It would measure its weights, and so depend on the clock.
    options = {"weights": (1.0,) * 4} if trainer == "weighted" else {}
    made = make(net, [torch.device("cpu")] * 4, lr=0.01, **options)
    try:
        for _ in range(steps):
            made.step(torch.randn(11, 1, 8, 8), torch.arange(11) % 6, 11)
        return [param.detach().clone() for replica in made.replicas for param in replica.parameters()]
    finally:
        made.close()


def _rearm() -> None:
    faulthandler.dump_traceback_later(HANG_S, exit=True)


def _say(line: str) -> None:
    """Write a line at once: several processes share the pipe, and without a buffer `print` writes twice."""
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


def main(seconds: float) -> None:
    """Train with all trainers at once, each in a process of its own; exit with 1 if one froze."""
    torch.set_num_threads(1)
    checkpoint(torch.relu, torch.ones(1), use_reentrant=False)  # loads torch's compiler, which takes seconds
    pids, ended = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for trainer in ONE_PROCESS:  # at the same time: one that is frozen waits for its watchdog
            if (pid := os.fork()) == 0:
                os.dup2(os.open(f"{folder}/{trainer}", os.O_WRONLY | os.O_CREAT), sys.stderr.fileno())
                _rearm()
                steps = train(trainer, seconds, _rearm)
                _say(f"{trainer}: {steps} steps")
                os._exit(0)
            pids[trainer] = pid
        for trainer, pid in pids.items():
            ended[trainer] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            _say(f"{trainer}: ended with status {ended[trainer]}")
            print(Path(folder, trainer).read_text(), file=sys.stderr, flush=True)
    sys.exit(any(ended.values()))


if __name__ == "__main__":
    Layer.checkpointed, Layer.collect = True, "--collect" in sys.argv
    main(float(sys.argv[1]))
