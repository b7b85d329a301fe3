# `produce-gateway storage`: what a running gateway knows of the cluster's disks and does about it, for people. Asks GET
# /v1/storage of its admin server, whose answer `--json` prints as it is. Knows no source and judges nothing.

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any, Final

from gateway.commands import asking
from policies.units import format_size

PATH: Final = "/v1/storage"
_COLUMNS: Final = ("BROKER", "VOLUME", "TOTAL", "FREE", "FREE %", "SOFT AT", "HARD AT", "FACTOR")


def main(argv: list[str]) -> int:
    """Exit codes: 0 shown, 1 can't ask, 2 a wrong command line."""
    parser = argparse.ArgumentParser(
        prog="produce-gateway storage",
        description="Show the volumes that a running gateway looks at, their limits, and the factor in force.",
    )
    asking.add_place(parser)
    args = parser.parse_args(argv)
    try:
        place = asking.find_place(parser, args)
        status = asking.ask(place, PATH)
        lines = [] if args.json else asking.shown(place, status, describe)
    except asking.CannotAsk as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(status, indent=2) if args.json else "\n".join(lines))
    return 0


def describe(status: Mapping[str, Any]) -> list[str]:
    """The answer as lines."""
    if not status["enabled"]:
        return ["storage protection is off: the configuration has no section storage, or its check_interval is PT0S"]
    observe = ", mode observe: nothing is held back" if status["mode"] == "observe" else ""
    age = "never seen" if status["age_s"] is None else f"{_time(status['age_s'])} old"
    lines = [
        *_table(status["brokers"]),
        f"factor      {status['factor']:.3g}  {status['state']} ({status['origin']}, {age}{observe})",
    ]
    if status["why"]:
        lines.append(f"reason      {status['why']}")
    if status["problem"]:
        lines.append(f"problem     {status['problem']}")
    if status["soft_limit_without_effect"]:
        lines.append("problem     the soft limit has no effect: there is no produce limit that could be lowered")
    if (then := status["next"]) is not None:
        lines.append(
            f"then        {then['factor']:.3g}  {then['state']} ({then['origin']}) in {_time(then['in_s'])},"
            " unless the disks are seen again"
        )
    connected = "" if status["connected"] else ", not connected"
    lines.append(f"source      {status['source']}{connected}")
    every = _time(status["check_interval_s"])
    return [*lines, f"next check  in {_time(status['next_check_s'])}, every {every}"]


def _table(brokers: list[Mapping[str, Any]]) -> list[str]:
    rows: list[tuple[str, ...]] = []
    for broker in brokers:
        number = str(broker["id"])
        for volume in broker["volumes"]:
            total, free = volume["total_bytes"], volume["available_bytes"]
            percent = f"{100 * free / total:.1f}" if total > 0 else "?"
            soft, hard = (_limit(volume[f"{name}_limit_bytes"]) for name in ("soft", "hard"))
            rows.append(
                (
                    number,
                    volume["name"],
                    format_size(total),
                    format_size(free),
                    percent,
                    soft,
                    hard,
                    f"{volume['factor']:.3g}",
                )
            )
        rows += [(number, log_dir, "offline", *[""] * 5) for log_dir in broker["offline"]]
        if broker["unknown"]:
            rows.append((number, f"snapshot {broker['unknown']}", *[""] * 6))
    return [*asking.table(_COLUMNS, rows, left=2), ""] if rows else []


def _limit(free: float | None) -> str:
    return "-" if free is None else format_size(free)


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
