"""How every page is made: one jinja2 environment, in which what comes from a record can only ever be text.

Autoescape is on, no template marks anything as safe, and an undefined name is an error. Texts are made fit for a page
when they are written into it: limited in length, and legible, because a record may hold any character.
"""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from suite.render.commands import fits
from suite.render.document import MAX_TEXT
from suite.render.figures import legible, plural


@cache
def environment() -> Environment:
    """Return the templates of this package."""
    environment = Environment(
        loader=PackageLoader("suite.render.html", package_path="."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_fit,
    )
    environment.globals |= {"plural": plural, "fits": fits}
    return environment


def page(template: str, **content: object) -> str:
    """Return a whole page from a template of this folder that extends `base.html.j2`."""
    return environment().get_template(template).render(content)


def macro(name: str, *arguments: object) -> Markup:
    """Return what a macro of `macros.html.j2` makes of these arguments."""
    made = getattr(environment().get_template("macros.html.j2").module, name)(*arguments)
    return Markup(made)  # noqa: S704 - the macro escapes


def _fit(value: object) -> object:
    # Markup was made by a macro or a chart: its texts came through here already.
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    cut = value if len(value) <= MAX_TEXT else f"{value[:MAX_TEXT]} … (cut here; record.json has it whole)"
    return legible(cut)
