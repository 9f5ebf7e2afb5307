"""What is accepted at the end of a whole pytest session; only the timing is replaced."""

from __future__ import annotations

import pytest

from tests.suite.plugin.test_accepting import LENET, MEASURED, accepted, floor, mine
from tests.support import trainers_under_test
from tests.support.project import Project, needs_two_cores

STOPPED = (
    "not accepted: pytest was stopped before every selected test had run; run all of them, without -x and --maxfail"
)


def test_gradients_that_fail_after_the_measurement_keep_it_from_the_baseline(project: Project) -> None:
    """Real ranks train with a real trainer that exchanges nothing; `-m gpu` selects both kinds of item, too."""
    trainer = f"{trainers_under_test.__file__}:NoExchange"
    chosen = ("-m", "scaling or correctness", "-k", "lenet-strong or NoExchange-gradient")
    result = project.pytest(*MEASURED, *chosen, f"--scaling-trainer={trainer}", "suite.checks", "--scaling-accept")
    result.assert_outcomes(passed=2, failed=1, warnings=2, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines(["not accepted: *test_correctness[[]*NoExchange-gradient[]] failed in this *"])
    assert result.ret == 1
    assert accepted(project) == 0
    assert [record.checks_to_come for record in project.records()] == [1]
    result.stdout.fnmatch_lines(["Right?     This run goes on with 1 check of correctness; *"])


@pytest.mark.nightly
@needs_two_cores  # a floor holds for ranks that have a core each
@pytest.mark.parametrize(
    ("options", "bodies"),
    [
        (("-x", "--scaling-accept=slower"), ()),
        (("--scaling-accept=slower",), ("raise KeyboardInterrupt", "pass")),
        (("--scaling-accept=slower",), ("pytest.exit(returncode=0)", "pass")),
    ],
    ids=["-x", "Ctrl-C", "pytest.exit"],
)
def test_a_session_that_was_stopped_is_not_accepted(
    project: Project, options: tuple[str, ...], bodies: tuple[str, ...]
) -> None:
    floor(project, 0.99)
    result = project.pytest(*LENET, *mine(project, *bodies), *options)
    result.stdout.fnmatch_lines([STOPPED])
    assert accepted(project) == 0
