# How what fills volumes is shown: as JSON (docs/audit.md), and as text. Pure.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.audit.answers.windows import time_text
from gateway.audit.batch import tables
from gateway.audit.storage.filling import VolumeReport, VolumeUsage
from policies.units import format_size

JSON_VERSION: Final = 1
MAX_SHOWN: Final = 5  # topics and principals of each volume in the text; the JSON has all


def volumes_json(report: VolumeReport) -> dict[str, Any]:
    """The shape that docs/audit.md describes."""
    wish = report.options
    return {
        "version": JSON_VERSION,
        "window_ms": wish.window_ms,
        "from_ms": wish.from_ms,
        "to_ms": wish.to_ms,
        "sources": report.sources,
        "volumes": [_volume_json(each) for each in report.volumes],
        "unplaced_bytes": report.unplaced,
        "integrity": tables.integrity_json(report.integrity),
    }


def _volume_json(each: VolumeUsage) -> dict[str, Any]:
    advice = each.advice
    return {
        "broker": each.place[0],
        "log_dir": each.place[1],
        "total_bytes": each.total,
        "used_first_bytes": each.used_first,
        "used_last_bytes": each.used_last,
        "least_free_bytes": each.least_free,
        "limit_bytes": each.limit,
        "limit_reached_ms": each.limit_reached_ms,
        "alone": each.is_only_volume,
        "written_bytes": each.written,
        "topics": [
            {"topic": topic, "bytes": size, "partitions": partitions}
            for topic, (size, partitions) in each.topics.items()
        ],
        "principals": [{"principal": name, "bytes": size} for name, size in each.principals.items()],
        "over_time": [
            {"window_start_ms": step.start_ms, "least_free_bytes": step.free, "written_bytes": step.written}
            for step in each.windows
        ],
        "retention": None
        if advice is None
        else {"room_bytes": advice.room, "retention.ms": advice.ms, "retention.bytes": dict(advice.topic_bytes)},
    }


def volumes_text(report: VolumeReport, over_time: bool) -> str:
    """A table of all volumes, then each with what fills it."""
    zone = report.options.time_zone
    trust = tables.integrity_text(report.integrity, report.sources, report.options.from_ms, zone)
    if not report.volumes:
        none = "no record says anything of volumes: they do where storage protection is on, from version 0.1 on"
        return f"{none}\n\n{trust}"
    head = ["broker", "volume", "total", "least free", "limit", "used first", "used last", "came"]
    body = [
        [
            str(each.place[0]),
            tables.escape_unprintable(each.place[1]),
            *map(format_size, (each.total, each.least_free)),
            "-" if each.limit is None else format_size(each.limit),
            *map(format_size, (each.used_first, each.used_last, each.written)),
        ]
        for each in report.volumes
    ]
    details = (_volume_details(each, over_time, zone) for each in report.volumes)
    blocks = [tables.align_table(head, body, None, 2), *details]
    if report.unplaced:
        blocks.append(f"{report.unplaced:,} accepted bytes are of topics of which no record says where they are")
    return "\n\n".join([*blocks, trust])


def _volume_details(each: VolumeUsage, over_time: bool, zone: str) -> str:
    of = "" if each.is_only_volume else ", with all other volumes of its broker"
    lines = [f"broker {each.place[0]} {tables.escape_unprintable(each.place[1])}{of}"]
    sizes = {topic: size for topic, (size, _) in each.topics.items()}
    for title, found in (("topics", sizes), ("principals", each.principals)):
        lines.append(f"  {title:<11} {_largest_text(found, each.written)}")
    lines += [
        f"  {'limit':<11} {_limit_text(each, zone)}",
        *(f"  {'retention':<11} {text}" for text in _retention_lines(each)),
    ]
    if over_time:
        rows = [
            [
                time_text(step.start_ms, zone),
                "-" if step.free is None else format_size(step.free),
                format_size(step.written),
            ]
            for step in each.windows
        ]
        table = tables.align_table(["window", "least free", "came"], rows, None, 1)
        lines.append("\n".join(f"  {line}" for line in table.splitlines()))
    return "\n".join(lines)


def _largest_text(sizes: Mapping[str, int], whole: int) -> str:
    named = [
        f"{tables.escape_unprintable(name)} {format_size(size)} ({_share_text(size, whole)})"
        for name, size in sizes.items()
    ]
    more = f", {len(named) - MAX_SHOWN:,} more" if len(named) > MAX_SHOWN else ""
    return ", ".join(named[:MAX_SHOWN]) + more or "nothing came"


def _share_text(size: int, whole: int) -> str:
    return tables.share_text(size / (whole or 1), 0).replace(" ", "")


def _limit_text(each: VolumeUsage, zone: str) -> str:
    if each.limit is None:
        return "none"
    if each.limit_reached_ms is None:
        return f"{format_size(each.limit)} free, not reached"
    return f"{format_size(each.limit)} free, first reached at {time_text(each.limit_reached_ms, zone)}"


def _retention_lines(each: VolumeUsage) -> list[str]:
    advice = each.advice
    if not each.is_only_volume:
        return ["unknown: which topics lie on which volume of a broker isn't recorded"]
    if advice is None:
        return ["unknown: no traffic, or no limit"]
    if not advice.room:
        return ["none of what came has room: what was there before it is over the limit by itself"]
    partitions = sum(here for _, here in each.topics.values())
    beside = f"; beside up to a segment of each of {partitions:,} partitions"
    bounds = ", ".join(
        f"{tables.escape_unprintable(topic)} {size}" for topic, size in [*advice.topic_bytes.items()][:MAX_SHOWN]
    )
    more = f", {len(advice.topic_bytes) - MAX_SHOWN:,} more" if len(advice.topic_bytes) > MAX_SHOWN else ""
    if advice.ms is None:
        ms = "any retention.ms"
    elif advice.ms:
        ms = f"retention.ms {advice.ms} ({advice.ms / 60_000:,.1f} min)"
    else:
        ms = "no retention.ms as long as a window"
    return [f"{ms} would have kept it below the limit{beside}", f"or retention.bytes, of a partition: {bounds}{more}"]
