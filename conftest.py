"""Loads the plugin from a clone; where the distribution is installed, its entry point of the same name already has."""

from __future__ import annotations

from hypothesis import settings

pytest_plugins = ["suite.plugin", "pytester"]

# No deadline: a shared machine may hold up any example. Derandomised by default, so that a red run can be repeated.
settings.register_profile("default", deadline=None, derandomize=True)
settings.register_profile("nightly", deadline=None, max_examples=1000)
settings.load_profile("default")
