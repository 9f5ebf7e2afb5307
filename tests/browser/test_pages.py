"""Our pages in a real browser, opened as files."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.browser import Watched

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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_first_screen_has_verdict_pictures_answers_and_a_command_in_800_pixels(
    scheme: str, watched: Watched, pages: dict[str, Path]
) -> None:
    watched.page.set_viewport_size({"width": 1280, "height": 800})
    watched.page.emulate_media(color_scheme=scheme)
    watched.open(pages["report"])
    assert "FAIL ddp-lenet-strong-2 is 20.0 %" in " ".join(watched.page.locator("h1").inner_text().split())
    left, right = (watched.page.locator(f".first figure.{kind}").bounding_box() for kind in ("intervals", "stack"))
    assert left["x"] + left["width"] <= right["x"], "side by side"
    for part in (".first figure.intervals", ".first figure.stack", "dl.answers", "dl.answers code"):
        box = watched.page.locator(part).first.bounding_box()
        assert box["y"] + box["height"] <= 800, part


def test_on_a_phone_the_verdict_and_what_was_asked_come_first(watched: Watched, pages: dict[str, Path]) -> None:
    watched.page.set_viewport_size({"width": 400, "height": 800})
    watched.open(pages["report"])
    upper, lower = (watched.page.locator(f".first figure.{kind}").bounding_box() for kind in ("intervals", "stack"))
    assert upper["y"] + upper["height"] <= min(800, lower["y"])


def test_the_name_of_a_cell_leads_to_all_about_it_and_opens_it(watched: Watched, pages: dict[str, Path]) -> None:
    watched.open(pages["report"])
    name = watched.page.locator("#cells tbody a").first
    anchor = name.get_attribute("href")
    about = watched.page.locator(f"[id='{unquote(anchor[1:])}']")
    assert not about.is_visible()
    name.click()
    assert about.is_visible()
    assert "why it is FAIL" in about.inner_text()


def test_sections_are_folded_unless_they_have_something_to_say(watched: Watched, pages: dict[str, Path]) -> None:
    watched.open(pages["report"])
    opened = {
        name: watched.page.locator(f"#{name} > details").evaluate("(fold) => fold.open")
        for name in ("rules", "counters", "memory", "samples")
    }
    assert opened == {"rules": True, "counters": True, "memory": False, "samples": False}


def test_the_history_is_filtered_without_a_script(watched: Watched, pages: dict[str, Path]) -> None:
    watched.open(pages["index"])
    shown = watched.page.locator("#cells figure:visible figcaption")
    every = shown.all_inner_texts()
    watched.page.get_by_role("group", name="trainer").get_by_label("scratch").check()
    some = shown.all_inner_texts()
    assert some == [name for name in every if "scratch" in name]
    assert 0 < len(some) < len(every)
    watched.page.get_by_role("group", name="k").get_by_label("4").check()
    assert shown.all_inner_texts() == [name for name in some if "4 devices" in name]
    watched.page.get_by_role("group", name="trainer").get_by_label("all").check()
    watched.page.get_by_role("group", name="k").get_by_label("all").check()
    assert shown.all_inner_texts() == every


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("name", NAMES)
def test_axe_finds_no_violation(
    name: str, width: int, scheme: str, watched: Watched, pages: dict[str, Path], axe: str
) -> None:
    watched.page.set_viewport_size({"width": width, "height": 800})
    watched.page.emulate_media(color_scheme=scheme)
    watched.open(pages[name])
    watched.page.evaluate(UNFOLD)
    watched.page.evaluate(axe)
    found = watched.page.evaluate("axe.run().then((result) => result.violations)")
    assert [(each["id"], each["help"], each["nodes"][0]["html"][:200]) for each in found] == []


@pytest.mark.parametrize("name", ["index", "report"])
def test_a_thousand_runs_and_two_hundred_cells_open_at_once(name: str, watched: Watched, many: dict[str, Path]) -> None:
    """A second, and three on a machine that is busy; the limit of the page's size is that of any machine."""
    assert many[name].stat().st_size < 8_000_000
    watched.open(many[name])
    watched.page.wait_for_function("performance.getEntriesByType('navigation')[0].loadEventEnd > 0")
    loaded_ms = watched.page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    print(f"{name}: {loaded_ms:.0f} ms, {many[name].stat().st_size / 1e6:.1f} MB")
    assert loaded_ms < 3_000


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
