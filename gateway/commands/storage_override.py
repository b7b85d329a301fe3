# `produce-gateway storage pause|open|resume`: an operator's override of storage protection at a running gateway, and at
# all that share its policies. Asks PUT and DELETE /v1/storage/override.

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, Final

from gateway.cli_support.arguments import CommandParser, add_examples
from gateway.commands.admin_client import (
    AdminEndpoint,
    add_endpoint_arguments,
    parse_end,
    render_answer,
    request_json,
    run_command,
)

PATH: Final = "/v1/storage/override"
ACTIONS: Final = ("pause", "open", "resume")
_DESCRIPTIONS: Final = {
    "pause": "Pause all producers for a time, whatever the disks say.",
    "open": "Let all producers in for a time, whatever the disks say, except where a volume is at its hard limit.",
    "resume": "End a pause or an opening before its time.",
}


def main(argv: list[str]) -> int:
    """Exit codes: 0 done, 1 not done, 2 a wrong command line."""
    action = argv[0]
    parser = make_parser(action)
    args = parser.parse_args(argv[1:])

    def send(gateway: AdminEndpoint) -> str:
        if action == "resume":
            answer = request_json(gateway, PATH, method="DELETE")
        else:
            body = {"state": action.upper(), "until": args.until, "reason": args.reason}
            body |= {"force": True} if action == "open" and args.force else {}
            answer = request_json(gateway, PATH, method="PUT", body=body)
        return render_answer(
            gateway.url + PATH, answer, args.output, lambda answer: _describe_result(action, args, answer)
        )

    return run_command(parser, args, send)


def _describe_result(action: str, args: argparse.Namespace, answer: Mapping[str, Any]) -> list[str]:
    if action == "resume":
        return ["storage protection goes by the disks again"]
    what = "paused" if action == "pause" else "let in"
    return [
        f"producers are {what} until {args.until}, or until `produce-gateway storage resume`",
        *(["mode observe: that is only counted, and nobody is held back"] if answer.get("mode") == "observe" else ()),
        *(
            f"except topics of {volume}, which is at its hard limit (--force lets them in as well)"
            for volume in answer.get("still_full", ())
        ),
    ]


def make_parser(action: str) -> CommandParser:
    parser = CommandParser(prog=f"produce-gateway storage {action}", description=_DESCRIPTIONS[action])
    add_endpoint_arguments(parser)
    if action == "resume":
        add_examples(parser, "", "gateway.yaml")
        return parser
    parser.add_argument(
        "--for", dest="until", type=parse_end, required=True, metavar="TIME",
        help="its end: a duration such as 30m, or 2026-11-22T21:00:00Z",
    )  # fmt: skip
    parser.add_argument("--reason", required=True, metavar="TEXT", help="for clients, log and history")
    if action == "open":
        parser.add_argument("--force", action="store_true", help="also where a volume is at its hard limit")
    add_examples(parser, "--for 30m --reason 'a disk is replaced'")
    return parser


def describe_override(override: Mapping[str, Any]) -> str:
    """One in force, as GET /v1/storage has it."""
    forced = " forced" if override["force"] else ""
    since = f" at {override['at']}" if override["at"] else ""
    reason = f": {override['reason']}" if override["reason"] else ""
    return f"{override['state']}{forced} until {override['until']}, by {override['who'] or 'unknown'}{since}{reason}"
