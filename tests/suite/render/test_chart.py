"""Charts put every value where it belongs, and have their numbers in a table."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.records.record import LARGEST
from suite.render import html, scale
from suite.render.document import Axis, Chart, Document, First, Mark, Point, Rules, Section, Series, Span, Table
from suite.render.document import Drawn as DrawnValue
from suite.render.html import chart, figure
from suite.render.html.chart import Drawn, draw, strips
from tests.support.pages import Page

VALUES = st.floats(-LARGEST, LARGEST)


def of(*series: Series, x: Axis | None = None, y: Axis | None = None, **more: object) -> Chart:
    return Chart("A title", x or Axis("devices"), y or Axis("seconds"), series, **more)  # type: ignore[arg-type]


def drawn(*series: Series, **axes: Axis) -> list[Drawn]:
    return draw(of(*series, **axes))


def line(name: str, *values: float) -> Series:
    return Series(name, tuple(Point(x, y) for x, y in enumerate(values, start=1)))


class TestScale:
    """Axes."""

    @given(st.lists(VALUES, max_size=5), st.booleans())
    def test_every_value_has_a_place_in_order_and_ticks_are_few_and_differ(
        self, values: list[float], log: bool
    ) -> None:
        fitted = scale.fit(values, 0.0, 100.0, log=log)
        places = [fitted(value) for value in sorted(value for value in values if scale.drawable(value, log=log))]
        assert all(0 <= place <= 100 for place in places)
        assert places == sorted(places)
        ticks = [value for value, _ in scale.ticks(fitted)]
        assert 1 <= len(set(ticks)) == len(ticks) <= 8
        assert all(fitted.low <= value <= fitted.high for value in ticks)

    def test_ticks_are_round_and_have_no_more_digits_than_they_need(self) -> None:
        for values, log, texts in (
            ([0.0, 13.4], False, "0 5 10"),
            ([0.97, 0.98], False, "0.970 0.972 0.974 0.976 0.978 0.980"),
            ([1, 100], True, "1 2 5 10 20 50 100"),
            ([1, 1e6], True, "1 10 100 1,000 10,000 100,000 1e+06"),
        ):
            assert [text for _, text in scale.ticks(scale.fit(values, 0, 100, log=log))] == texts.split()

    def test_equal_ratios_have_equal_distances_only_on_a_logarithmic_axis(self) -> None:
        log, linear = (scale.fit([1, 4], 0, 100, log=log) for log in (True, False))
        assert log(2) - log(1) == pytest.approx(log(4) - log(2))
        assert linear(2) - linear(1) != pytest.approx(linear(4) - linear(2))
        assert scale.fit([0.0, 1.0], 0, 100).low == 0.0, "below zero there is nothing to show"


class TestDraw:
    """The places of series."""

    def test_larger_is_higher_and_further_right(self) -> None:
        [series] = drawn(line("a", 1.0, 2.0, 4.0))
        assert [dot.x for dot in series.dots] == sorted(dot.x for dot in series.dots)
        assert [dot.y for dot in series.dots] == sorted((dot.y for dot in series.dots), reverse=True)

    def test_series_differ_in_more_than_colour(self) -> None:
        series = drawn(*(line(f"t{number}", 1.0, 2.0) for number in range(chart.MAX_SERIES)))
        looks = {(one.marker, "second" in one.style) for one in series}
        assert len({one.style for one in series}) == len(looks) == chart.MAX_SERIES

    def test_series_at_one_place_are_drawn_side_by_side_and_a_base_looks_like_its_candidate(self) -> None:
        first, second, base = drawn(line("a", 1.0), line("b", 1.0), Series("base", (Point(1, 1.0),), "base", like="b"))
        assert first.dots[0].x != second.dots[0].x == base.dots[0].x
        assert (base.style, base.marker) == ("s1 base", second.marker)

    def test_intervals_are_whiskers_around_few_points_and_a_band_around_many(self) -> None:
        points = [Point(x, 2.0, 1.0, 3.0) for x in range(chart.BAND_FROM)]
        [many] = drawn(Series("a", tuple(points)))
        [few] = drawn(Series("a", tuple(points[:-1])))
        assert (bool(many.band), bool(few.band)) == (True, False)
        assert all(dot.low is None for dot in many.dots)
        assert all(dot.high < dot.y < dot.low for dot in few.dots if dot.low and dot.high), "pixels count downwards"
        assert all(dot.low for dot in few.dots)

    def test_the_last_points_of_many_have_a_marker_and_the_line_has_all(self) -> None:
        """A page of a thousand runs of 64 cells had 12 MB, nearly all of it markers that no reader could tell apart."""
        [series] = drawn(line("a", *map(float, range(1, 301))))
        assert (len(series.dots), series.line.count("L") + 1) == (chart.MAX_NUMBERS, 300)
        assert series.dots[-1].text.startswith("a, devices 300: ")


class TestFigure:
    """The picture in a page."""

    def test_it_has_a_name_a_description_a_legend_and_a_table(self) -> None:
        point = Point(2, 0.84, 0.81, 0.87, note="4 sessions")
        axes = {"y": Axis("efficiency", form=".2f"), "x": Axis("k", ticks=((2, "two"),))}
        page = Page(figure(of(Series("ddp", (point,)), marks=(Mark(1.5, "torch 2.15"),), description="Why", **axes)))
        assert page.all("svg")[0].attributes["role"] == "img"
        assert (page.all("title")[0].text, page.one("desc").text) == ("A title", "Why")
        assert [element.text.strip() for element in page.all("li")] == ["ddp", "torch 2.15"]
        cells = [element.text for element in page.all("th", "td") if "tbody" in element.ancestors]
        assert cells == ["ddp", "two", "0.84", "[0.81, 0.87]", "4 sessions"]

    def test_values_without_a_place_are_counted(self) -> None:
        text = figure(of(line("a", 1.0, -1.0, 0.0, math.inf), y=Axis("seconds", log=True)))
        assert "3 of the values have no place on this axis; the table has them." in text
        assert text.count("<circle") == 1

    @given(st.lists(st.tuples(VALUES, VALUES, st.none() | VALUES, st.none() | VALUES), max_size=4), st.booleans())
    def test_any_values_of_a_record_can_be_drawn(
        self, values: list[tuple[float, float, float | None, float | None]], log: bool
    ) -> None:
        points = tuple(Point(*value) for value in values)
        text = figure(of(Series("a", points), x=Axis("x", log=log), y=Axis("y", log=log)))
        Page(text)
        assert not re.search(r'(?:d|x\d?|y\d?|transform)="[^"]*(?:nan|inf)', text)


def test_bars_of_a_table_share_one_axis_and_may_run_backwards() -> None:
    first, second, back, nothing = strips([Span(0.0, 10.0), Span(10.0, 15.0), Span(15.0, 10.0), None], (0.0,))
    assert (first.start, first.end) == (first.rules[0], second.start)
    assert first.end is not None
    assert second.end == pytest.approx(first.end + (first.end - first.rules[0]) / 2)
    assert (back.start, back.end) == (second.end, second.start)
    assert nothing == ("nothing", None, None, None, None, first.rules)
    without, _ = strips([Span(0.0, 0.0), Span(1.0, 1.1)], log=True)
    assert without.style == "nothing", "zero has no place on a logarithmic axis"
    table = Table("bars", ("cell", "time"), (("a", DrawnValue((Span(2.0, 1.0),))),), rules=Rules((0.0,)))
    page = html.write(Document("t", First("", "t"), (Section("s", "S", (table,)),)))
    [(left, width)] = re.findall(r'<rect x="([\d.]+)%" width="([\d.]+)%"', page)
    assert float(left) == float(width) > 0, "from 2 back to 1, on an axis from 0"
    assert '<line class="rule" x1="0.0%"' in page
