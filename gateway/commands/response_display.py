# How a command shows what a gateway answers: once, or in a terminal again and again (rich's live view). Knows no
# command and no answer.

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from gateway.commands.admin_client import CommandError, describe_response, request_json, resolve_endpoint
from gateway.commands.output import render_response

INTERVAL_S: Final = 2.0
HEADING_LINES: Final = 3  # heading, blank, columns


def add_interval_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--interval",
        type=_parse_interval,
        default=INTERVAL_S,
        metavar="S",
        help="between two looks (default %(default)g)",
    )


def add_watch_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of a command that may be shown live: `args.watch`, `args.interval`."""
    parser.add_argument("-w", "--watch", action="store_true", help="again and again in a terminal, until Ctrl-C")
    add_interval_argument(parser)


def show_response(
    parser: argparse.ArgumentParser,
    args: argparse.Namespace,
    path: str,
    describe: Callable[[dict[str, Any]], list[str]],
    query: Mapping[str, object] | None = None,
) -> int:
    """A whole command that only asks: the answer in the format that was chosen. Exit codes: 0 shown, 1 can't ask."""
    try:
        place = resolve_endpoint(parser, args)
        answer = request_json(place, path, query)
        text = render_response(answer, args.output, lambda: describe_response(place.url + path, answer, describe))
    except CommandError as error:
        print(error, file=sys.stderr)
        return 1
    if args.watch and args.output == "table" and sys.stdout.isatty():
        watch_response(
            lambda: describe_response(place.url + path, request_json(place, path, query), describe),
            place.url + path,
            args.interval,
            text.splitlines(),
        )
    else:
        sys.stdout.write(text)
    return 0


def watch_response(look: Callable[[], list[str]], heading: str, interval: float, lines: list[str]) -> None:
    """The lines, and every `interval` seconds those of a new look, until Ctrl-C. That a gateway doesn't answer is
    said, and it is asked again.
    """
    problem = ""
    try:
        with Live(console=Console(), screen=True, auto_refresh=False) as live:
            while True:
                top = f"{time.strftime('%H:%M:%S')}  {heading}, every {interval:g} s; Ctrl-C ends"
                live.update(_render_frame(f"{top}   {problem}" if problem else top, lines), refresh=True)
                time.sleep(interval)
                try:
                    lines, problem = look(), ""
                except CommandError as error:
                    problem = f"NOT ANSWERED: {error}"
    except KeyboardInterrupt:
        pass


def _render_frame(heading: str, lines: Sequence[str]) -> Group:
    """Text as it is: in names rich would find its markup."""
    styled = [(heading, ""), ("", ""), *((line, "" if index else "bold") for index, line in enumerate(lines))]
    return Group(*(Text(line, style, no_wrap=True, overflow="crop") for line, style in styled))


def _parse_interval(text: str) -> float:
    seconds = float(text)
    if not 0.2 <= seconds <= 3600:
        raise argparse.ArgumentTypeError("0.2 to 3600 seconds")
    return seconds
