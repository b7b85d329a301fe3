# `produce-gateway topics`: every topic with its threshold and its traffic, from GET /v1/topics of a running gateway.

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any, Final

from gateway.commands.asking import CannotAsk, add_place, ask, find_place, shown, table
from policies.units import format_rate

PATH: Final = "/v1/topics"
COLUMNS: Final = (
    "TOPIC", "BROKERS", "THRESHOLD", "FROM", "RATE 1 MIN", "USED", "ACCEPTED", "REJECTED", "DELAYED", "WOULD",
)  # fmt: skip
MAX_BROKERS: Final = 6


def main(argv: list[str]) -> int:
    """Exit codes: 0 shown, 1 can't ask, 2 a wrong command line."""
    parser = argparse.ArgumentParser(
        prog="produce-gateway topics", description="All topics of a running gateway: thresholds, rates, what is held."
    )
    add_place(parser)
    args = parser.parse_args(argv)
    try:
        url = find_place(parser, args)
        answer = ask(url, PATH)
        lines = [json.dumps(answer, indent=2)] if args.json else shown(url + PATH, answer, describe)
    except CannotAsk as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(lines))
    return 0


def describe(said: Mapping[str, Any]) -> list[str]:
    """The answer as a table. `USED`: of the threshold, where it is used most."""
    return table(COLUMNS, [_row(topic) for topic in said["topics"]], left=2)


def _row(topic: Mapping[str, Any]) -> list[str]:
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
