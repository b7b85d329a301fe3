# How a command shows a response: once, or in a terminal again and again (rich's live view). Knows no command and no
# response.

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from gateway.commands.admin_client import (
    AdminEndpoint,
    CommandError,
    describe_response,
    render_answer,
    request_json,
    run_command,
)

INTERVAL_S: Final = 2.0
HEADING_LINES: Final = 3  # heading, blank, columns


def add_interval_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--interval",
        type=_parse_interval,
        default=INTERVAL_S,
        metavar="S",
        help="seconds between two requests (default %(default)g)",
    )


def add_watch_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of a command that may be shown live: `args.watch`, `args.interval`."""
    parser.add_argument(
        "-w", "--watch", action="store_true", help="show it again and again in a terminal, until Ctrl-C"
    )
    add_interval_argument(parser)


def watches(args: argparse.Namespace) -> bool:
    """Whether the command is shown live."""
    return getattr(args, "watch", False) and args.output == "table" and sys.stdout.isatty()


def show_response(
    parser: argparse.ArgumentParser,
    args: argparse.Namespace,
    path: str,
    describe: Callable[[dict[str, Any]], list[str]],
    make_query: Callable[[], Mapping[str, object]] = dict,
    method: str = "GET",
) -> int:
    """A whole command that shows one response: in the chosen format, or live. Exit codes: 0 shown, 1 not."""

    def ask(place: AdminEndpoint) -> dict[str, Any]:
        return request_json(place, path, make_query(), method=method, body=None if method == "GET" else {})

    def show(place: AdminEndpoint) -> str:
        where = place.url + path
        text = render_answer(where, ask(place), args.output, describe)
        if not watches(args):
            return text
        watch_response(lambda: describe_response(where, ask(place), describe), where, args.interval, text.splitlines())
        return ""

    return run_command(parser, args, show)


def watch_response(look: Callable[[], list[str]], heading: str, interval: float, lines: list[str]) -> None:
    """Show the lines, and every `interval` seconds those of another look, until Ctrl-C. A gateway that doesn't answer
    is asked again; the heading has the error meanwhile.
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
