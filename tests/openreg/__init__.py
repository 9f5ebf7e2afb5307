"""Tests on `torch_openreg`, the simulated accelerator in PyTorch's own tests: `tox -e openreg`, docs/gpu.md."""

import os
from importlib.util import find_spec

import pytest

FOLDER = "SCALING_OPENREG"  # the environment variable that names the folder with the package, built for this torch
needs_openreg = pytest.mark.skipif(
    find_spec("torch_openreg") is None and FOLDER not in os.environ,
    reason="needs torch_openreg, PyTorch's simulated accelerator: tox -e openreg",
)
