# The command line's parser, for all commands: a word that it doesn't know is answered with the one that may be meant,
# and --help ends with examples. Knows no command.

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final, NoReturn

from gateway.name_hints import find_nearest_name

_UNKNOWN: Final = re.compile(r"unrecognized arguments: (?:.*? )??(--?[\w-]+)")
_CHOICE: Final = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")


class CommandParser(argparse.ArgumentParser):
    """argparse's, which only says that it doesn't know a word."""

    _words: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._words = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        super().error(self.describe_error(message))

    def describe_error(self, message: str) -> str:
        """That message of argparse's, with the word that may be meant; where an option is missing, it may be there, but
        misspelt.
        """
        if message.startswith("the following arguments are required") and (slip := self._find_slip()):
            message = f"unrecognized arguments: {slip}"
        if found := _UNKNOWN.search(message):
            near = find_nearest_name(found[1], list_long_options(self))
        elif found := _CHOICE.search(message):
            near = find_nearest_name(found[1], re.findall(r"[^',\s]+", found[2]))
        else:
            near = None
        return f"{message}; did you mean {near}?" if near else message

    def _find_slip(self) -> str | None:
        """The first word that is no option, nor the beginning of one, but resembles one."""
        known = list(list_long_options(self))
        names = (word.partition("=")[0] for word in self._words if word.startswith("--") and word != "--")
        slips = (name for name in names if not any(each.startswith(name) for each in known))
        return next((name for name in slips if find_nearest_name(name, known)), None)


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
