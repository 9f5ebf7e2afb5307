"""Counts of fresh processes are equal, and the gate fails by a planted one, whatever the times say."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.evidence import counters as evidence
from suite.plan.workloads import Workload
from suite.records.counters import not_reproducible
from tests.suite.rank.test_counting import STEPS, figures
from tests.support.project import DATA, Project, needs_two_cores

OPTIONS = ("--scaling-world-sizes", "2", "--scaling-mode", "strong", "--scaling-budget", "20", "--scaling-against=ddp")


@needs_two_cores
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


@pytest.mark.nightly
def test_fresh_processes_count_the_same(tmp_path: Path) -> None:
    """Two groups of ranks and two processes with replicas, each started by itself."""
    (tmp_path / "data.py").write_text(DATA)
    tiny = Workload(name="tiny", model="toy", dataset=f"{tmp_path / 'data.py'}:blobs", batch=32)
    with evidence.workers(tiny) as (pool, workload, dataset):
        told = [evidence.job(trainer, workload, dataset) for trainer in ("ddp", "ddp", "scratch", "scratch")]
        groups = [pool.launch(f"fresh-{number}", job.size) for number, job in enumerate(told)]
        for group in groups:
            group.wait_connected()
        counted = [evidence.count(group, job, STEPS) for group, job in zip(groups, told, strict=True)]
    assert counted[0] == counted[1]
    assert counted[2] == counted[3]
    assert [not_reproducible(each) for each in counted] == [[]] * 4
    assert figures(counted[0])["all_reduce"]
    assert figures(counted[2])["device copy"]
