"""Call a function on real gloo ranks, each a fresh process that talks to 127.0.0.1 only, and collect what it returns.

Run as a program it is one rank: ``python -m tests.on_ranks FOLDER RANK``. Starting is what costs (every process imports
torch), so one start serves several world sizes: ranks beyond a world's size sit that one out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).resolve().parents[1]


class RankError(Exception):
    """A rank failed or was late; the message holds the end of every rank's stderr."""


def run(
    function: str,
    world_sizes: Sequence[int],
    folder: Path,
    /,
    *,
    timeout_s: float = 400,
    collective_timeout_s: float = 60,
    **arguments: Any,
) -> dict[int, list[Any]]:
    """Call a function with the same arguments on every rank of one world after the other.

    Args:
        function: ``module:name`` or ``path.py:name``; called with the default process group initialised.
        world_sizes: one world each, in this order.
        folder: an existing one, for the messages of this call and of no other.
        timeout_s: for everything, the start of the processes included.
        collective_timeout_s: for any one exchange.
        arguments: JSON.

    Returns:
        By world size what each rank returned, by rank, through JSON.

    Raises:
        RankError: a rank left with an exit code other than 0, or some are still running after ``timeout_s``.
    """
    call = {"function": function, "arguments": arguments, "worlds": world_sizes, "timeout_s": collective_timeout_s}
    (folder / "call.json").write_text(json.dumps(call))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
    ranks = []
    for rank in range(max(world_sizes)):
        with (folder / f"{rank}.stderr").open("wb") as log:
            command = [sys.executable, "-m", "tests.on_ranks", str(folder), str(rank)]
            ranks.append(subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=log))
    deadline = time.monotonic() + timeout_s
    try:
        while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
            if any(rank.poll() for rank in ranks):
                # The others may fail by themselves within moments, and what they say is worth having.
                deadline = min(deadline, time.monotonic() + 5)
            time.sleep(0.05)
        codes = [rank.poll() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    if any(codes) or None in codes:
        logs = [(folder / f"{rank}.stderr").read_text(errors="replace")[-3000:] for rank in range(len(ranks))]
        raise RankError("\n".join(f"rank {r}, exit code {codes[r]}:\n{log}" for r, log in enumerate(logs)))
    return {k: [json.loads((folder / f"{k}.{rank}.json").read_text()) for rank in range(k)] for k in world_sizes}


def _main(folder: Path, rank: int) -> None:
    # In here, so that whoever only starts ranks does not wait for torch.
    import torch
    from torch import distributed as dist

    from reference.load import load_object

    torch.set_num_threads(1)
    call = json.loads((folder / "call.json").read_text())
    function = cast(Any, load_object(call["function"]))
    for world_size in call["worlds"]:
        if rank < world_size:
            store = dist.FileStore(str(folder / f"store-{world_size}"), world_size)
            timeout = timedelta(seconds=call["timeout_s"])
            dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timeout)
            answer = function(**call["arguments"])
            (folder / f"{world_size}.{rank}.json").write_text(json.dumps(answer))
            dist.destroy_process_group()


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]))
