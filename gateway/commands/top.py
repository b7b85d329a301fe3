# `produce-gateway top`: the busiest topics of a running gateway, from GET /v1/top; again and again in a terminal (as
# rich's live view), once where the output goes elsewhere.

from __future__ import annotations

import argparse
import shutil
import sys
from typing import Final

from gateway.cli_support.arguments import CommandParser, add_examples
from gateway.commands import topics
from gateway.commands.admin_client import (
    CommandError,
    add_endpoint_arguments,
    describe_response,
    request_json,
    resolve_endpoint,
)
from gateway.commands.output import render_response
from gateway.commands.response_display import HEADING_LINES, add_interval_argument, watch_response

PATH: Final = "/v1/top"
SORT_ORDERS: Final = ("rate", "rejected", "utilization")


def main(argv: list[str]) -> int:
    """Exit codes: 0 shown, 1 can't ask, 2 a wrong command line."""
    parser = make_parser()
    args = parser.parse_args(argv)
    live = sys.stdout.isatty() and not args.once and args.output == "table"
    try:
        place = resolve_endpoint(parser, args)
        answer = request_json(place, PATH, {"by": args.by, "limit": args.limit or (_rows_that_fit() if live else 20)})
        text = render_response(
            answer, args.output, lambda: describe_response(place.url + PATH, answer, topics.describe_topic_table)
        )
    except CommandError as error:
        print(error, file=sys.stderr)
        return 1
    if live:

        def look() -> list[str]:
            answer = request_json(place, PATH, {"by": args.by, "limit": args.limit or _rows_that_fit()})
            return describe_response(place.url + PATH, answer, topics.describe_topic_table)

        watch_response(look, f"{place.url}  by {args.by}", args.interval, text.splitlines())
    else:
        sys.stdout.write(text)
    return 0


def make_parser() -> CommandParser:
    parser = CommandParser(prog="produce-gateway top", description="The busiest topics of a running gateway.")
    add_endpoint_arguments(parser)
    parser.add_argument("--by", choices=SORT_ORDERS, default="rate", help="the order (default rate)")
    parser.add_argument(
        "--limit", type=_parse_limit, metavar="N", help="so many topics (default: as many as fit, or 20)"
    )
    add_interval_argument(parser)
    parser.add_argument("--once", action="store_true", help="one table, as where the output is no terminal")
    add_examples(parser, "", "gateway.yaml --by rejected", "--once --limit 5 -o json")
    return parser


def _rows_that_fit() -> int:
    return max(1, shutil.get_terminal_size().lines - HEADING_LINES)


def _parse_limit(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 10_000:
        raise argparse.ArgumentTypeError("1 to 10000 topics")
    return number
