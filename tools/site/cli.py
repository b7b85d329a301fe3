# The reference of the commands: what each prints for --help.

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from typing import Final

from gateway import cli
from gateway.audit import cli as audit

PAGE_HEAD: Final = """\
# Every command

Made of the program: what each command prints for `--help`. [Commands](../commands.md) says what they are for.
"""
TERMINAL_WIDTH: Final = "100"
_NO_OPTIONS: Final = ("schema", "version", "help")


def list_commands() -> list[tuple[str, ...]]:
    """The words of each command that has a help of its own; () is the program."""
    own = [name for name in cli._command_names() if name not in _NO_OPTIONS]
    return [(), *((name,) for name in own), *(("audit", name) for name in audit.COMMANDS)]


def capture_help(words: tuple[str, ...]) -> str:
    """What `produce-gateway WORDS --help` prints.

    Raises:
        ValueError: it fails.
    """
    said = io.StringIO()
    with _fixed_width(), contextlib.redirect_stdout(said):
        try:
            code: object = cli.main([*words, "--help"])
        except SystemExit as end:
            code = end.code
    if code not in (0, None):
        raise ValueError(f"{' '.join(words)} --help ends with {code}")
    return said.getvalue().strip()


@contextlib.contextmanager
def _fixed_width() -> Iterator[None]:
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = TERMINAL_WIDTH
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


def make_page() -> str:
    """The page, in Markdown."""
    parts = [PAGE_HEAD]
    for words in list_commands():
        parts.append(f"## {' '.join(('produce-gateway', *words))}\n\n```text\n{capture_help(words)}\n```\n")
    return "\n".join(parts)
