# What `produce-gateway explain` prints: why traffic is or is not held back, as lines. Judges nothing.

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from policies.units import format_duration


def describe_explanation(response: Mapping[str, Any]) -> list[str]:
    """The answer as lines."""
    user, client_id = response["user"] or "unknown", response["client_id"] or "none"
    brokers = f"brokers {', '.join(map(str, response['brokers']))}" if response["brokers"] else "no broker known"
    lines = [
        response["summary"],
        "",
        f"asked    topic {response['topic']}, user {user}, client id {client_id}, {brokers}",
        f"storage  {response['storage']['text']}",
        *(f"note     {note}" for note in response["notes"]),
    ]
    if response["rules"]:
        lines += ["", "RULES, in the order in which they are asked (> binds first)"]
        lines += [_rule_line(rule, response["at_ms"]) for rule in response["rules"]]
    if response["shadowed"]:
        lines += ["", "WITHOUT EFFECT on this traffic"]
        lines += [_shadowed_line(each) for each in response["shadowed"]]
    lines += ["", "REJECTED OR DELAYED LATELY"]
    lines += [_held_line(each, response["at_ms"]) for each in response["held"]] or ["  nothing"]
    return lines


def _rule_line(rule: Mapping[str, Any], now_ms: int) -> str:
    mark = ">" if rule["first"] else " "
    since_ms = rule["since_ms"]  # after now where the clock was just set back
    since = "" if since_ms is None else f" for {format_duration(max(0, now_ms - since_ms) / 1000)}"
    state = f" LIMITS NOW{since}," if rule["limits_now"] else ""
    mode = ", only counted" if rule["mode"] == "observe" else ""
    what = "" if rule["traffic"] == "produce" else f" {rule['traffic'] if rule['traffic'] == 'fetch' else 'all'}"
    origins = " and ".join(dict.fromkeys(level["origin"] for level in rule["levels"] if level["origin"]))
    source = f"; from {origins}" if origins else ""
    return f"{mark} {rule['name']}{_broker_suffix(rule)}:{state} {rule['action']}s{what}{mode}: {rule['text']}{source}"


def _shadowed_line(each: Mapping[str, Any]) -> str:
    origin = f" ({each['origin']})" if each["origin"] else ""
    value = f" = {each['value']}" if each["value"] else ""
    return f"  {each['name']}{_broker_suffix(each)}: {each['what']}{value}{origin}: {each['why']}"


def _held_line(each: Mapping[str, Any], now_ms: int) -> str:
    at = datetime.fromtimestamp(each["last_ms"] / 1000, UTC).strftime("%H:%M:%SZ")
    ago = max(0, now_ms - each["last_ms"]) / 1000
    wait = "" if each["mean_delay_s"] is None else f", {each['mean_delay_s']:.1f} s each"
    requests = "1 request" if each["requests"] == 1 else f"{each['requests']:,} requests"
    return (
        f"  {at} ({ago:.0f} s ago) {each['outcome'].replace('_', ' ')}: {each['reason']}{_broker_suffix(each)}:"
        f" {each['bytes']:,} bytes in {requests}{wait}, from {each['principal']} {each['client_id']!r}"
    )


def _broker_suffix(each: Mapping[str, Any]) -> str:
    return "" if each["broker"] is None else f" on broker {each['broker']}"
