# What `produce-gateway topics` and `produce-gateway top` print: topics with their thresholds and traffic, as a table.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.commands.output import format_table
from policies.units import format_rate

TOPIC_COLUMNS: Final = (
    "TOPIC", "BROKERS", "THRESHOLD", "FROM", "RATE 1 MIN", "USED", "ACCEPTED", "REJECTED", "DELAYED", "WOULD",
)  # fmt: skip
MAX_BROKERS: Final = 6


def describe_topic_table(response: Mapping[str, Any]) -> list[str]:
    """The answer as a table. `USED`: of the threshold, where it is used most. All numbers are of all gateways together;
    `ELSEWHERE`: the part of the one-minute rate that other gateways bring, where they bring any.
    """
    columns, rows = list(TOPIC_COLUMNS), [_topic_row(topic) for topic in response["topics"]]
    if any(topic["elsewhere"] for topic in response["topics"]):
        columns.append("ELSEWHERE")
        for row, topic in zip(rows, response["topics"], strict=True):
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
