"""Tests on `torch_openreg`, the simulated accelerator in PyTorch's own tests: `tox -e openreg`, docs/gpu.md.

As a pytest plugin (`-p tests.openreg`) it lets a run use simulated accelerators where it would use GPUs.
`--scaling-devices cuda:N` are then the first N devices of `torch_openreg`. What NVML and a worker say of GPUs is
replaced; everything else is a run on GPUs: workers that torch's agent executes, windows, memory, record and reports.
"""

import os
from importlib.util import find_spec

import pytest

from suite.room import devices
from suite.room.devices import Devices
from suite.room.nvml import Cards
from suite.run import confirming, machine

FOLDER = "SCALING_OPENREG"  # the environment variable that names the folder with the package, built for this torch
COUNT = "SIMULATED_DEVICES"  # the environment variable that has their number
needs_openreg = pytest.mark.skipif(
    find_spec("torch_openreg") is None and FOLDER not in os.environ,
    reason="needs torch_openreg, PyTorch's simulated accelerator: tox -e openreg",
)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Replace what is asked of NVML, before the suite reads its options."""
    names = tuple(f"openreg:{index}" for index in range(int(os.environ[COUNT])))
    here = devices.Survey(gpus=((),) * len(names), by="torch_openreg")
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    patch.setattr(devices, "parse", lambda setting: Devices("cuda", names, ()))
    patch.setattr("suite.plugin.survey", lambda: here)
    patch.setattr(confirming, "problem", lambda gpus_needed: "")
    patch.setattr(machine, "describe", lambda used: machine._machine(used, Cards(()), ()))
