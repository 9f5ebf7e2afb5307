"""`python -m tests.scripts`: the rows of the table in docs/scripts.md, from the docstrings of the wrong scripts."""

from __future__ import annotations

from tests.scripts import entries, row

if __name__ == "__main__":
    print("\n".join(row(entry) for entry in entries() if entry.source))
