"""A gate on real processes into which one fault is put at a chosen moment, and what must be true afterwards.

`catalogue` says which faults there are, when they happen and how the run must end. `stage` makes a project, runs the
gate in it, and looks at what the run left. `trainer` is what the gate measures; it does what a worker can do wrong.
`plugin` holds the controller where a file is about to be written. `python -m tests.support.faults` makes many such
runs, and keeps a log of them.
"""
