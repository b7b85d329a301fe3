# `produce-gateway status | clients | connections | peers | history | explain | topics | top | reload`: each asks one
# path of a running gateway's REST API and prints its response. Judges nothing.

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, get_args

from gateway.cli_support.arguments import CommandParser, add_examples
from gateway.commands.admin_client import add_endpoint_arguments
from gateway.commands.policies import HISTORY_PATH, describe_history
from gateway.commands.response_display import (
    HEADING_LINES,
    add_interval_argument,
    add_watch_arguments,
    show_response,
    watches,
)
from gateway.commands.views import state
from gateway.commands.views.explain import describe_explanation
from gateway.commands.views.topics import describe_topic_table
from policies.definitions.policy_values import PolicyKind

ROWS_OF_TOP: Final = 20  # where the output isn't a terminal


class CommandView(NamedTuple):
    """One command. `options`: its own, each with what argparse takes for it; they go into the query by their names."""

    path: str
    text: str
    describe: Callable[[Mapping[str, Any]], list[str]]
    options: Mapping[str, Mapping[str, Any]]
    examples: tuple[str, ...]
    method: str = "GET"


def main(name: str, argv: list[str]) -> int:
    """Exit codes: 0 shown, 1 not, 2 a wrong command line."""
    parser, view = make_parser(name), VIEWS[name]
    args = parser.parse_args(argv)
    names = [option.lstrip("-").replace("-", "_") for option in view.options]

    def make_query() -> dict[str, Any]:
        query = {each: None if getattr(args, each) is False else getattr(args, each) for each in names}
        if name == "top" and query["limit"] is None:
            query["limit"] = _rows_that_fit() if watches(args) else ROWS_OF_TOP
        return query

    return show_response(parser, args, view.path, view.describe, make_query, method=view.method)


def make_parser(name: str) -> CommandParser:
    view = VIEWS[name]
    parser = CommandParser(prog=f"produce-gateway {name}", description=view.text)
    add_endpoint_arguments(parser)
    if name == "top":
        add_interval_argument(parser)
        parser.add_argument(
            "--once", action="store_false", dest="watch", help="one table, as where the output is no terminal"
        )
    elif view.method == "GET":
        add_watch_arguments(parser)
    for option, how in view.options.items():
        parser.add_argument(option, **how)
    add_examples(parser, *view.examples)
    return parser


def _rows_that_fit() -> int:
    return max(1, shutil.get_terminal_size().lines - HEADING_LINES)


def _limit_option(most: int, default: int | None, text: str = "rows at most (default %(default)s)") -> dict[str, Any]:
    def read(given: str) -> int:
        number = int(given)
        if not 1 <= number <= most:
            raise argparse.ArgumentTypeError(f"1 to {most}")
        return number

    return {"type": read, "default": default, "metavar": "N", "help": text}


def _order_option(*orders: str) -> dict[str, Any]:
    return {"choices": orders, "default": orders[0], "help": "the order (default %(default)s)"}


_PRINCIPAL: Final = {"metavar": "TYPE:NAME", "help": "only of this one, for example User:alice"}
_CLIENT_ID: Final = {"metavar": "ID", "help": "only with this client id"}

VIEWS: Final[Mapping[str, CommandView]] = {
    "status": CommandView(
        "/v1/status",
        "A running gateway in short: whether it is ready, what it goes on without, traffic, storage, peers.",
        state.describe_status,
        {},
        ("", "gateway.yaml", "--url http://gw1:9190 -o json"),
    ),
    "clients": CommandView(
        "/v1/clients",
        "Clients that produce to a running gateway, or were held back lately, with the latest reason.",
        state.describe_clients,
        {
            "--by": _order_option("rate", "rejected", "delayed"),
            "--limit": _limit_option(10_000, 20),
            "--user": {"metavar": "NAME", "help": "only this user"},
            "--client-id": _CLIENT_ID,
        },
        ("", "gateway.yaml --by rejected", "--user alice -o yaml"),
    ),
    "connections": CommandView(
        "/v1/connections",
        "Clients' connections of a running gateway: who, from where, with which software, muted for how long and why."
        " The longest muted come first, then the oldest.",
        state.describe_connections,
        {
            "--limit": _limit_option(1000, 50),
            "--principal": _PRINCIPAL,
            "--client-id": _CLIENT_ID,
            "--address": {"metavar": "IP", "help": "only from this address"},
            "--broker": {"type": int, "metavar": "N", "help": "only those joined to this broker"},
            "--muted": {"action": "store_true", "help": "only those that wait"},
        },
        ("", "gateway.yaml --muted", "--principal User:alice -o json --token-file admin.token"),
    ),
    "peers": CommandView(
        "/v1/peers",
        "The other gateways with which a running gateway shares limits, as it heard them last.",
        state.describe_peers,
        {},
        ("", "gateway.yaml -o yaml"),
    ),
    "history": CommandView(
        HISTORY_PATH,
        "Changes of policies at run time with author, time and old value, the newest first.",
        describe_history,
        {
            "--limit": _limit_option(1000, 20),
            "--kind": {"choices": get_args(PolicyKind), "help": "only of this kind"},
            "--name": {"metavar": "NAME", "help": "only of the thing with this name"},
        },
        ("", "gateway.yaml --kind topic --name clicks", "--limit 1000 -o json"),
    ),
    "explain": CommandView(
        "/v1/explain",
        "Why a client's data for a topic is or isn't held back, in one sentence; then every rule that looks at it, the"
        " one that binds first, and the latest rejections and delays.",
        describe_explanation,
        {
            "--topic": {"required": True, "help": "the one that the client produces to"},
            "--user": {
                "help": "default: a client that has not authenticated, and the bytes held back of any principal; '':"
                " clients whose principal is unknown"
            },
            "--client-id": {"help": "default: a client that gives none, and the bytes held back of any client id"},
            "--broker": {"type": int, "metavar": "N", "help": "default: all that lead a partition of the topic"},
        },
        ("--topic clicks", "gateway.yaml --topic clicks --user alice --client-id app --broker 1"),
    ),
    "topics": CommandView(
        "/v1/topics",
        "All topics of a running gateway: thresholds, rates, held bytes.",
        describe_topic_table,
        {},
        ("", "gateway.yaml", "--url http://gw1:9190 -o json"),
    ),
    "top": CommandView(
        "/v1/top",
        "The busiest topics of a running gateway; in a terminal, drawn again and again.",
        describe_topic_table,
        {
            "--by": _order_option("rate", "rejected", "utilization"),
            "--limit": _limit_option(10_000, None, "topics at most (default: as many as fit, or 20)"),
        },
        ("", "gateway.yaml --by rejected", "--once --limit 5 -o json"),
    ),
    "reload": CommandView(
        "/v1/reload",
        "Have a running gateway read its configuration file again, as SIGHUP does. Exit code 1, with the faults: the"
        " file can't be used, and the gateway goes on with the earlier configuration.",
        state.describe_reload,
        {},
        ("gateway.yaml", "--url http://gateway-2:9190 --token-file admin.token"),
        method="POST",
    ),
}
