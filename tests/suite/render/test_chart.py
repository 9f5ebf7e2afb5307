"""Charts put every value where it belongs, whatever it is, and say their numbers in a table."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.render.html import chart, scale
from suite.render.html.chart import Axis, Chart, Mark, Point, Series, Span, figure, layout, strips
from tests.support.pages import Page

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def of(*series: Series, x: Axis | None = None, y: Axis | None = None, **more: object) -> Chart:
    return Chart("A title", x or Axis("devices"), y or Axis("seconds"), series, **more)  # type: ignore[arg-type]


def line(name: str, *values: float) -> Series:
    return Series(name, tuple(Point(x, y) for x, y in enumerate(values, start=1)))


class TestScale:
    """Axes."""

    @given(st.lists(FINITE, max_size=5), st.booleans())
    def test_everything_finite_has_a_place_and_order_is_kept(self, values: list[float], log: bool) -> None:
        fitted = scale.fit(values, 0.0, 100.0, log=log)
        drawn = sorted(value for value in values if scale.drawable(value, log=log))
        places = [fitted(value) for value in drawn]
        assert all(0 <= place <= 100 for place in places)
        assert places == sorted(places)

    @given(st.lists(FINITE, max_size=5), st.booleans())
    def test_ticks_are_few_lie_within_and_differ(self, values: list[float], log: bool) -> None:
        fitted = scale.fit(values, 0.0, 100.0, log=log)
        found = scale.ticks(fitted)
        assert 1 <= len(found) <= 8
        assert all(fitted.low <= value <= fitted.high for value, _ in found)
        assert len({value for value, _ in found}) == len(found)

    def test_ticks_are_round_and_say_no_more_digits_than_they_need(self) -> None:
        assert scale.ticks(scale.fit([0.0, 13.4], 0, 100)) == [(0.0, "0"), (5.0, "5"), (10.0, "10")]
        assert [text for _, text in scale.ticks(scale.fit([0.97, 0.98], 0, 100))] == [
            "0.970",
            "0.972",
            "0.974",
            "0.976",
            "0.978",
            "0.980",
        ]
        assert [text for _, text in scale.ticks(scale.fit([1, 100], 0, 100, log=True))] == [
            "1", "2", "5", "10", "20", "50", "100"
        ]  # fmt: skip

    def test_equal_ratios_take_equal_room_on_a_logarithmic_axis_and_only_there(self) -> None:
        log, linear = (scale.fit([1, 4], 0, 100, log=log) for log in (True, False))
        assert log(2) - log(1) == pytest.approx(log(4) - log(2))
        assert linear(2) - linear(1) != pytest.approx(linear(4) - linear(2))

    def test_an_axis_from_zero_has_nothing_below_it(self) -> None:
        assert scale.fit([0.0, 1.0], 0, 100).low == 0.0
        assert scale.fit([0.1, 1.0], 0, 100).low < 0.1

    def test_zero_has_no_logarithm_and_no_integer_is_too_large_to_ask(self) -> None:
        assert not scale.drawable(0.0, log=True)
        assert not scale.drawable(math.inf, log=False)
        assert not scale.drawable(10**400, log=False)


class TestLayout:
    """Where everything lies."""

    def test_larger_is_higher_and_further_right(self) -> None:
        [series] = layout(of(line("a", 1.0, 2.0, 4.0))).drawn
        assert [dot.x for dot in series.dots] == sorted(dot.x for dot in series.dots)
        assert [dot.y for dot in series.dots] == sorted((dot.y for dot in series.dots), reverse=True)

    def test_an_interval_encloses_its_value(self) -> None:
        [series] = layout(of(Series("a", (Point(1, 2.0, 1.0, 3.0),)))).drawn
        [dot] = series.dots
        assert dot.low is not None
        assert dot.high is not None
        assert dot.high < dot.y < dot.low, "pixels count downwards"

    def test_series_differ_in_more_than_colour(self) -> None:
        many = [line(f"t{number}", 1.0, 2.0) for number in range(chart.MAX_SERIES)]
        drawn = layout(of(*many)).drawn
        assert len({series.style for series in drawn}) == chart.MAX_SERIES
        looks = {(series.marker, "second" in series.style) for series in drawn}
        assert len(looks) == chart.MAX_SERIES, "marker and filling tell them apart without any colour"

    def test_series_at_one_place_stand_beside_each_other(self) -> None:
        first, second = layout(of(line("a", 1.0, 2.0), line("b", 1.0, 2.0))).drawn
        assert first.dots[0].x != second.dots[0].x

    def test_a_base_looks_like_its_candidate(self) -> None:
        base = Series("a, base", (Point(1, 1.0),), kind="base", like="b")
        *_, drawn = layout(of(line("a", 1.0), line("b", 1.0), base)).drawn
        assert drawn.style == "s1 base"
        assert drawn.marker == 1

    def test_many_points_have_a_band_instead_of_whiskers(self) -> None:
        points = [Point(x, 2.0, 1.0, 3.0) for x in range(chart.BAND_FROM)]
        [many] = layout(of(Series("a", tuple(points)))).drawn
        [few] = layout(of(Series("a", tuple(points[:-1])))).drawn
        assert many.band
        assert all(dot.low is None for dot in many.dots)
        assert not few.band
        assert all(dot.low is not None for dot in few.dots)

    def test_what_has_no_place_is_counted(self) -> None:
        drawn = layout(of(line("a", 1.0, -1.0, math.inf), y=Axis("seconds", log=True)))
        assert drawn.left_out == 2
        assert len(drawn.drawn[0].dots) == 1


class TestFigure:
    """What ends in the page."""

    def test_its_numbers_stand_in_a_table(self) -> None:
        point = Point(2, 0.84, 0.81, 0.87, note="4 sessions")
        page = Page(
            figure(of(Series("ddp", (point,)), y=Axis("efficiency", form=".2f"), x=Axis("k", ticks=((2, "two"),))))
        )
        cells = [element.text for element in page.all("th", "td") if "tbody" in element.ancestors]
        assert cells == ["ddp", "two", "0.84", "[0.81, 0.87]", "4 sessions"]

    def test_a_picture_has_a_name_and_a_description(self) -> None:
        page = Page(figure(of(line("a", 1.0, 2.0), description="What it shows")))
        picture = page.all("svg")[0]
        assert picture.attributes["role"] == "img"
        assert page.all("title")[0].text == "A title"
        assert page.one("desc").text == "What it shows"

    def test_a_mark_is_named_beside_the_series(self) -> None:
        page = Page(figure(of(line("a", 1.0, 2.0), marks=(Mark(1.5, "torch 2.15"),))))
        assert [element.text.strip() for element in page.all("li")] == ["a", "torch 2.15"]

    def test_names_are_text_and_of_a_length_that_fits(self) -> None:
        html = figure(of(line("<b>" + "x" * 10_000, 1.0)))
        assert "<b>" not in html
        assert "&lt;b&gt;" in html
        assert len(html) < 10_000

    @given(st.lists(st.tuples(FINITE, FINITE, st.none() | FINITE, st.none() | FINITE), max_size=4), st.booleans())
    def test_any_finite_values_can_be_drawn(
        self, values: list[tuple[float, float, float | None, float | None]], log: bool
    ) -> None:
        points = tuple(Point(*value) for value in values)
        html = figure(of(Series("a", points), x=Axis("x", log=log), y=Axis("y", log=log)))
        Page(html)
        assert not re.search(r'(?:d|x\d?|y\d?|transform)="[^"]*(?:nan|inf)', html)


class TestStrips:
    """Bars in a table's cells."""

    def test_rows_share_one_axis(self) -> None:
        first, second = strips([Span(0.0, 10.0), Span(10.0, 15.0)], (0.0,))
        assert first.at == second.left
        assert second.width == pytest.approx(first.width / 2, abs=0.02)
        assert first.rules == second.rules == (0.0,)

    def test_a_bar_may_run_backwards(self) -> None:
        [strip] = strips([Span(10.0, 5.0)], (0.0,))
        assert strip.at == strip.left
        assert strip.width > 0

    def test_what_has_no_place_draws_nothing(self) -> None:
        strip, _ = strips([Span(0.0, 0.0), Span(1.0, 1.1)], log=True)
        assert strip.style == "nothing"
