"""The commands of docs/seeds.md that train a little."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest

from tests.docs.test_seeds import COMMANDS
from tests.support.deadlines import WHOLE_S
from tests.support.project import REPOSITORY


@pytest.mark.nightly
@pytest.mark.parametrize("row", ["3-loss", "4-train"])
def test_the_book_is_trained(row: str) -> None:
    [command] = [command for command in COMMANDS[row] if command.startswith("python")]
    arguments = [sys.executable, *shlex.split(command)[1:]]
    out = subprocess.run(arguments, cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=WHOLE_S).stdout
    assert re.search(r"test acc [\d.]+, [\d.]+ sec/epoch on \[", out), out
