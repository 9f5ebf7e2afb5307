"""How every page is made: one jinja2 environment, in which what comes from a record can only ever be text.

Autoescape is on, no template marks anything as safe, and an undefined name is an error. What is written into a page is
made fit for it on the way: no longer than a reader would read, and encodable, because a record may hold ten million
letters in a reason, or half of a surrogate pair.
"""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

MAX_TEXT = 4_000  # characters of one text; a stack of every rank is among the longest


@cache
def environment() -> Environment:
    """The templates of this package."""
    return Environment(
        loader=PackageLoader("suite.render.html", package_path="."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_fit,
    )


def page(template: str, **content: object) -> str:
    """A whole page.

    Args:
        template: its file name, beside this module; it extends `base.html.j2`.
        content: what its names stand for.
    """
    return environment().get_template(template).render(content)


def _fit(value: object) -> object:
    # Markup is what a macro or a chart made: its texts came through here already.
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    if len(value) <= MAX_TEXT and value.isascii() and "\0" not in value:  # nearly always
        return value
    cut = value if len(value) <= MAX_TEXT else f"{value[:MAX_TEXT]} … (cut here; record.json has it whole)"
    return cut.encode("utf-8", "replace").decode("utf-8").replace("\0", "\N{REPLACEMENT CHARACTER}")
