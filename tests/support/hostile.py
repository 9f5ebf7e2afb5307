"""Texts that a stranger could put into a file, an option or a variable."""

from __future__ import annotations

from hypothesis import strategies as st

# Markup, control characters, paths, shells, names of options, and text that no file can hold.
CHOSEN = (
    "",
    " ",
    "<img src=x onerror=alert(1)>",
    "<b onclick=x>",
    "[x](javascript:x)",
    "@name",
    "\x1b]0;title\x07\x1b[2J",
    "two\nlines\r",
    "\u202egnp",
    "\udce9",
    "\x00",
    "../../../etc/passwd",
    "/dev/zero",
    "$(touch ran)",
    "`touch ran`; touch ran",
    "--help",
    "x" * 5_000,
    "9" * 5_000,
    "²",
    "ref:",
    ":",
    ",",
)
TEXTS = st.one_of(st.sampled_from(CHOSEN), st.text(max_size=20))
