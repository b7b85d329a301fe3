# The command line's parser, for all commands: a word that it doesn't know is answered with the one that may be meant,
# and --help ends with examples. Knows no command.

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import Final, NoReturn

from gateway.cli_support.suggest import find_nearest_name

_UNKNOWN: Final = re.compile(r"unrecognized arguments: (?:.*? )??(--?[\w-]+)")
_CHOICE: Final = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")


class CommandParser(argparse.ArgumentParser):
    """argparse's, which only says that it doesn't know a word."""

    def error(self, message: str) -> NoReturn:
        super().error(message + self.suggest_word(message))

    def suggest_word(self, message: str) -> str:
        """What is added to that message of argparse's; "" if nothing resembles the word."""
        if found := _UNKNOWN.search(message):
            near = find_nearest_name(found[1], list_long_options(self))
        elif found := _CHOICE.search(message):
            near = find_nearest_name(found[1], re.findall(r"[^',\s]+", found[2]))
        else:
            return ""
        return f"; did you mean {near}?" if near else ""


def list_long_options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Its long options, and those of its actions."""
    for action in parser._actions:
        yield from (each for each in action.option_strings if each.startswith("--"))
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from list_long_options(inner)


def add_examples(parser: argparse.ArgumentParser, *lines: str) -> None:
    """Examples at the end of --help: without the command's name, which the parser has."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    before = f"{parser.epilog}\n\n" if parser.epilog else ""
    parser.epilog = before + "examples:\n" + "\n".join(f"  {parser.prog} {line}".rstrip() for line in lines)
