# Tables of Markdown. Knows nothing of what is in them.

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """With a line break at its end. Cells are Markdown; they may have no line break."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def escape_cell(text: str) -> str:
    """Text as part of a cell, none of it markup."""
    plain = html.escape(" ".join(text.split()), quote=False)
    return "".join(f"\\{char}" if char in "\\`*_{}[]|" else char for char in plain)


def code_cell(text: str) -> str:
    """Text as code in a cell."""
    return f"`{text.replace('|', chr(92) + '|')}`" if text else ""
