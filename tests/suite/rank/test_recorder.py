"""What torch's flight recorder kept of collectives, and how NCCL connected a process.

What torch answers is scripted; a hang is in tests/processes/test_pool.py. NCCL's lines are as NCCL writes them, and the
forms are those of the installed NCCL.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch._C import _distributed_c10d

from suite.processes.folder import FOLDER
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


HEAD = "node7:4021:4078 [0] NCCL INFO"
CHANNELS = (
    f"{HEAD} {{0}} coll channels, 0 collnet channels, {{1}} nvls channels, 2 p2p channels, 2 p2p channels per peer"
)

# What torch does when NCCL fails, done with gloo's recorder.
DUMPS = """
from torch import distributed as dist
from torch._C import _distributed_c10d as c10d
from suite.rank import recorder
{listens}
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.barrier()
c10d._dump_fr_trace_file(0)
"""


def log(*lines: str) -> str:
    return "\n".join(f"{HEAD} {line}" for line in lines)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", "P2P/CUMEM"),
        ("Channel 03/0 : 0[0] -> 1[1] via P2P/CUMEM/read", "P2P/CUMEM/read"),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/IPC comm 0x55 nRanks 02", "P2P/IPC"),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer", "P2P/direct"),
        ("Channel 02/0 : 0[0] -> 7[7] via P2P/indirect/3[3]", "P2P/indirect"),
        ("Channel 01 : 1[1] -> 0[0] via SHM/direct/direct", "SHM/direct/direct"),
        ("Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/2/GDRDMA", "NET/IB/GDRDMA"),
        ("Channel 00/0 : 1[0] -> 0[0] [send] via NET/IB/2(1)/GDRDMA/Shared", "NET/IB/GDRDMA/Shared"),
        ("Channel 00/0 : 1[0] -> 0[0] [send] via NET/Socket/0", "NET/Socket"),
    ],
)
def test_a_transport_has_nccls_name_without_the_numbers_of_cards(written: str, said: str) -> None:
    assert recorder.said(log("Connected all rings", written, written)) == (said,)


def test_all_transports_and_the_most_channels_of_a_communicator_are_told() -> None:
    """A trainer may have several communicators: of all ranks, and of some."""
    lines = log("Channel 00/0 : 0[0] -> 1[1] via SHM/direct", "Channel 00/0 : 1[1] -> 2[2] via P2P/CUMEM")
    several = "\n".join([CHANNELS.format(2, 0), lines, CHANNELS.format(24, 16)])
    assert recorder.said(several) == ("P2P/CUMEM", "SHM/direct", "24 channels", "16 NVLS channels")
    assert recorder.said(CHANNELS.format(2, 0)) == ("2 channels",)


@pytest.mark.parametrize("text", ["", "NCCL version 2.30.7+cuda13.2", "via P2P/CUMEM", "\0\ufffd via SHM/\n\n"])
def test_other_lines_say_nothing(text: str) -> None:
    assert recorder.said(text) == ()


def test_nccl_logs_to_a_file_of_the_process_in_the_runs_folder(tmp_path: Path) -> None:
    environment = {FOLDER: str(tmp_path)}
    assert recorder.logged(environment) == ()
    recorder.log_nccl(environment)
    assert (environment["NCCL_DEBUG"], environment["NCCL_DEBUG_SUBSYS"]) == ("INFO", "INIT")
    assert recorder.logged(environment) == (), "NCCL has written nothing"
    written = Path(environment["NCCL_DEBUG_FILE"])
    assert str(os.getpid()) in written.name
    written.write_bytes(b"\xff\n" + log("Channel 00/0 : 0[0] -> 1[1] via P2P/IPC").encode())
    assert recorder.logged(environment) == ("P2P/IPC",)


def test_the_last_warnings_are_found_in_the_log(tmp_path: Path) -> None:
    """What NCCL says when it fails is in its log, and not always in torch's exception."""
    environment = {FOLDER: str(tmp_path)}
    assert recorder.warnings(environment) == []
    recorder.log_nccl(environment)
    warned = [f"node7:4021:4078 [0] transport/nvls.cc:{line} NCCL WARN Cuda failure 801" for line in range(9)]
    Path(environment["NCCL_DEBUG_FILE"]).write_text("\n".join([CHANNELS.format(2, 0), *warned, log("Init COMPLETE")]))
    assert recorder.warnings(environment) == warned[-5:]
    assert recorder.logged(environment) == ("2 channels",)


@pytest.mark.parametrize(
    "own", [{"NCCL_DEBUG": "WARN"}, {"NCCL_DEBUG_SUBSYS": "ALL"}, {"NCCL_DEBUG_FILE": "/dev/null"}]
)
def test_a_users_own_log_is_left_alone(own: dict[str, str], tmp_path: Path) -> None:
    environment = {**own, FOLDER: str(tmp_path)}
    recorder.log_nccl(environment)
    assert {name: value for name, value in environment.items() if name.startswith("NCCL")} == own
    assert recorder.logged(environment) == ()


@pytest.mark.nightly
def test_what_the_flight_recorder_writes_ends_with_the_run(tmp_path: Path) -> None:
    """By default it would stay in the user's home, as the first of the two files here."""
    if not hasattr(_distributed_c10d, "_dump_fr_trace_file"):
        pytest.skip("this torch writes it from its group for NCCL alone")
    folder = tmp_path / "run"
    folder.mkdir()
    inherited = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], FOLDER: str(folder)}
    inherited |= {name: value for name, value in os.environ.items() if name in ("PYTHONPATH", "LD_LIBRARY_PATH")}
    for listens in ("pass", "recorder.log_nccl()"):
        subprocess.run([sys.executable, "-c", DUMPS.format(listens=listens)], env=inherited, check=True, timeout=60)
    written = {path.parent for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {tmp_path / ".cache" / "torch", folder}


@pytest.mark.parametrize("name", recorder.TRACES)
def test_a_users_own_place_for_the_flight_recorder_is_left_alone(name: str, tmp_path: Path) -> None:
    environment = {name: "/tmp/mine", FOLDER: str(tmp_path)}
    recorder.log_nccl(environment)
    assert [environment.get(each) for each in recorder.TRACES].count(None) == 1
    assert environment[name] == "/tmp/mine"


def test_the_installed_nccl_has_the_forms_that_are_read() -> None:
    """The forms are in its library, as printf takes them."""
    spec = find_spec("nvidia.nccl") if find_spec("nvidia") else None
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("this torch comes without NCCL")
    [library] = Path(spec.submodule_search_locations[0]).glob("lib/libnccl.so*")
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as code:
        arrow = b"%d[%d] -> %d[%d]"
        for form in (
            arrow + b" via P2P/%s",
            arrow + b" via P2P/IPC",
            arrow + b" via SHM/",
            arrow + b" [send] via NET/%s/%d",
            b" NCCL WARN ",
            b"%d coll channels, %d collnet channels, %d nvls channels",
        ):
            assert code.find(form) > 0, form
