# `produce-gateway reload`: has a running gateway read its configuration file again, and says what came of it. Asks POST
# /v1/reload of its admin server. A file that can't be used is exit code 1, with its faults; the gateway goes on.

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

from gateway.cli_support.arguments import CommandParser, add_examples
from gateway.commands.admin_client import (
    CommandError,
    add_endpoint_arguments,
    describe_response,
    request_json,
    resolve_endpoint,
)
from gateway.commands.output import render_response

PATH: Final = "/v1/reload"


def main(argv: list[str]) -> int:
    """Exit codes: 0 taken over, or nothing was new; 1 not; 2 a wrong command line."""
    parser = make_parser()
    args = parser.parse_args(argv)
    try:
        place = resolve_endpoint(parser, args)
        answer = request_json(place, PATH, method="POST", body={})
        text = render_response(
            answer, args.output, lambda: describe_response(place.url + PATH, answer, describe_reload)
        )
    except CommandError as error:
        print(error, file=sys.stderr)
        return 1
    sys.stdout.write(text)
    return 0


def make_parser() -> CommandParser:
    parser = CommandParser(
        prog="produce-gateway reload",
        description="Have a running gateway read its configuration file again, as SIGHUP does.",
    )
    add_endpoint_arguments(parser)
    add_examples(parser, "gateway.yaml", "--url http://gateway-2:9190 --token-file admin.token")
    return parser


def describe_reload(said: Mapping[str, Any]) -> list[str]:
    """The answer as lines."""
    changed, pending = said["last"]["changed"], said["pending"]
    lines = [f"{said['file']}: {said['last']['outcome']}"]
    lines += [f"holds now: {', '.join(changed)}"] if changed else []
    return lines + ([f"takes a restart: {', '.join(pending)}"] if pending else [])
