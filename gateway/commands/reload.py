# `produce-gateway reload`: has a running gateway read its configuration file again, and says what came of it. Asks POST
# /v1/reload of its admin server. A file that can't be used is exit code 1, with its faults; the gateway goes on.

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

from gateway.cli_support.arguments import Parser, add_examples
from gateway.commands.asking import CannotAsk, add_place, ask, find_place, shown
from gateway.commands.output import rendered

PATH: Final = "/v1/reload"


def main(argv: list[str]) -> int:
    """Exit codes: 0 taken over, or nothing was new; 1 not; 2 a wrong command line."""
    parser = make_parser()
    args = parser.parse_args(argv)
    try:
        place = find_place(parser, args)
        answer = ask(place, PATH, method="POST", body={})
        text = rendered(answer, args.output, lambda: shown(place.url + PATH, answer, describe))
    except CannotAsk as error:
        print(error, file=sys.stderr)
        return 1
    sys.stdout.write(text)
    return 0


def make_parser() -> Parser:
    parser = Parser(
        prog="produce-gateway reload",
        description="Have a running gateway read its configuration file again, as SIGHUP does.",
    )
    add_place(parser)
    add_examples(parser, "gateway.yaml", "--url http://gateway-2:9190 --token-file admin.token")
    return parser


def describe(said: Mapping[str, Any]) -> list[str]:
    """The answer as lines."""
    changed, pending = said["last"]["changed"], said["pending"]
    lines = [f"{said['file']}: {said['last']['outcome']}"]
    lines += [f"holds now: {', '.join(changed)}"] if changed else []
    return lines + ([f"takes a restart: {', '.join(pending)}"] if pending else [])
