# What `produce-gateway status | clients | connections | peers | history | reload` print: the responses of the REST API
# about the state of a gateway, as lines.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.commands.output import format_pairs, format_table
from policies.units import format_duration, format_rate

FLOW_KINDS: Final = ("accepted", "rejected", "delayed", "would")
CLIENT_COLUMNS: Final = (
    "PRINCIPAL", "CLIENT ID", "ACCEPTED", "REJECTED", "DELAYED", "WOULD", "HELD BACK LAST", "AGO",
)  # fmt: skip
CONNECTION_COLUMNS: Final = (
    "PEER", "BROKER", "PRINCIPAL", "CLIENT ID", "SOFTWARE", "AGE", "IDLE", "IN FLIGHT", "MUTED", "WHY",
)  # fmt: skip
PEER_COLUMNS: Final = ("GATEWAY", "WORKERS", "SINCE", "HEARD", "EVERY", "STATE")


def describe_status(status: Mapping[str, Any]) -> list[str]:
    """The answer as lines."""
    flow, storage, workers = status["flow"], status["storage"], status["workers"]
    peers, up_text = status["peers"], format_duration((status["at_ms"] - status["since_ms"]) / 1000)
    lines = {
        "gateway": f"{status['gateway']}, version {status['version']}, {status['hot_path']}, up {up_text}",
        "ready": "yes" if status["ready"] else "NO: " + "; ".join(status["problems"]),
        "lacking": "; ".join(status["lacking"]) or "nothing",
        "upstream": status["upstream"],
        "workers": f"{workers['connected']} of {workers['configured']}",
        "connections": f"{status['connections']:,}",
        "mode": status["mode"],
        "accepted": format_rate(flow["accepted"]),
        "rejected": format_rate(flow["rejected"]),
        "delayed": format_rate(flow["delayed"]),
        "would": f"{format_rate(flow['would'])} would be held back if what is observed were enforced",
        "storage": storage["text"],
        "policies": f"version {status['policies_version']}",
        "config": _config_text(status["config"]),
        "peers": _peers_text(peers, status["elsewhere"]),
    }
    return format_pairs(lines)


def _config_text(config: Mapping[str, Any]) -> str:
    last, pending = config["last"], config["pending"]
    text = config["file"] or "from standard input"
    if last is not None:
        text += f", read again: {last['outcome']}"
        text += ": " + "; ".join(last["problems"]) if last["problems"] else ""
    return text + (f"; a restart is needed for {', '.join(pending)}" if pending else "")


def _peers_text(living: int | None, elsewhere: float) -> str:
    if living is None:
        return "limits hold for this gateway alone"
    return f"{living}, which accept {format_rate(elsewhere)}" if living else "0"


def describe_clients(response: Mapping[str, Any]) -> list[str]:
    """The answer as lines."""
    if not response["clients"]:
        return ["no such client has produced lately, or was held back in the last ten minutes"]
    rows = [_client_row(each, response["at_ms"]) for each in response["clients"]]
    columns = list(CLIENT_COLUMNS)
    if any(each["others"] for each in response["clients"]):
        columns.append("ALSO AT")
        for row, each in zip(rows, response["clients"], strict=True):
            row.append(", ".join(sorted(each["others"])) or "-")
    lines = format_table(columns, rows, left=2)
    return [*lines, *_more_line(len(response["clients"]), response["total"], "clients")]


def _client_row(each: Mapping[str, Any], now_ms: int) -> list[str]:
    flow, held = each["flow"], each["held"]
    rates = ["-" if not flow[name] else format_rate(flow[name]) for name in FLOW_KINDS]
    if held is None:
        return [each["principal"], each["client_id"] or "-", *rates, "-", "-"]
    place = "" if held["broker"] is None else f" on broker {held['broker']}"
    what = f"{held['outcome'].replace('_', ' ')} {held['topic']}{place}: {held['reason']}"
    ago = format_duration(max(0, now_ms - held["last_ms"]) / 1000)
    return [each["principal"], each["client_id"] or "-", *rates, what, ago]


def describe_connections(response: Mapping[str, Any]) -> list[str]:
    """The answer as lines."""
    shown = response["connections"]
    rows = [
        [
            each["peer"],
            "-" if each["broker"] is None else str(each["broker"]),
            each["principal"],
            each["client_id"] or "-",
            each["software"] or "-",
            format_duration(each["age_s"]),
            format_duration(each["idle_s"]),
            str(each["in_flight"]),
            f"{each['muted_s']:.1f} s" if each["muted_s"] else "-",
            each["why"] or "-",
        ]
        for each in shown
    ]
    lines = (
        format_table(CONNECTION_COLUMNS, rows, left=5)
        if rows
        else ["no connection matches" if response["total"] else "no client is connected"]
    )
    if response["missing"]:
        lines.append(f"{response['missing']} workers did not answer in time: theirs are missing")
    return [*lines, *_more_line(len(shown), response["matched"], "connections")]


def describe_peers(response: Mapping[str, Any]) -> list[str]:
    """The answer as lines."""
    if not response["enabled"]:
        return ["limits hold for this gateway alone: the configuration switches the exchange off"]
    rows = [
        [
            each["gateway"],
            str(each["workers"]),
            format_duration(each["since_s"]),
            f"{each['heard_s']:.1f} s",
            f"{each['cycle_s']:g} s",
            "silent" if not each["living"] else "lives" if response["up"] else "not heard",
        ]
        for each in response["peers"]
    ]
    lines = format_table(PEER_COLUMNS, rows) if rows else ["no other gateway"]
    trip = "" if response["round_trip_s"] is None else f", round trip {response['round_trip_s'] * 1000:.0f} ms"
    state = f"topic {response['topic']}: {'heard' if response['up'] else 'NOT HEARD'}{trip}"
    return [*lines, "", state, *([f"problem: {response['problem']}"] if response["problem"] else [])]


def _more_line(shown: int, all_of_them: int, what: str) -> list[str]:
    return [f"… and {all_of_them - shown:,} more {what}: --limit"] if all_of_them > shown else []


def describe_reload(response: Mapping[str, Any]) -> list[str]:
    """The answer as lines."""
    changed, pending = response["last"]["changed"], response["pending"]
    lines = [f"{response['file']}: {response['last']['outcome']}"]
    lines += [f"holds now: {', '.join(changed)}"] if changed else []
    return lines + ([f"takes a restart: {', '.join(pending)}"] if pending else [])
