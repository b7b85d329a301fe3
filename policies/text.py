# Foreign text (topics, principals, client ids, another system's errors), made fit for a log line, an error text and a
# terminal: the one function for it, which knows neither the author of the text nor its destination. And patterns with
# wildcards, as people write them.

from __future__ import annotations

import re
from typing import Final

NAME_CHARS: Final = 100
ERROR_CHARS: Final = 200  # an error says more than a name


def one_line(text: str | bytes, limit: int = NAME_CHARS) -> str:
    """Printable, without line ends, control, format and bidirectional characters, and at most `limit` characters.

    Bytes are read as UTF-8; invalid ones become U+FFFD. Only the beginning is looked at: the cost is bounded, however
    long the text is. `limit` is at least 1.
    """
    if isinstance(text, bytes):
        text = text[: 4 * (limit + 1)].decode("utf-8", "replace")  # no character has more than four bytes
    head = text[: limit + 1]
    clean = head if head.isprintable() else "".join(char if char.isprintable() else " " for char in head)
    return clean[: limit - 1] + "…" if len(clean) > limit else clean.strip()


def compile_wildcards(*patterns: str) -> re.Pattern[str]:
    """What matches a text that is one of these, `*` standing for any characters: nothing where there is no pattern."""
    texts = ("".join(".*" if each == "*" else re.escape(each) for each in pattern) for pattern in patterns)
    return re.compile("|".join(f"(?:{text})" for text in texts) or r"(?!)", re.DOTALL)
