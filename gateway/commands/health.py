# `produce-gateway health`: whether a gateway lives, or with --ready whether clients should be sent to it, as an exit
# code. For health checks of containers, whose images need no other HTTP client for it. Judges nothing itself. Asks the
# health port; with --url the admin port is possible as well, which answers the same as long as it has time.

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from typing import Final

from gateway.cli_support.arguments import CommandParser, add_examples
from gateway.commands.admin_client import (
    AdminEndpoint,
    CommandError,
    add_endpoint_arguments,
    load_config,
    resolve_endpoint,
)
from gateway.commands.output import replace_unprintable
from gateway.health import LIVE_PATH, READY_PATH
from gateway.http.http_client import HttpError, fetch_url

DEFAULT_URL: Final = "http://127.0.0.1:9295"
TIMEOUT_S: Final = 5.0
MAX_RESPONSE_BYTES: Final = 2**20


def main(argv: list[str]) -> int:
    """Exit codes: 0 yes, 1 no, or no response, 2 a wrong command line."""
    parser = make_parser()
    args = parser.parse_args(argv)
    try:
        if args.config and not args.url:
            place = AdminEndpoint(load_config(args.config).health_url)  # a port without TLS and tokens
        else:
            args.url = args.url or DEFAULT_URL
            place = resolve_endpoint(parser, args)
        url = place.url.rstrip("/") + (READY_PATH if args.ready else LIVE_PATH)
        answer = fetch_url(url, timeout_s=args.timeout, max_bytes=MAX_RESPONSE_BYTES, trust=place.tls_context)
    except CommandError as error:
        print(error, file=sys.stderr)
        return 1
    except HttpError as error:
        print(f"{url}: can't be reached: {error}", file=sys.stderr)
        return 1
    text = replace_unprintable(answer.body.decode("utf-8", "replace").strip())
    print(text, file=sys.stdout if answer.status == 200 else sys.stderr)
    return 0 if answer.status == 200 else 1


def make_parser() -> CommandParser:
    parser = CommandParser(
        prog="produce-gateway health",
        description="Report as an exit code whether a gateway is alive: for health checks.",
    )
    add_endpoint_arguments(parser, formats=False, server="health port, or admin server", url=DEFAULT_URL)
    parser.add_argument("--ready", action="store_true", help="report whether it is ready for clients (/readyz)")
    parser.add_argument(
        "--timeout",
        type=_parse_timeout,
        default=TIMEOUT_S,
        metavar="S",
        help="seconds for the whole response (default %(default)g)",
    )
    add_examples(parser, "/etc/produce-gateway/gateway.yaml", "--url http://gw1:9295 --ready")
    return parser


def _parse_timeout(text: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) <= 3600:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a valid number of seconds: more than 0, at most 3600")
