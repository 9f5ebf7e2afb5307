"""Two threads that read torch's random state, and garbage that holds tensors, freeze the whole interpreter.

python get_rng_state_deadlock.py            frozen within seconds; the stacks come 10 s later, exit status 1
python get_rng_state_deadlock.py --no-gc    30 s without a freeze, exit status 0
"""

from __future__ import annotations

import faulthandler
import gc
import itertools
import os
import sys
import threading
import time

import torch

calls = itertools.count()


class Cycle:
    """Only the garbage collector frees it, and its tensor."""

    def __init__(self) -> None:
        self.itself, self.tensor = self, torch.zeros(1)


def work() -> None:
    """Save and restore the state of torch's default generator, and leave garbage behind, forever."""
    while True:
        Cycle()
        torch.set_rng_state(torch.get_rng_state())
        next(calls)


def main() -> None:
    """Start the threads; where they freeze the interpreter, faulthandler's watchdog ends the process."""
    if "--no-gc" in sys.argv:
        gc.disable()
    for _ in range(2):
        threading.Thread(target=work, daemon=True).start()
    start = time.monotonic()
    while (seconds := time.monotonic() - start) < 30:
        print(f"{seconds:.1f} s, {next(calls)} calls", flush=True)
        faulthandler.dump_traceback_later(10, exit=True)
        time.sleep(0.5)
    os._exit(0)


if __name__ == "__main__":
    main()
