"""`python -m suite COMMAND`: one module a command, and what several of them share."""
