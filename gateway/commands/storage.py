# `produce-gateway storage`: what a running gateway knows of the cluster's disks and does about it, for people. Asks GET
# /v1/storage of its admin server, Knows no source and judges nothing.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.cli_support.arguments import CommandParser, add_examples
from gateway.commands import storage_override
from gateway.commands.admin_client import add_endpoint_arguments
from gateway.commands.output import format_table
from gateway.commands.response_display import add_watch_arguments, show_response
from policies.units import format_duration, format_rate, format_size

MAX_NAMED: Final = 5  # topics of each volume; volumes
MAX_WRITERS: Final = 3  # topics, and principals
SOON_S: Final = 86_400.0
PATH: Final = "/v1/storage"
_COLUMNS: Final = ("BROKER", "VOLUME", "TOTAL", "FREE", "FREE %", "SOFT AT", "HARD AT", "FACTOR")

_UNKNOWN_REASONS: Final = {
    "partial": "log dir that its agent can't look into",
    "new": "it has just joined: not described yet",
}


def main(argv: list[str]) -> int:
    """Exit codes: 0 shown or done, 1 not, 2 a wrong command line."""
    if argv[:1] and argv[0] in storage_override.ACTIONS:
        return storage_override.main(argv)
    parser = make_parser()
    return show_response(parser, parser.parse_args(argv), PATH, describe_storage)


def make_parser() -> CommandParser:
    parser = CommandParser(
        prog="produce-gateway storage",
        description="Show the volumes that a running gateway observes, their limits, and the factor in force."
        " `storage pause`, `storage open` and `storage resume` override it for a time.",
    )
    add_endpoint_arguments(parser)
    add_watch_arguments(parser)
    add_examples(parser, "", "gateway.yaml -o yaml", "pause --for 30m --reason 'a disk is replaced'", "resume")
    return parser


def describe_storage(status: Mapping[str, Any]) -> list[str]:
    """The answer as lines."""
    if not status["enabled"]:
        return ["storage protection is off: the configuration has no section storage, or its check_interval is PT0S"]
    observe = ", mode observe: nothing is held back" if status["mode"] == "observe" else ""
    age = "never seen" if status["age_s"] is None else f"{format_duration(status['age_s'])} old"
    lines = [
        *_volume_table(status["brokers"]),
        f"factor      {status['factor']:.3g}  {status['state']} ({status['origin']}, {age}{observe})",
    ]
    if status["why"]:
        lines.append(f"reason      {status['why']}")
    if (override := status.get("override")) is not None:
        lines.append(f"override    {storage_override.describe_override(override)}")
    lines += _affected_lines(status)
    lines += _forecast_lines(status["brokers"])
    lines += _headroom_lines(status["brokers"])
    if status["problem"]:
        lines.append(f"problem     {status['problem']}")
    if status["throttle_without_effect"]:
        lines.append("problem     a factor between 0 and 1 has no effect: there is no produce limit to be lowered")
    if (then := status["next"]) is not None:
        unless = "" if status["origin"] == "operator" else ", unless the disks are seen again"
        when = f"in {format_duration(then['in_s'])}{unless}"
        lines.append(f"then        {then['factor']:.3g}  {then['state']} ({then['origin']}) {when}")
    connected = "" if status["connected"] else ", not connected"
    lines.append(f"source      {status['source']}{connected}")
    every = format_duration(status["check_interval_s"])
    return [*lines, f"next check  in {format_duration(status['next_check_s'])}, every {every}"]


def _affected_lines(status: Mapping[str, Any]) -> list[str]:
    """The topics that are held, by volume."""
    if status["scope"] == "cluster":
        return []
    if status["affected"] is None:
        return ["affected    all topics"] if status["factor"] < 1 else []
    lines = []
    for each in status["affected"]:
        names, more = each["topics"][:MAX_NAMED], each["topics_count"] - MAX_NAMED
        text = ", ".join(names) + (f" and {more:,} more" if more > 0 else "") or "none"
        lines.append(f"affected    {each['factor']:.3g}  {each['state']} by {each['by']}: {text}")
    return lines or ["affected    no topic"]


def _forecast_lines(brokers: list[Mapping[str, Any]]) -> list[str]:
    """Of the volumes that reach a limit within a day, the soonest first."""
    soon = []
    for broker in brokers:
        for volume in broker["volumes"]:
            if (forecast := volume.get("forecast")) is None:
                continue
            times = [(name, forecast[f"{name}_limit_in_s"]) for name in ("soft", "hard")]
            ahead = [(name, seconds) for name, seconds in times if seconds]
            if ahead and min(seconds for _, seconds in ahead) <= SOON_S:
                soon.append((max(seconds for _, seconds in ahead), broker["id"], volume, ahead))
    return [
        f"forecast    broker {number} {volume['name']}: fills by {format_rate(volume['forecast']['fill_bytes_per_s'])},"
        + ",".join(f" {name} limit in {format_duration(seconds)}" for name, seconds in ahead)
        + _writers_text(volume)
        for _, number, volume, ahead in sorted(soon, key=lambda each: each[0])[:MAX_NAMED]
    ]


def _writers_text(volume: Mapping[str, Any]) -> str:
    found = [
        ", ".join(f"{each['name']} {format_rate(each['bytes_per_s'])}" for each in volume[name][:MAX_WRITERS])
        for name in ("topics", "principals")
    ]
    return "".join(f"; {text}" for text in found if text)


def _headroom_lines(brokers: list[Mapping[str, Any]]) -> list[str]:
    short = [
        (broker["id"], volume["name"], volume["headroom"])
        for broker in brokers
        for volume in broker["volumes"]
        if (volume.get("headroom") or {}).get("short")
    ]
    return [
        f"problem     broker {number} {name}: {format_size(room['bytes'])} behind the hard limit, less than the"
        f" {format_size(room['needed_bytes'])} that producers may write there before the next check"
        for number, name, room in short[:MAX_NAMED]
    ]


def _volume_table(brokers: list[Mapping[str, Any]]) -> list[str]:
    rows: list[tuple[str, ...]] = []
    for broker in brokers:
        number = str(broker["id"]) + (" (left)" if broker.get("left") else "")
        for volume in broker["volumes"]:
            total, free = volume["total_bytes"], volume["available_bytes"]
            percent = f"{100 * free / total:.1f}" if total > 0 else "?"
            soft, hard = (_limit_text(volume[f"{name}_limit_bytes"]) for name in ("soft", "hard"))
            sizes = format_size(total), format_size(free), percent, soft, hard
            rows.append((number, volume["name"], *sizes, f"{volume['factor']:.3g}"))
        rows += [(number, log_dir, "offline", *[""] * 5) for log_dir in broker["offline"]]
        if unknown := broker["unknown"]:
            what = _UNKNOWN_REASONS.get(unknown, f"snapshot {unknown}")
            rows.append((number, what, *[""] * 6))
    return [*format_table(_COLUMNS, rows, left=2), ""] if rows else []


def _limit_text(free: float | None) -> str:
    return "-" if free is None else format_size(free)
