"""The last collectives that torch's flight recorder kept: what torch answers is scripted; a hang is in test_pool.py."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from suite.rank import recorder


def recorded(*numbers: int, group: str = "0") -> bytes:
    """Return what torch dumps of these all_reduces of a group."""
    call = {"profiling_name": "nccl:all_reduce", "input_dtypes": ["Float"], "input_sizes": [[10, 5]]}
    entries = [{**call, "process_group": [group, ""], "collective_seq_id": number} for number in numbers]
    return json.dumps({"entries": entries}).encode()


NOTHING = recorded()


def scripted(kept: dict[str, bytes], legacy: bytes = NOTHING) -> SimpleNamespace:
    """Return torch's module with one recorder for each backend, as torch 2.15 has them."""

    def dump(*, includeCollectives: bool, onlyActive: bool, backend: str = "gloo") -> bytes:
        return kept.get(backend, NOTHING)

    return SimpleNamespace(_dump_fr_trace_json=dump, _dump_nccl_trace_json=lambda **asked: legacy)


def before_torch_2_15(**asked: Any) -> bytes:
    """Answer as torch's function without a choice of backend."""
    if "backend" in asked:
        raise TypeError("unexpected keyword argument 'backend'")
    return recorded(4)


@pytest.mark.parametrize(
    ("module", "groups"),
    [
        (scripted({"gloo": recorded(3, 4)}), ["0 (gloo)"]),
        (scripted({"gloo": recorded(4), "nccl2": recorded(3, 4, group="1")}), ["1 (nccl)", "0 (gloo)"]),
        (scripted({"nccl": recorded(4)}), ["0 (nccl)"]),
        (scripted({"gloo": recorded(4)}, legacy=recorded(4)), ["0 (nccl)", "0 (gloo)"]),
        (SimpleNamespace(_dump_fr_trace_json=before_torch_2_15), ["0 (gloo)"]),
        (scripted({"gloo": b"not JSON"}), []),
        (SimpleNamespace(), []),
    ],
)
def test_the_last_call_of_every_group_is_found_in_the_recorder_that_has_it(
    monkeypatch: pytest.MonkeyPatch, module: SimpleNamespace, groups: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", module)
    assert recorder.last_calls() == [
        f"last collective of group {group}: number 4, all_reduce Float [[10, 5]]" for group in groups
    ]
