# `produce-gateway status | clients | connections | peers | history`: what a running gateway is doing, each from one
# path of its REST API. Judges nothing.

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from gateway.cli_support.arguments import CommandParser, add_examples
from gateway.commands.admin_client import add_endpoint_arguments
from gateway.commands.output import format_pairs, format_table
from gateway.commands.policies import HISTORY_PATH, describe_history
from gateway.commands.response_display import add_watch_arguments, show_response
from policies.units import format_rate

FLOW_KINDS: Final = ("accepted", "rejected", "delayed", "would")
CLIENT_COLUMNS: Final = (
    "PRINCIPAL", "CLIENT ID", "ACCEPTED", "REJECTED", "DELAYED", "WOULD", "HELD BACK LAST", "AGO",
)  # fmt: skip
CONNECTION_COLUMNS: Final = (
    "PEER", "BROKER", "PRINCIPAL", "CLIENT ID", "SOFTWARE", "AGE", "IDLE", "IN FLIGHT", "MUTED", "WHY",
)  # fmt: skip
PEER_COLUMNS: Final = ("GATEWAY", "WORKERS", "SINCE", "HEARD", "EVERY", "STATE")


class _CommandView(NamedTuple):
    """One command. `options`: its own, each with what argparse takes for it; they go into the query by their names."""

    path: str
    text: str
    describe: Callable[[Mapping[str, Any]], list[str]]
    options: Mapping[str, Mapping[str, Any]]
    examples: tuple[str, ...]


def main(name: str, argv: list[str]) -> int:
    """Exit codes: 0 shown, 1 can't ask, 2 a wrong command line."""
    parser, view = make_parser(name), VIEWS[name]
    args = parser.parse_args(argv)
    names = [option.lstrip("-").replace("-", "_") for option in view.options]
    query = {each: _query_value(getattr(args, each)) for each in names}
    return show_response(parser, args, view.path, view.describe, query)


def make_parser(name: str) -> CommandParser:
    view = VIEWS[name]
    parser = CommandParser(prog=f"produce-gateway {name}", description=view.text)
    add_endpoint_arguments(parser)
    add_watch_arguments(parser)
    for option, how in view.options.items():
        parser.add_argument(option, **how)
    add_examples(parser, *view.examples)
    return parser


def _query_value(value: Any) -> Any:
    """As a query has it; None: left out."""
    return "true" if value is True else None if value is False else value


# --- what is shown ----------------------------------------------------------------------------------------------------


def describe_status(said: Mapping[str, Any]) -> list[str]:
    """The answer as lines."""
    flow, storage, workers = said["flow"], said["storage"], said["workers"]
    peers, up_s = said["peers"], (said["at_ms"] - said["since_ms"]) / 1000
    lines = {
        "gateway": f"{said['gateway']}, version {said['version']}, {said['hot_path']}, up {_age_text(up_s)}",
        "ready": "yes" if said["ready"] else "NO: " + "; ".join(said["problems"]),
        "lacking": "; ".join(said["lacking"]) or "nothing",
        "upstream": said["upstream"],
        "workers": f"{workers['connected']} of {workers['configured']}",
        "connections": f"{said['connections']:,}",
        "mode": said["mode"],
        "accepted": format_rate(flow["accepted"]),
        "rejected": format_rate(flow["rejected"]),
        "delayed": format_rate(flow["delayed"]),
        "would": f"{format_rate(flow['would'])} would be held back if what is observed were enforced",
        "storage": ": ".join(filter(None, (f"{storage['state']}, factor {storage['factor']:.3g}", storage["why"]))),
        "policies": f"version {said['policies_version']}",
        "config": _config_text(said["config"]),
        "peers": _peers_text(peers, said["elsewhere"]),
    }
    return format_pairs(lines)


def _config_text(said: Mapping[str, Any]) -> str:
    last, pending = said["last"], said["pending"]
    text = said["file"] or "from standard input"
    if last is not None:
        text += f", read again: {last['outcome']}"
        text += ": " + "; ".join(last["problems"]) if last["problems"] else ""
    return text + (f"; a restart is needed for {', '.join(pending)}" if pending else "")


def _peers_text(living: int | None, elsewhere: float) -> str:
    if living is None:
        return "limits hold for this gateway alone"
    return f"{living}, which accept {format_rate(elsewhere)}" if living else "0"


def describe_clients(said: Mapping[str, Any]) -> list[str]:
    """The answer as lines."""
    if not said["clients"]:
        return ["no client has produced lately"]
    rows = [_client_row(each, said["at_ms"]) for each in said["clients"]]
    columns = list(CLIENT_COLUMNS)
    if any(each["others"] for each in said["clients"]):
        columns.append("ALSO AT")
        for row, each in zip(rows, said["clients"], strict=True):
            row.append(", ".join(sorted(each["others"])) or "-")
    lines = format_table(columns, rows, left=2)
    return [*lines, *_more_line(len(said["clients"]), said["total"], "clients")]


def _client_row(each: Mapping[str, Any], now_ms: int) -> list[str]:
    flow, held = each["flow"], each["held"]
    rates = ["-" if not flow[name] else format_rate(flow[name]) for name in FLOW_KINDS]
    if held is None:
        return [each["principal"], each["client_id"] or "-", *rates, "-", "-"]
    place = "" if held["broker"] is None else f" on broker {held['broker']}"
    what = f"{held['outcome'].replace('_', ' ')} {held['topic']}{place}: {held['reason']}"
    ago = _age_text(max(0, now_ms - held["last_ms"]) / 1000)
    return [each["principal"], each["client_id"] or "-", *rates, what, ago]


def describe_connections(said: Mapping[str, Any]) -> list[str]:
    """The answer as lines."""
    shown = said["connections"]
    rows = [
        [
            each["peer"],
            "-" if each["broker"] is None else str(each["broker"]),
            each["principal"],
            each["client_id"] or "-",
            each["software"] or "-",
            _age_text(each["age_s"]),
            _age_text(each["idle_s"]),
            str(each["in_flight"]),
            f"{each['muted_s']:.1f} s" if each["muted_s"] else "-",
            each["why"] or "-",
        ]
        for each in shown
    ]
    lines = (
        format_table(CONNECTION_COLUMNS, rows, left=5)
        if rows
        else ["no such connection" if said["total"] else "nobody is connected"]
    )
    if said["missing"]:
        lines.append(f"{said['missing']} workers did not answer in time: theirs are missing")
    return [*lines, *_more_line(len(shown), said["matched"], "connections")]


def describe_peers(said: Mapping[str, Any]) -> list[str]:
    """The answer as lines."""
    if not said["enabled"]:
        return ["limits hold for this gateway alone: the configuration switches the exchange off"]
    rows = [
        [
            each["gateway"],
            str(each["workers"]),
            _age_text(each["since_s"]),
            f"{each['heard_s']:.1f} s",
            f"{each['cycle_s']:g} s",
            "lives" if each["living"] else "silent",
        ]
        for each in said["peers"]
    ]
    lines = format_table(PEER_COLUMNS, rows) if rows else ["no other gateway"]
    trip = "" if said["round_trip_s"] is None else f", round trip {said['round_trip_s'] * 1000:.0f} ms"
    state = f"topic {said['topic']}: {'heard' if said['up'] else 'NOT HEARD'}{trip}"
    return [*lines, "", state, *([f"problem: {said['problem']}"] if said["problem"] else [])]


def _more_line(shown: int, all_of_them: int, what: str) -> list[str]:
    return [f"… and {all_of_them - shown:,} more {what}: --limit"] if all_of_them > shown else []


def _age_text(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} d"


def _limit_parser(most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        number = int(text)
        if not 1 <= number <= most:
            raise argparse.ArgumentTypeError(f"1 to {most}")
        return number

    return read


_PRINCIPAL: Final = {"metavar": "TYPE:NAME", "help": "only of this one, for example User:alice"}
_CLIENT_ID: Final = {"metavar": "ID", "help": "only with this client id"}

VIEWS: Final[Mapping[str, _CommandView]] = {
    "status": _CommandView(
        "/v1/status",
        "A running gateway in short: whether it is ready, what it goes on without, traffic, storage, peers.",
        describe_status,
        {},
        ("", "gateway.yaml", "--url http://gw1:9190 -o json"),
    ),
    "clients": _CommandView(
        "/v1/clients",
        "Clients that produce to a running gateway, or were held back lately, with the latest reason.",
        describe_clients,
        {
            "--by": {"choices": ("rate", "rejected", "delayed"), "default": "rate", "help": "the order (default rate)"},
            "--limit": {
                "type": _limit_parser(10_000),
                "default": 20,
                "metavar": "N",
                "help": "so many (default %(default)s)",
            },
            "--user": {"metavar": "NAME", "help": "only this user"},
            "--client-id": _CLIENT_ID,
        },
        ("", "gateway.yaml --by rejected", "--user alice -o yaml"),
    ),
    "connections": _CommandView(
        "/v1/connections",
        "Clients' connections of a running gateway: who, from where, with which software, muted for how long and why."
        " The longest muted come first, then the oldest.",
        describe_connections,
        {
            "--limit": {
                "type": _limit_parser(1000),
                "default": 50,
                "metavar": "N",
                "help": "so many (default %(default)s)",
            },
            "--principal": _PRINCIPAL,
            "--client-id": _CLIENT_ID,
            "--address": {"metavar": "IP", "help": "only from this address"},
            "--broker": {"type": int, "metavar": "N", "help": "only those joined to this broker"},
            "--muted": {"action": "store_true", "help": "only those that wait"},
        },
        ("", "gateway.yaml --muted", "--principal User:alice -o json --token-file admin.token"),
    ),
    "peers": _CommandView(
        "/v1/peers",
        "The other gateways with which a running gateway shares limits, as it heard them last.",
        describe_peers,
        {},
        ("", "gateway.yaml -o yaml"),
    ),
    "history": _CommandView(
        HISTORY_PATH,
        "Changes of policies at run time with author, time and old value, the newest first.",
        describe_history,
        {
            "--limit": {
                "type": _limit_parser(1000),
                "default": 20,
                "metavar": "N",
                "help": "so many (default %(default)s)",
            },
            "--kind": {"metavar": "KIND", "help": "only of this kind: broker, topic, quota, group, tenant, namespace"},
            "--name": {"metavar": "NAME", "help": "only of the thing with this name"},
        },
        ("", "gateway.yaml --kind topic --name clicks", "--limit 1000 -o json"),
    ),
}
