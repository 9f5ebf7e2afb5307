"""Download Fashion-MNIST: ``python -m reference.data download --data-root data``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from reference.data.fashion_mnist import download


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0, or 1 with one line on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m reference.data", description="Get the data that benchmarks train on."
    )
    command = parser.add_subparsers(required=True).add_parser("download", help="fetch Fashion-MNIST (31 MB)")
    command.add_argument("--data-root", type=Path, default=Path("data"), help="folder for data files (default: data)")
    data_root: Path = parser.parse_args(argv).data_root
    try:
        folder = download(data_root)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"Fashion-MNIST is in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
