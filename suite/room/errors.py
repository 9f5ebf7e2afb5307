"""What an exception says, also where it cannot say it. Standard library only."""

from __future__ import annotations


def text_of(error: BaseException) -> str:
    """Return an exception's text; one that raises while it is made is named instead."""
    try:
        return str(error)
    except BaseException as its_own:  # a user's __str__ may raise anything
        return f"its text cannot be made, for its __str__ or __repr__ raises {type(its_own).__name__}"


def described(error: BaseException) -> str:
    """Return an exception's type and text: 'ValueError: no such file'."""
    return f"{type(error).__name__}: {text_of(error)}"
