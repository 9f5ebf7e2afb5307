"""How NCCL connected a process: lines as NCCL writes them, and the forms that the installed NCCL has for them."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from torch._C import _distributed_c10d

from suite.processes.folder import FOLDER
from suite.rank import transport

HEAD = "node7:4021:4078 [0] NCCL INFO"
CHANNELS = (
    f"{HEAD} {{0}} coll channels, 0 collnet channels, {{1}} nvls channels, 2 p2p channels, 2 p2p channels per peer"
)

# What torch does when NCCL fails, done with gloo's recorder.
DUMPS = """
from torch import distributed as dist
from torch._C import _distributed_c10d as c10d
from suite.rank import transport
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
    assert transport.said(log("Connected all rings", written, written)) == (said,)


def test_all_transports_and_the_most_channels_of_a_communicator_are_told() -> None:
    """A trainer may have several communicators: of all ranks, and of some."""
    lines = log("Channel 00/0 : 0[0] -> 1[1] via SHM/direct", "Channel 00/0 : 1[1] -> 2[2] via P2P/CUMEM")
    several = "\n".join([CHANNELS.format(2, 0), lines, CHANNELS.format(24, 16)])
    assert transport.said(several) == ("P2P/CUMEM", "SHM/direct", "24 channels", "16 NVLS channels")
    assert transport.said(CHANNELS.format(2, 0)) == ("2 channels",)


@pytest.mark.parametrize("text", ["", "NCCL version 2.30.7+cuda13.2", "via P2P/CUMEM", "\0\ufffd via SHM/\n\n"])
def test_other_lines_say_nothing(text: str) -> None:
    assert transport.said(text) == ()


def test_nccl_logs_to_a_file_of_the_process_in_the_runs_folder(tmp_path: Path) -> None:
    environment = {FOLDER: str(tmp_path)}
    assert transport.logged(environment) == ()
    transport.listen(environment)
    assert (environment["NCCL_DEBUG"], environment["NCCL_DEBUG_SUBSYS"]) == ("INFO", "INIT")
    assert transport.logged(environment) == (), "NCCL has written nothing"
    written = Path(environment["NCCL_DEBUG_FILE"])
    assert str(os.getpid()) in written.name
    written.write_bytes(b"\xff\n" + log("Channel 00/0 : 0[0] -> 1[1] via P2P/IPC").encode())
    assert transport.logged(environment) == ("P2P/IPC",)


def test_the_last_warnings_are_found_in_the_log(tmp_path: Path) -> None:
    """What NCCL says when it fails is in its log, and not always in torch's exception."""
    environment = {FOLDER: str(tmp_path)}
    assert transport.warnings(environment) == []
    transport.listen(environment)
    warned = [f"node7:4021:4078 [0] transport/nvls.cc:{line} NCCL WARN Cuda failure 801" for line in range(9)]
    Path(environment["NCCL_DEBUG_FILE"]).write_text("\n".join([CHANNELS.format(2, 0), *warned, log("Init COMPLETE")]))
    assert transport.warnings(environment) == warned[-5:]
    assert transport.logged(environment) == ("2 channels",)


@pytest.mark.parametrize(
    "own", [{"NCCL_DEBUG": "WARN"}, {"NCCL_DEBUG_SUBSYS": "ALL"}, {"NCCL_DEBUG_FILE": "/dev/null"}]
)
def test_a_users_own_log_is_left_alone(own: dict[str, str], tmp_path: Path) -> None:
    environment = {**own, FOLDER: str(tmp_path)}
    transport.listen(environment)
    assert {name: value for name, value in environment.items() if name.startswith("NCCL")} == own
    assert transport.logged(environment) == ()


@pytest.mark.nightly
def test_what_the_flight_recorder_writes_ends_with_the_run(tmp_path: Path) -> None:
    """By default it would stay in the user's home, as the first of the two files here."""
    if not hasattr(_distributed_c10d, "_dump_fr_trace_file"):
        pytest.skip("this torch writes it from its group for NCCL alone")
    folder = tmp_path / "run"
    folder.mkdir()
    inherited = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], FOLDER: str(folder)}
    inherited |= {name: value for name, value in os.environ.items() if name in ("PYTHONPATH", "LD_LIBRARY_PATH")}
    for listens in ("pass", "transport.listen()"):
        subprocess.run([sys.executable, "-c", DUMPS.format(listens=listens)], env=inherited, check=True, timeout=60)
    written = {path.parent for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {tmp_path / ".cache" / "torch", folder}


@pytest.mark.parametrize("name", transport.TRACES)
def test_a_users_own_place_for_the_flight_recorder_is_left_alone(name: str, tmp_path: Path) -> None:
    environment = {name: "/tmp/mine", FOLDER: str(tmp_path)}
    transport.listen(environment)
    assert [environment.get(each) for each in transport.TRACES].count(None) == 1
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
