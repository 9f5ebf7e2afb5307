"""Everything that the project prints is run as printed, in new clones and in projects of users.

`python -m tests.stranger` follows README, docs/elsewhere.md and docs/ci.md command by command, then the commands that
these runs print, and does what their errors advise. It needs Python and git only, and for all but the first half uv.
"""
