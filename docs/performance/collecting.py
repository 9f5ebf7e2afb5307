"""What the plugin adds to `pytest --help` and to collecting tests, beside pytest without it.

    python -m docs.performance.collecting

The project has one test. Every command starts a new process, and the commands take turns. The figures are medians; in
brackets are the second smallest and the second largest difference from pytest alone, between which its median lies in
95 % of such measurements.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from docs.evidence.log import ROOT, markdown

TITLE = "pytest itself"
TURNS = 10
WITHOUT = ("-p", "no:torch_scaling_suite")
COMMANDS = {  # by its name, the command with the plugin and the one that it is compared with
    "pytest --help": (("--help",), ("--help", *WITHOUT)),
    "pytest --collect-only": (("--collect-only", "-q"), ("--collect-only", "-q", *WITHOUT)),
    "pytest --pyargs suite.benchmarks -m scaling --collect-only": (
        ("--pyargs", "suite.benchmarks", "-m", "scaling", "--collect-only", "-q"),
        ("--collect-only", "-q", *WITHOUT),
    ),
}


def section() -> str:
    """Return the table."""
    with tempfile.TemporaryDirectory(prefix="performance-") as folder:
        project = Path(folder)
        (project / "pyproject.toml").write_text("[tool.pytest.ini_options]\ntestpaths = ['test_one.py']\n")
        (project / "test_one.py").write_text("def test_one(): ...\n")
        for name in ("suite", "reference", "torch_scaling_suite.py"):  # as installed, without the conftest.py above it
            (project / "site").mkdir(exist_ok=True)
            (project / "site" / name).symlink_to(ROOT / name)
        rows = [_row(project, name, *commands) for name, commands in COMMANDS.items()]
    return markdown(["command", "with the plugin", "without it", "added"], rows)


def _row(project: Path, name: str, command: tuple[str, ...], other: tuple[str, ...]) -> list[str]:
    taken = [(_seconds(project, command), _seconds(project, other)) for _ in range(TURNS + 1)][
        1:
    ]  # the first one warms
    added = sorted(a - b for a, b in taken)
    with_s, without_s = (median(each) for each in zip(*taken, strict=True))
    between = f"{median(added):.2f} [{added[1]:.2f}, {added[-2]:.2f}] s"
    return [f"`{name}`", f"{with_s:.2f} s", f"{without_s:.2f} s", between]


def _seconds(project: Path, arguments: tuple[str, ...]) -> float:
    begun = time.perf_counter()
    command = [sys.executable, "-m", "pytest", *arguments]
    environment = {"PYTHONPATH": str(project / "site"), "PATH": "/usr/bin:/bin"}
    subprocess.run(command, cwd=project, env=environment, stdout=subprocess.DEVNULL, check=True, timeout=60)
    return time.perf_counter() - begun


if __name__ == "__main__":
    print(section())
