"""How every page is made: one jinja2 environment, in which what comes from a record can only ever be text.

Autoescape is on, no template marks anything as safe, and an undefined name is an error. Texts are made fit for a page
when they are written into it: limited in length, and legible, because a record may hold any character.

A page stays one that a browser opens at once, although a matrix of ten thousand cells is a valid record. Callers sort
what matters most to the front; the first rows of a table are in view, more are behind a fold, the others are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import islice
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from suite.render.commands import fits
from suite.render.figures import legible, plural

MAX_TEXT = 4_000  # characters of one text; a stack of every rank is among the longest
SHOWN = 200
FOLDED = 2_000
CHARACTERS = 400_000  # of one table: long texts must not make up for fewer rows


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


class Rows(NamedTuple):
    """The rows of a table: those in view, those behind a fold, and how many others there are."""

    shown: list[Sequence[str]]
    folded: list[Sequence[str]]
    dropped: int


def bounded(rows: Iterable[Sequence[str]], total: int, *, shown: int = SHOWN, folded: int = FOLDED) -> Rows:
    """Return the rows of a table that a page can hold.

    Args:
        rows: the texts of each, what matters most first; no more are made than are kept.
        total: how many there are.
        shown: at most so many are in view.
        folded: at most so many behind the fold.
    """
    left, kept = CHARACTERS, []
    for row in islice(rows, shown + folded):
        left -= sum(min(len(text), MAX_TEXT) for text in row if not isinstance(text, Markup))
        if left < 0:
            break
        kept.append(row)
    return Rows(kept[:shown], kept[shown:], total - len(kept))
