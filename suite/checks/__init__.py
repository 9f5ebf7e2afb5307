"""What `pytest -m correctness` runs: generated cases, put to any trainer by real worker processes."""

NOTE = "note"  # the name of a user property that the terminal summary shows
