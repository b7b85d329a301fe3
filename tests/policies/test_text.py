# one_line: what it lets through, and that nothing of a stranger's gets past it.

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.text import ERROR_CHARS, NAME_CHARS, one_line


@given(st.text() | st.text(st.characters()).map(lambda text: text * 60))
def test_any_text_is_one_printable_line(text: str) -> None:
    line = one_line(text)
    assert line.isprintable()  # "" is, and neither a line end nor an escape is
    assert len(line) <= NAME_CHARS


@given(st.binary(max_size=1000))
def test_any_bytes_are_the_text_that_they_hold(data: bytes) -> None:
    assert one_line(data) == one_line(data.decode("utf-8", "replace"))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("clicks", "clicks"),
        ("Zürich 東京 ✓", "Zürich 東京 ✓"),
        ("x\n2026-01-01 ERROR gateway: \x1b[31mred", "x 2026-01-01 ERROR gateway:  [31mred"),
        ("a\r\tb\x00\x7f\x85\u2028c", "a  b    c"),
        ("invoice\u202efdp.exe\u2066\u200b", "invoice fdp.exe"),  # bidirectional overrides and what has no width
        ("half a \ud800 character", "half a   character"),
        ("  \n ", ""),
    ],
)
def test_characters_that_a_terminal_would_obey_are_blank(text: str, line: str) -> None:
    assert one_line(text) == line


def test_a_text_is_cut_only_where_it_is_too_long() -> None:
    assert one_line("x" * 100) == "x" * 100
    assert one_line("x" * 101) == "x" * 99 + "…"
    assert one_line("ü" * 101) == one_line(("ü" * 101).encode()) == "ü" * 99 + "…"
    assert one_line("x" * 201, ERROR_CHARS) == "x" * 199 + "…"


def test_a_text_that_is_no_utf_8_is_told_as_such() -> None:
    assert one_line(b"\xffclicks") == "\ufffdclicks"
