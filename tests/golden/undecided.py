"""A plugin, `-p tests.golden.undecided`: a run times every cell in all of its sessions, whatever has been decided."""

from __future__ import annotations

from suite.run import campaign, schedule

campaign._Campaign._undecided = lambda self, cell: True  # type: ignore[method-assign]
schedule.HOPELESS = 0.0  # no cell leaves
