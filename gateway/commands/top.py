# `produce-gateway top`: the busiest topics of a running gateway, from GET /v1/top; again and again in a terminal, once
# where the output goes elsewhere.

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from typing import Final

from gateway.commands import topics
from gateway.commands.asking import CannotAsk, add_place, ask, find_place, shown

PATH: Final = "/v1/top"
ORDERS: Final = ("rate", "rejected", "utilization")
_OPEN, _CLOSE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # the terminal's other screen, without a cursor
_HOME, _TO_END_OF_LINE, _TO_END = "\x1b[H", "\x1b[K", "\x1b[J"
_FRAME_LINES: Final = 3  # heading, blank, columns


def main(argv: list[str]) -> int:
    """Exit codes: 0 shown, 1 can't ask, 2 a wrong command line."""
    parser = argparse.ArgumentParser(prog="produce-gateway top", description="The busiest topics of a running gateway.")
    add_place(parser)
    parser.add_argument("--by", choices=ORDERS, default="rate", help="the order (default rate)")
    parser.add_argument("--limit", type=_positive, metavar="N", help="so many topics (default what fits, or 20)")
    parser.add_argument("--interval", type=_seconds, default=2.0, metavar="S", help="between two looks (default 2)")
    parser.add_argument("--once", action="store_true", help="one table, as where the output is no terminal")
    args = parser.parse_args(argv)
    live = sys.stdout.isatty() and not (args.once or args.json)
    try:
        url = find_place(parser, args)
        answer = ask(url, PATH, {"by": args.by, "limit": args.limit or (_rows() if live else 20)})
        lines = [json.dumps(answer, indent=2)] if args.json else shown(url + PATH, answer, topics.describe)
    except CannotAsk as error:
        print(error, file=sys.stderr)
        return 1
    if live:
        _follow(url, args.by, args.limit, args.interval, lines)
    else:
        print("\n".join(lines))
    return 0


def _follow(url: str, by: str, limit: int | None, interval: float, lines: list[str]) -> None:
    """Until Ctrl-C. A gateway that doesn't answer for a while is said so, and asked again."""
    sys.stdout.write(_OPEN)
    problem = ""
    try:
        while True:
            heading = f"{time.strftime('%H:%M:%S')}  {url}  by {by}, every {interval:g} s; Ctrl-C ends"
            _draw([f"{heading}   {problem}" if problem else heading, "", *lines])
            time.sleep(interval)
            try:
                answer = ask(url, PATH, {"by": by, "limit": limit or _rows()})
                lines, problem = shown(url + PATH, answer, topics.describe), ""
            except CannotAsk as error:
                problem = f"NOT ANSWERED: {error}"
    except KeyboardInterrupt:
        pass
    finally:
        sys.stdout.write(_CLOSE)
        sys.stdout.flush()


def _draw(lines: list[str]) -> None:
    columns, rows = shutil.get_terminal_size()
    fit = [line[:columns] + _TO_END_OF_LINE for line in lines[:rows]]
    sys.stdout.write(_HOME + "\n".join(fit) + _TO_END)
    sys.stdout.flush()


def _rows() -> int:
    return max(1, shutil.get_terminal_size().lines - _FRAME_LINES)


def _positive(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 10_000:
        raise argparse.ArgumentTypeError("1 to 10000 topics")
    return number


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0.2 <= seconds <= 3600:
        raise argparse.ArgumentTypeError("0.2 to 3600 seconds")
    return seconds
