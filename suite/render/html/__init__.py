"""Documents as self-contained HTML pages. docs/report.md is the tour of one."""

from suite.render.html.page import render, write

__all__ = ["render", "write"]
