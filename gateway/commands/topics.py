# `produce-gateway topics`: every topic with its threshold and its traffic, from GET /v1/topics of a running gateway.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.cli_support.arguments import CommandParser, add_examples
from gateway.commands.admin_client import add_endpoint_arguments
from gateway.commands.output import format_table
from gateway.commands.response_display import add_watch_arguments, show_response
from policies.units import format_rate

PATH: Final = "/v1/topics"
TOPIC_COLUMNS: Final = (
    "TOPIC", "BROKERS", "THRESHOLD", "FROM", "RATE 1 MIN", "USED", "ACCEPTED", "REJECTED", "DELAYED", "WOULD",
)  # fmt: skip
MAX_BROKERS: Final = 6


def main(argv: list[str]) -> int:
    """Exit codes: 0 shown, 1 can't ask, 2 a wrong command line."""
    parser = make_parser()
    return show_response(parser, parser.parse_args(argv), PATH, describe_topic_table)


def make_parser() -> CommandParser:
    parser = CommandParser(
        prog="produce-gateway topics", description="All topics of a running gateway: thresholds, rates, held bytes."
    )
    add_endpoint_arguments(parser)
    add_watch_arguments(parser)
    add_examples(parser, "", "gateway.yaml", "--url http://gw1:9190 -o json")
    return parser


def describe_topic_table(said: Mapping[str, Any]) -> list[str]:
    """The answer as a table. `USED`: of the threshold, where it is used most. All numbers are of all gateways together;
    `ELSEWHERE`: the part of the one-minute rate that other gateways bring, where they bring any.
    """
    columns, rows = list(TOPIC_COLUMNS), [_topic_row(topic) for topic in said["topics"]]
    if any(topic["elsewhere"] for topic in said["topics"]):
        columns.append("ELSEWHERE")
        for row, topic in zip(rows, said["topics"], strict=True):
            row.append(format_rate(topic["elsewhere"]) if topic["elsewhere"] else "-")
    return format_table(columns, rows, left=2)


def _topic_row(topic: Mapping[str, Any]) -> list[str]:
    brokers = [str(broker) for broker in topic["brokers"]]
    some = ",".join(brokers[:MAX_BROKERS]) + (f",+{len(brokers) - MAX_BROKERS}" if len(brokers) > MAX_BROKERS else "")
    limited = topic["threshold"] is not None
    return [
        topic["topic"],
        some or "-",
        format_rate(topic["threshold"]) if limited else "-",
        topic["origin"] or "-",
        format_rate(topic["rate"]),
        (topic["utilization_text"] if limited else "-") + ("!" if topic["over"] else ""),
        *(
            "-" if not topic[name] else format_rate(topic[name])
            for name in ("accepted", "rejected", "delayed", "would")
        ),
    ]
