"""Pages are written again next to their records, what cannot be read is left out; a sweep has a table and a page."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from suite.__main__ import main
from suite.records.baselines import Baseline
from suite.records.sweep import Setting
from suite.render import html, pages, terminal
from suite.render.sweep import document
from tests.support.pages import Page
from tests.support.records import KEY, accepted, keep, run_of
from tests.support.sweeps import EPOCHS, net, sweep

PAGES = {"report.html", "summary.md"}


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the report folder of a project with two runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\nscaling_report_dir = 'kept'\n")
    return keep(tmp_path / "kept", run_of(1), run_of(2)).parent


def written(folder: Path) -> set[str]:
    """Return the pages below a folder, each with the name of its own folder."""
    return {f"{path.parent.name}/{path.name}" for name in (*PAGES, "index.html") for path in folder.rglob(name)}


@pytest.mark.parametrize(
    ("name", "days"),
    [
        (lambda reports: [], (1, 2)),
        (lambda reports: [reports / KEY], (1, 2)),
        (lambda reports: [reports / KEY / "runs" / run_of(1).run_id], (1,)),
        (lambda reports: [reports / KEY / "runs" / run_of(1).run_id / "record.json"], (1,)),
    ],
    ids=["report folder", "machine", "run", "record"],
)
def test_records_are_named_by_file_or_folder(
    reports: Path, capsys: pytest.CaptureFixture[str], name: Callable[[Path], list[Path]], days: tuple[int, ...]
) -> None:
    assert main(["render", *map(str, name(reports))]) == 0
    assert f"render: {len(days)} run(s) written, 0 could not be read" in capsys.readouterr().out
    of_runs = {f"{run_of(day).run_id}/{page}" for day in days for page in PAGES}
    assert written(reports) == of_runs | {f"{KEY}/index.html"}
    assert f"runs/{run_of(1).run_id}/report.html" in (reports / KEY / "index.html").read_text()


def test_links_lead_to_nothing_that_is_written_elsewhere(reports: Path, tmp_path: Path) -> None:
    """A pull request can bring links; pages are written next to a record."""
    elsewhere = keep(tmp_path / "elsewhere", run_of(3)) / "runs" / run_of(3).run_id
    runs = reports / KEY / "runs"
    (runs / "linked").symlink_to(elsewhere)
    (runs / "with-link").mkdir()
    (runs / "with-link" / "record.json").symlink_to(elsewhere / "record.json")
    assert main(["render"]) == 0
    assert main(["render", str(runs / "with-link" / "record.json")]) == 0, "this folder was named"
    assert written(tmp_path / "elsewhere") == set()
    assert written(runs / "with-link") == {"with-link/report.html", "with-link/summary.md"}


def test_names_of_folders_do_not_steer_a_terminal_or_a_ci(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Such as a line that GitHub takes for a command."""
    (reports / KEY).rename(reports / "red\x1b[31m\n::error::planted")
    assert main(["render"]) == 0
    assert "red?[31m?::error::planted/index.html\n" in capsys.readouterr().out
    page = next(reports.rglob("report.html"))
    page.unlink()
    page.mkdir()
    assert main(["render"]) == 1
    assert "red?[31m?::error::planted/runs/" in capsys.readouterr().err


def test_a_record_outside_of_a_report_folder_has_no_history(reports: Path, tmp_path: Path) -> None:
    (keep(tmp_path / "job", run_of(1)) / "runs" / run_of(1).run_id).rename(tmp_path / "taken-home")
    assert main(["render", "taken-home"]) == 0
    assert written(tmp_path) == {"taken-home/report.html", "taken-home/summary.md"}


def test_what_cannot_be_read_is_named_and_the_rest_is_written(
    reports: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = reports / KEY / "runs" / "broken"
    broken.mkdir()
    for path in (broken / "record.json", reports / KEY / "baseline.json"):
        path.write_text("{")
    assert main(["render"]) == 0
    captured = capsys.readouterr()
    assert "render: left out: " in captured.err
    assert "render: without what was accepted: " in captured.err
    assert "2 run(s) written, 1 could not be read" in captured.out
    assert "broken" in (reports / KEY / "index.html").read_text()
    assert main(["render", str(broken)]) == 4, "it was asked for by name"


def test_a_page_that_cannot_be_written_ends_with_one(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (reports / KEY / "runs" / run_of(1).run_id / "report.html").mkdir()
    assert main(["render"]) == 1
    assert "cannot be written: Is a directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: expected a record.json, or the folder of a run, of a machine, or of reports"),
        (["--scaling-report-dir", "nowhere"], "nowhere: expected a record.json"),
        (["--scaling-budget=60"], "unrecognized arguments: --scaling-budget=60"),
    ],
)
def test_usage_errors_end_with_four(
    reports: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit, match="4"):
        raise SystemExit(main(["render", *arguments]))
    assert message in capsys.readouterr().err


def test_wrong_settings_end_as_in_pytest(reports: Path) -> None:
    Path("pyproject.toml").write_text("[tool.pytest.ini_options]\nscaling_tolerance = 'none'\n")
    with pytest.raises(SystemExit, match="4"):
        main(["render"])


def test_a_page_shows_only_what_was_accepted_before_its_run(reports: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Baseline] = []
    monkeypatch.setattr(pages.html, "render", lambda record, known: seen.append(known) or "")
    pages.write_run(reports, run_of(2), accepted(*map(run_of, (1, 2, 3))))
    assert [run.run_id for run in seen[0].runs] == [run_of(1).run_id]


def test_several_machines_have_a_page_above_them_which_replaces_no_page_of_the_users(reports: Path) -> None:
    other = reports / "cpu-2xother-11111111"
    (reports / KEY / "runs" / run_of(2).run_id).rename(reports / "moved")
    (other / "runs").mkdir(parents=True)
    moved = run_of(2).model_copy(update={"machine": run_of(2).machine.model_copy(update={"key": other.name})})
    (reports / "moved").rename(other / "runs" / moved.run_id)
    (other / "runs" / moved.run_id / "record.json").write_text(moved.model_dump_json())
    for _ in range(2):
        assert main(["render"]) == 0
        page = (reports / "index.html").read_text()
        assert f'href="{KEY}/index.html"' in page
        assert f'href="{other.name}/index.html"' in page
    assert 'href="../index.html"' in (other / "index.html").read_text()
    (reports / "index.html").write_text("the user's own")
    assert main(["render"]) == 0
    assert (reports / "index.html").read_text() == "the user's own"


def reached(setting: Setting, seed: int) -> float:
    """Seed 2 is .02 better, a second device costs .04, and the higher rate .1."""
    return 0.88 + 0.02 * seed - 0.04 * (setting.world_size == 2) - 0.1 * (setting.lr > 0.1)


def row(shown: str, start: str) -> str:
    """The line of a terminal's table that begins so, with single spaces."""
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    [found] = [line for line in lines if line.startswith(start)]
    return found


def test_a_row_has_mean_and_sd_over_seeds_and_the_mean_curve() -> None:
    shown = terminal.write(document(sweep(reached), [EPOCHS]), 80)
    assert row(shown, "1 32 0.1") == "1 32 0.1 0.910 ± 0.014 1 2 ▃▅█"
    assert row(shown, "2 64 0.2") == "2 64 0.2 0.770 ± 0.014 1 2 ▃▅▇"


def test_several_numbers_of_epochs_are_several_columns() -> None:
    """Nothing in a training depends on how many epochs are to come: the first of three are a training of one."""
    shown = terminal.write(document(sweep(reached, seeds=1), [1, EPOCHS]), 80)
    assert re.search(r"accuracy, 1 epoch +accuracy, 3 epochs", shown)
    assert row(shown, "1 32 0.1") == "1 32 0.1 0.300 0.900 1 1 ▃▅█"


def test_settings_without_nets_are_left_out_and_missing_ones_are_counted() -> None:
    part = sweep(trained=(net(Setting(2, 64, 0.2), 1),), failed=("2 device(s): rank 1: gone [bold]",))
    shown = terminal.write(document(part, [EPOCHS]), 80)
    assert "2 64 0.2" in " ".join(shown.split())
    assert "1 32" not in " ".join(shown.split())
    assert "1 net, each fresh from its seed; 360 test samples, so one changes the accuracy by 0.0028." in shown
    assert "Missing: 7 nets; the same command with this folder as --out trains them." in shown
    assert "failed: 2 device(s): rank 1: gone [bold]" in shown


def test_oversubscribed_seconds_say_so() -> None:
    crowded = sweep(trained=(net(Setting(1, 32, 0.1), 1, oversubscribed=True),))
    assert "1 (oversubscribed)" in terminal.write(document(crowded, [EPOCHS]), 80)


def test_the_page_has_the_table_and_a_curve_for_each_number_of_devices() -> None:
    text = html.write(document(sweep(reached), [EPOCHS]))
    page = Page(text)
    assert "Sweep: ddp, lenet on digits" in text
    assert "0.770 ± 0.014" in page.section("nets")
    assert "Accuracy after 3 epochs" in text
    assert "k = 2, batch 64, learning rate 0.2: 0.770 [0.760, 0.780]" in text, "the lowest and the highest seed"
    assert "torch 2.15.0" in text


def test_a_sweep_without_nets_has_a_page() -> None:
    assert "Missing: 8 nets" in html.write(document(sweep(), [EPOCHS]))
