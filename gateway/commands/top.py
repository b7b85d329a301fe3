# `produce-gateway top`: the busiest topics of a running gateway, from GET /v1/top; again and again in a terminal (as
# rich's live view), once where the output goes elsewhere.

from __future__ import annotations

import argparse
import shutil
import sys
from typing import Final

from gateway.cli_support.arguments import Parser, add_examples
from gateway.commands import topics
from gateway.commands.asking import CannotAsk, add_place, ask, find_place, shown
from gateway.commands.output import rendered
from gateway.commands.showing import FRAME_LINES, add_interval, follow

PATH: Final = "/v1/top"
ORDERS: Final = ("rate", "rejected", "utilization")


def main(argv: list[str]) -> int:
    """Exit codes: 0 shown, 1 can't ask, 2 a wrong command line."""
    parser = make_parser()
    args = parser.parse_args(argv)
    live = sys.stdout.isatty() and not args.once and args.output == "table"
    try:
        place = find_place(parser, args)
        answer = ask(place, PATH, {"by": args.by, "limit": args.limit or (_rows() if live else 20)})
        text = rendered(answer, args.output, lambda: shown(place.url + PATH, answer, topics.describe))
    except CannotAsk as error:
        print(error, file=sys.stderr)
        return 1
    if live:

        def look() -> list[str]:
            answer = ask(place, PATH, {"by": args.by, "limit": args.limit or _rows()})
            return shown(place.url + PATH, answer, topics.describe)

        follow(look, f"{place.url}  by {args.by}", args.interval, text.splitlines())
    else:
        sys.stdout.write(text)
    return 0


def make_parser() -> Parser:
    parser = Parser(prog="produce-gateway top", description="The busiest topics of a running gateway.")
    add_place(parser)
    parser.add_argument("--by", choices=ORDERS, default="rate", help="the order (default rate)")
    parser.add_argument("--limit", type=_positive, metavar="N", help="so many topics (default: as many as fit, or 20)")
    add_interval(parser)
    parser.add_argument("--once", action="store_true", help="one table, as where the output is no terminal")
    add_examples(parser, "", "gateway.yaml --by rejected", "--once --limit 5 -o json")
    return parser


def _rows() -> int:
    return max(1, shutil.get_terminal_size().lines - FRAME_LINES)


def _positive(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 10_000:
        raise argparse.ArgumentTypeError("1 to 10000 topics")
    return number
