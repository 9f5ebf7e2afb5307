"""Records a torch.profiler trace of training steps in a file that the usual viewers open (worker's side).

The trace has CPU activities of every thread, because a trainer of several CPU devices in one process has a thread for
each, and CUDA activities on CUDA devices. Two annotations mark the parts of a step: `feed` (drawing the minibatch) and
`step` (the trainer's own: forward, backward, exchange, update). A script's steps have none.

Not covered: Python frames, tensor shapes and memory, whose recording would slow small steps most.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.profiler import DeviceType, ProfilerActivity, profile, record_function

from suite.processes.answers import Operator, Traced
from suite.rank.arm import TimedArm
from suite.rank.counting import EVERY_THREAD
from suite.script.timed import TimedScript

FEED = "feed"
STEP = "step"


class TracedArm(TimedArm):
    """An arm that annotates the two parts of each step."""

    def _step(self) -> Any:
        with record_function(FEED):
            X, y = next(self._batches)
        with record_function(STEP):
            return self._train(self.trainer.step, X, y, self.global_batch)


def trace(arm: TracedArm | TimedScript, steps: int, path: Path) -> Traced:
    """Trace one window of steps and write it as a Chrome trace.

    Args:
        arm: warmed up.
        steps: how many, at least 1.
        path: of the file; it ends in .json.gz, and its folder exists.

    Raises:
        OSError: the file cannot be written; no part of it remains.
    """
    activities = [ProfilerActivity.CPU]
    if any(device.type != "cpu" for device in arm.devices):
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, experimental_config=EVERY_THREAD) as profiler:
        duration_ns = arm.window(steps)
    _write(profiler, path)
    # GPU activities have entries of their own too; they are counted with the operators that launched them.
    events = [event for event in profiler.key_averages() if event.device_type == DeviceType.CPU]
    us = 1e3 * steps  # microseconds of the window to milliseconds a step
    operators = [
        Operator(event.key, event.count / steps, event.self_cpu_time_total / us, event.self_device_time_total / us)
        for event in events
        if event.key not in (FEED, STEP)
    ]
    parts_ms = {event.key: event.cpu_time_total / us for event in events if event.key in (FEED, STEP)}
    return Traced(duration_ns / steps / 1e6, parts_ms, tuple(operators))


def _write(profiler: profile, path: Path) -> None:
    """Write a temporary file and rename it, so that `path` is always a whole file or none."""
    part = path.with_name(f".{path.name}")  # ends in .gz too, which makes torch compress it
    try:
        profiler.export_chrome_trace(str(part))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
