"""Records a torch.profiler trace of training steps in a file that the usual viewers open (worker's side).

The trace has CPU activities of every thread, because a trainer of several CPU devices in one process has a thread for
each, and CUDA activities on CUDA devices. Not covered: Python frames, tensor shapes and memory, whose recording would
slow small steps most.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

from suite.processes.answers import Traced
from suite.rank.arm import TimedArm
from suite.rank.counting import EVERY_THREAD
from suite.script.timed import TimedScript

ROWS = 10  # of the table


class TracedArm(TimedArm):
    """An arm that annotates the parts of each step: `feed` draws the minibatch, and `step` is the trainer's."""

    def _step(self) -> Any:
        with record_function("feed"):
            X, y = next(self._batches)
        with record_function("step"):
            return self._train(self.trainer.step, X, y, self.global_batch)


def trace(arm: TracedArm | TimedScript, steps: int, path: Path) -> Traced:
    """Trace one window of steps of a warmed-up arm, and write it as a Chrome trace to `path`, which ends in .json.gz.

    Raises:
        OSError: the file cannot be written; no part of it remains.
    """
    on_gpus = any(device.type != "cpu" for device in arm.devices)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpus else [])]
    with profile(activities=activities, experimental_config=EVERY_THREAD) as profiler:
        duration_ns = arm.window(steps)
    part = path.with_name(f".{path.name}")  # ends in .gz too, which makes torch compress it
    try:
        profiler.export_chrome_trace(str(part))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    by = "self_device_time_total" if on_gpus else "self_cpu_time_total"
    table = profiler.key_averages().table(sort_by=by, row_limit=ROWS, max_name_column_width=40)
    return Traced(duration_ns / steps / 1e6, table)
