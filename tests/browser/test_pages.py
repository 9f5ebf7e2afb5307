"""Our pages in a real browser, opened as files."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.watched import Watched

NAMES = ("report", "index", "compare", "sweep")
CONTRAST = (Path(__file__).parent / "contrast.js").read_text()
UNFOLD = "document.querySelectorAll('details').forEach((one) => { one.open = true })"
SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"

BAD = """<!doctype html><title>bad</title><body style="background: #ffffff">
<p style="width: 700px; color: #999999">pale and wide</p>
<img src="other.png" alt=""><script>console.error("loud")</script>
"""


@pytest.mark.parametrize("name", NAMES)
def test_a_page_makes_no_request_and_writes_nothing_to_the_console(
    name: str, watched: Watched, pages: dict[str, Path]
) -> None:
    watched.open(pages[name])
    watched.page.evaluate(UNFOLD)
    assert watched.outside(pages[name]) == []
    assert watched.complaints == []


@pytest.mark.parametrize("name", NAMES)
def test_a_page_does_not_scroll_sideways_on_a_phone(name: str, watched: Watched, pages: dict[str, Path]) -> None:
    watched.page.set_viewport_size({"width": 360, "height": 740})
    watched.open(pages[name])
    assert watched.page.evaluate(SIDEWAYS) <= 0
    watched.page.evaluate(UNFOLD)
    assert watched.page.evaluate(SIDEWAYS) <= 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", NAMES)
def test_all_text_has_enough_contrast_in_both_themes(
    name: str, scheme: str, watched: Watched, pages: dict[str, Path]
) -> None:
    watched.page.emulate_media(color_scheme=scheme)
    watched.open(pages[name])
    watched.page.evaluate(UNFOLD)
    ground = watched.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    assert watched.page.evaluate(CONTRAST) == []


def test_a_bad_page_fails_these_checks(watched: Watched, browser: object, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text(BAD)
    watched.page.set_viewport_size({"width": 360, "height": 740})
    watched.open(bad)
    assert watched.outside(bad) == [(tmp_path / "other.png").as_uri()]
    assert "error: loud" in watched.complaints
    assert watched.page.evaluate(SIDEWAYS) > 0
    assert watched.page.evaluate(CONTRAST) == ["P rgb(153, 153, 153) on rgb(255, 255, 255)"]


@pytest.mark.parametrize("name", NAMES)
def test_every_link_has_a_target(name: str, watched: Watched, pages: dict[str, Path]) -> None:
    watched.open(pages[name])
    links = set(watched.page.evaluate("[...document.querySelectorAll('a')].map((a) => a.href)"))
    for link in links:
        address = urlsplit(link)
        target = Path(unquote(address.path))
        assert target.is_file(), link
        if address.fragment:
            assert watched.page.evaluate("(id) => document.getElementById(id) !== null", unquote(address.fragment)), (
                link
            )
        elif target.suffix == ".html":
            watched.page.goto(link)
            assert watched.page.locator("h1").inner_text()
            watched.open(pages[name])


@pytest.mark.parametrize("name", NAMES)
def test_the_first_tab_stop_is_a_link_to_the_content(name: str, watched: Watched, pages: dict[str, Path]) -> None:
    watched.open(pages[name])
    watched.page.keyboard.press("Tab")
    assert watched.page.evaluate("document.activeElement.textContent") == "Skip to the content"
    box = watched.page.locator("a.skip").bounding_box()
    assert box["x"] >= 0, "it shows itself when it has the focus"
    watched.page.keyboard.press("Enter")
    assert watched.page.evaluate("document.activeElement.tagName") == "MAIN"


def test_a_fold_opens_by_keyboard(watched: Watched, pages: dict[str, Path]) -> None:
    watched.open(pages["report"])
    summary = watched.page.locator("#samples summary").first
    summary.focus()
    watched.page.keyboard.press("Enter")
    assert watched.page.locator("#samples details").first.evaluate("(fold) => fold.open")


def test_the_report_begins_with_what_failed(watched: Watched, pages: dict[str, Path]) -> None:
    watched.open(pages["report"])
    assert watched.page.locator("h1").inner_text().startswith("Scaling: 1 FAIL, 1 ERROR")
    assert "FAIL" in watched.page.locator("#verdicts tbody tr").first.inner_text()
    first = watched.page.locator("dl.answers dd").first
    assert first.inner_text().startswith("FAIL: ddp-lenet-strong-2")
    assert watched.page.locator("dl.steps").bounding_box()["y"] < 900, "what to type is in view without scrolling"


def test_the_history_names_its_runs_and_the_comparison_both_of_its(watched: Watched, pages: dict[str, Path]) -> None:
    watched.open(pages["index"])
    assert watched.page.locator("a[href$='report.html']").count() == 2
    watched.open(pages["compare"])
    text = watched.page.locator("body").inner_text()
    assert "20260101T000000Z-a" in text
    assert "20260102T000000Z-b" in text


@pytest.mark.parametrize("name", NAMES)
def test_a_printed_page_is_black_on_white_without_navigation(
    name: str, watched: Watched, pages: dict[str, Path]
) -> None:
    watched.page.emulate_media(color_scheme="dark", media="print")
    watched.open(pages[name])
    assert watched.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not watched.page.locator("nav").first.is_visible()
    assert watched.page.evaluate(CONTRAST) == []
    assert watched.page.pdf().startswith(b"%PDF")
