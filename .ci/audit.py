"""Look up everything that CI installs among known vulnerabilities: `python .ci/audit.py`, with pip-audit on PATH.

pip-audit ends with status 0 and "No known vulnerabilities found" also where its service knew none of the packages. Here
that is a status of its own:

    0  every package was looked up, and none has a known vulnerability
    1  a package has one
    3  a package could not be looked up, and none has a known vulnerability
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

FILES = ("requirements.txt", "tools.txt")
CLEAN, VULNERABLE, NOT_LOOKED_UP = 0, 1, 3


def looked_up(files: list[Path]) -> tuple[list[dict[str, Any]], str]:
    """Return pip-audit's answer for each package of these files, none where it broke, and its last line on stderr."""
    command = ["pip-audit", "--disable-pip", "--require-hashes", "--format", "json", "--progress-spinner", "off"]
    command += [f"--requirement={path}" for path in files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    last = (done.stderr.strip().splitlines() or ["no output"])[-1]
    try:
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except ValueError:  # its service cannot be reached
        return [], last
    return packages, last


def main() -> int:
    """Print what is known of the packages, and return one of the three statuses."""
    packages, last = looked_up([Path(__file__).with_name(name) for name in FILES])
    vulnerable = [package for package in packages if package.get("vulns")]
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    for package in vulnerable:
        for known in package["vulns"]:
            repaired = ", ".join(known["fix_versions"]) or "no version yet"
            print(f"{package['name']} {package['version']}: {known['id']}, repaired in {repaired}")
    if vulnerable:
        print(f"{len(vulnerable)} of {len(packages)} packages are vulnerable: raise their lower bounds, compile again")
        return VULNERABLE
    if skipped or not packages:
        what = f"{len(skipped)} of {len(packages)} packages, such as {skipped[0]}" if skipped else f"anything ({last})"
        print(f"could not look up {what}: run it where pip-audit's service can be reached")
        return NOT_LOOKED_UP
    print(f"{len(packages)} packages, no known vulnerability")
    return CLEAN


if __name__ == "__main__":
    sys.exit(main())
