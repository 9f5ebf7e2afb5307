"""Every item of every script: `pytest -m correctness --scaling-script "train.py"`; not collected without one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from suite.checks import NOTE
from suite.checks.script import Checked, again, explain
from suite.plan.config import Config
from suite.plan.scripts import Script

NOT_RUN = pytest.StashKey[set[str]]()
"""Scripts that could not be run, of which one item has said so."""


@pytest.mark.correctness
def test_script(
    correctness_script: Script,
    script_item: str,
    checked_scripts: Callable[[Script], Checked],
    scaling_config: Config,
    request: pytest.FixtureRequest,
) -> None:
    """A script on several ranks does what one device would do with all rows."""
    checked, name = checked_scripts(correctness_script), correctness_script.name
    if checked.failure:
        said = request.session.stash.setdefault(NOT_RUN, set())
        if name in said:
            pytest.skip(f"not checked: script {name!r} could not be run, as the failure of another item says")
        said.add(name)
        shown = again(scaling_config, correctness_script, script_item)
        pytest.fail(f"{checked.failure}\n  see it again: {shown}", pytrace=False)
    verdict = checked.verdicts[script_item]
    unchecked = [f"not checked: {verdict.unchecked}"] if verdict.unchecked else []
    notes = [f"{name}: {note}" for note in checked.notes]
    notes += [f"{name}, {script_item}: {note}" for note in (*verdict.notes, *unchecked)]
    request.node.user_properties.extend((NOTE, note) for note in notes)
    if verdict.finding:
        pytest.fail(explain(scaling_config, correctness_script, script_item, verdict), pytrace=False)
    if unchecked:
        pytest.skip(unchecked[0])
