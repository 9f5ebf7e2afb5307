"""Runs `pytest -m correctness`: real worker processes put generated cases to any trainer."""

NOTE = "note"  # the name of a user property that the terminal summary shows
