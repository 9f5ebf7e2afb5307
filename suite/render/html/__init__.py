"""A record as one self-contained HTML page. docs/report.md is the tour of it."""

from suite.render.html.report import render

__all__ = ["render"]
