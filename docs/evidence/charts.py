"""What a chart costs with a library and with our own templates: seconds to import, to draw one, and its bytes.

    pip install matplotlib pygal
    python -m docs.evidence.charts

The chart is an efficiency over four world sizes with three series and the ideal line; intervals where the library can
draw them on a logarithmic axis. Figures: the shortest of several imports in fresh processes, the mean of twelve charts.
"""

from __future__ import annotations

import io
import subprocess
import sys
import time
from collections.abc import Callable

SIZES = (1, 2, 4, 8)
SERIES = {"scratch": (1.0, 0.93, 0.84, 0.71), "ddp": (1.0, 0.95, 0.89, 0.80), "fsdp": (1.0, 0.90, 0.78, 0.66)}
HALF = 0.03  # of every interval
CHARTS = 12
STARTS = 8


def with_matplotlib() -> str:
    """Draw the chart with matplotlib's SVG backend, text as text."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5, 3.2))
    axes.set_xscale("log", base=2)
    axes.plot(SIZES, [1.0] * len(SIZES), linestyle=":", label="ideal")
    for name, values in SERIES.items():
        axes.errorbar(SIZES, values, yerr=HALF, marker="o", label=name)
    axes.legend()
    out = io.StringIO()
    figure.savefig(out, format="svg")
    pyplot.close(figure)
    return out.getvalue()


def with_pygal() -> str:
    """Draw the chart with pygal, without intervals: it cannot draw them on a logarithmic axis of x."""
    import pygal

    chart = pygal.XY(logarithmic=False, js=[])
    for name, values in {"ideal": (1.0,) * len(SIZES), **SERIES}.items():
        chart.add(name, list(zip(SIZES, values, strict=True)))
    return str(chart.render(is_unicode=True))


def with_our_own() -> str:
    """Draw the chart with `suite.render.html.chart`."""
    from suite.render.html.chart import Axis, Chart, Point, Series, figure

    ideal = Series("ideal", tuple(Point(size, 1.0) for size in SIZES), kind="ideal")
    measured = [
        Series(name, tuple(Point(k, v, v - HALF, v + HALF) for k, v in zip(SIZES, values, strict=True)))
        for name, values in SERIES.items()
    ]
    x = Axis("devices", log=True, ticks=tuple((size, str(size)) for size in SIZES))
    return str(figure(Chart("Efficiency", x, Axis("efficiency", form=".2f"), (ideal, *measured))))


DRAWN: dict[str, tuple[str, Callable[[], str]]] = {
    "matplotlib": ("matplotlib.pyplot", with_matplotlib),
    "pygal": ("pygal", with_pygal),
    "ours": ("suite.render.html.chart", with_our_own),
}


def import_s(module: str) -> float:
    """Return the shortest time that an import takes in a fresh process, less that of a process without it."""

    def start_s(code: str) -> float:
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - begun

    return min(start_s(f"import {module}") for _ in range(STARTS)) - min(start_s("") for _ in range(STARTS))


def main() -> None:
    """Print the table; a library that is not installed is left out."""
    print("| | import, ms | a chart, ms | bytes of SVG |\n|---|---|---|---|")
    for name, (module, draw) in DRAWN.items():
        try:
            text = draw()  # the first one loads and compiles
        except ImportError as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        begun = time.perf_counter()
        for _ in range(CHARTS):
            draw()
        chart_ms = (time.perf_counter() - begun) / CHARTS * 1e3
        svg = text[text.index("<svg") : text.rindex("</svg>") + len("</svg>")]
        print(f"| {name} | {import_s(module) * 1e3:.0f} | {chart_ms:.1f} | {len(svg.encode()):,} |")


if __name__ == "__main__":
    main()
