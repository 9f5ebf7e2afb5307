"""How every page is made: one jinja2 environment, in which what comes from a record can only ever be text.

Autoescape is on, no template marks anything as safe, and an undefined name is an error. Texts are made fit for a page
when they are written into it: limited in length, and encodable, because a record may hold half of a surrogate pair.
"""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

MAX_TEXT = 4_000  # characters of one text; a stack of every rank is among the longest


@cache
def environment() -> Environment:
    """Return the templates of this package."""
    return Environment(
        loader=PackageLoader("suite.render.html", package_path="."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_fit,
    )


def page(template: str, **content: object) -> str:
    """Return a whole page.

    Args:
        template: a file name in this folder; it extends `base.html.j2`.
        content: the values of its names.
    """
    return environment().get_template(template).render(content)


def macro(name: str, *arguments: object) -> Markup:
    """Return what a macro of `macros.html.j2` makes of these arguments."""
    made = getattr(environment().get_template("macros.html.j2").module, name)(*arguments)
    return Markup(made)  # noqa: S704 - the macro escapes


def _fit(value: object) -> object:
    # Markup was made by a macro or a chart: its texts came through here already.
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    if len(value) <= MAX_TEXT and value.isascii() and "\0" not in value:  # nearly always
        return value
    cut = value if len(value) <= MAX_TEXT else f"{value[:MAX_TEXT]} … (cut here; record.json has it whole)"
    return cut.encode("utf-8", "replace").decode("utf-8").replace("\0", "\N{REPLACEMENT CHARACTER}")
