"""Runs `pytest -m correctness`: real worker processes put generated cases to any trainer."""

from collections.abc import Iterable

# Names of user properties: what the terminal summary shows, and whether the trainer that fails a check computed
# something wrong, or raised, died or hung.
NOTE, FAILURE = "note", "failure"
WRONG, RAISED = "wrong", "raised"


def failure_text(finding: str, suspects: Iterable[str], more: Iterable[str], command: str) -> str:
    """Return a failure as it is shown: what is wrong, known bugs that it looks like, how to see it again."""
    lines = [f"looks like: {suspect}" for suspect in suspects]
    return "\n  ".join([finding, *lines, *more, f"see it again: {command}"])
