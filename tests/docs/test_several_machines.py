"""The page on several machines: its commands are those that the suite prints, and its SLURM script parses."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from suite.processes.hosts import ENDPOINT, JOINING, RUN_ID
from suite.processes.remote import SECRET
from suite.room import devices
from tests.support.project import REPOSITORY

PAGE = (REPOSITORY / "docs" / "several-machines.md").read_text(encoding="utf-8")
SCRIPT = REPOSITORY / "docs" / "several-machines.sbatch"
# What sbatch's manual says of these options' values; "" where there is none.
SBATCH = {
    "job-name": r"\S+",
    "nodes": r"[1-9]\d*(-[1-9]\d*)?",
    "ntasks-per-node": r"[1-9]\d*",
    "gpus-per-node": r"([a-z0-9_]+:)?[1-9]\d*",
    "exclusive": r"|user|mcs|topo",
    "time": r"\d+|\d+:\d\d(:\d\d)?|\d+-\d+(:\d\d){0,2}",
}


@pytest.mark.parametrize("text", [PAGE, SCRIPT.read_text(encoding="utf-8")], ids=["page", "script"])
def test_commands_set_what_hosts_need(text: str) -> None:
    for needed in (ENDPOINT, RUN_ID, SECRET, JOINING, "while torchrun", "-m suite.worker", "--rdzv-backend=c10d"):
        assert needed in text


@pytest.mark.parametrize("setting", sorted(set(re.findall(r"\b\d+xcpu:\d+", PAGE))))
def test_devices_that_the_page_names_can_be_read(setting: str) -> None:
    assert str(devices.parse(setting)).startswith(setting)


def test_slurm_takes_the_script() -> None:
    """By its own check where it is installed; elsewhere by what sbatch's manual says of the options in use."""
    subprocess.run(["bash", "-n", SCRIPT], check=True, timeout=30)
    if shutil.which("sbatch") is not None:
        subprocess.run(["sbatch", "--test-only", SCRIPT], check=True, timeout=60)
    head, _, body = SCRIPT.read_text(encoding="utf-8").partition("\nset -euo pipefail\n")
    assert head.startswith("#!/bin/bash\n")
    assert "#SBATCH" not in body, "sbatch reads options only before the first command"
    given = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(\S+))?$", head, re.MULTILINE))
    assert len(given) == head.count("#SBATCH")
    for option, value in given.items():
        assert re.fullmatch(SBATCH[option], value), option


@pytest.mark.parametrize("wrong", ["2 hours", "1:0:0:0", "", "two"])
def test_what_slurm_would_refuse_is_noticed(wrong: str) -> None:
    assert not re.fullmatch(SBATCH["time"], wrong)
    assert not re.fullmatch(SBATCH["nodes"], wrong)


def test_the_slurm_script_leaves_out_its_own_node_by_the_name_that_slurm_knows(tmp_path: Path) -> None:
    told = tmp_path / "told"
    programs = {
        "srun": f'echo "$*" > {told}.part && mv {told}.part {told}',
        "hostname": "echo node7.example.org",
        "openssl": "echo secret",
        "pytest": f"until [ -e {told} ]; do sleep .01; done",  # as the script ends srun after it
    }
    for name, line in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    job = {"SLURMD_NODENAME": "gpu-7", "SLURM_NNODES": "2", "SLURM_JOB_ID": "1"}
    environment = job | {"PATH": f"{tmp_path}:{os.defpath}"}
    subprocess.run(["bash", SCRIPT], env=environment, check=True, timeout=30)
    assert "--exclude=gpu-7 " in told.read_text()
    assert "--rdzv-endpoint=node7.example.org:29400 " in told.read_text()


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is in the extra lint, and the gate runs it")
def test_the_slurm_script_passes_shellcheck() -> None:
    subprocess.run(["shellcheck", SCRIPT], check=True, timeout=60)
