"""A planted synchronisation in a whole run: the gate fails by its count, whatever the times say."""

from __future__ import annotations

import pytest

from docs.evidence import counters as evidence
from suite.room.quiet import available_cores
from tests.support.project import Project

OPTIONS = ("--scaling-world-sizes", "2", "--scaling-mode", "strong", "--scaling-budget", "20", "--scaling-against=ddp")


@pytest.mark.end_to_end
@pytest.mark.skipif(len(available_cores()) < 2, reason="two CPU workers need two cores")
def test_a_stray_item_fails_the_gate(project: Project) -> None:
    planted = f"--scaling-trainer={evidence.PLANTED}ReadsTheLoss"
    run = project.scaling(planted, *OPTIONS, "--scaling-counters", "fail")
    [record] = project.records()
    [cell] = record.cells
    checks = [check for check in cell.checks if check.rule == "counters"]
    said = "0 → 1 host-device synchronisations a step"
    assert list(cell.counters) == ["candidate", "base"]
    assert [check.reason.startswith(said) for check in checks] == [True]
    run.stdout.re_match_lines(
        [f".*FAIL: .*{said}", f".*ReadsTheLoss-tiny-strong-2: .*{said}"]
    )  # its time may FAIL, too
    assert run.ret == pytest.ExitCode.TESTS_FAILED
