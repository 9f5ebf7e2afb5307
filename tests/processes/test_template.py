"""The warm template: what its workers share, what they do not, and when it refuses to fork."""

from __future__ import annotations

import random
import sys
import threading
from typing import Any

from suite import template
from suite.checks.bench import Bench
from suite.processes.messages import Ended, Start
from tests.support import on_ranks

HERE = "tests.processes.test_template"


def what_a_worker_starts_with() -> dict[str, Any]:
    """Return the state of a forked rank before any work."""
    import torch

    return {
        "compiler": "torch._dynamo" in sys.modules,
        "cuda": torch.cuda.is_initialized(),
        "draw": random.random(),
    }


def test_a_worker_has_torch_and_its_compiler_and_draws_of_its_own(bench: Bench) -> None:
    first, second = on_ranks.run(bench, f"{HERE}:what_a_worker_starts_with", [2])[2]
    assert first["compiler"]
    assert not first["cuda"]
    assert first["draw"] != second["draw"]


def test_a_template_with_a_second_thread_refuses_to_fork() -> None:
    """A fork would copy locks that the other thread holds, and nothing would release them."""
    sent: list[Ended] = []
    made = template.Template.__new__(template.Template)
    made._channel = type("Sent", (), {"send": staticmethod(sent.append)})()
    done = threading.Event()
    thread = threading.Thread(target=done.wait, args=(60,))
    thread.start()
    made._start(Start("g", 1, "", ()))
    done.set()
    thread.join(60)
    [answer] = sent
    assert answer.group == "g"
    assert "threads and cannot fork" in answer.cause
