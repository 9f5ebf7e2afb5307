"""What `pytest -m correctness` runs: generated cases, put to any trainer by real worker processes."""
