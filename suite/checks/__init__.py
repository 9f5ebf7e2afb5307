"""Runs `pytest -m correctness`: real worker processes put generated cases to any trainer."""

# Names of user properties: what the terminal summary shows, and whether the trainer that fails a check computed
# something wrong, or raised, died or hung.
NOTE, FAILURE = "note", "failure"
WRONG, RAISED = "wrong", "raised"
