# What came to each volume, and how full it was: the accepted rows of the usage log, by where their topics' replicas
# were, beside the volumes that the same log noted. Pure: the engines count (local_counts.py, spark_counts.py).
#
# A topic's replicas are where the records of the same window say, else where the others say on average. Bytes of topics
# of which none says anything are counted as unplaced. Within a broker of several volumes no record says which
# topic is on which: what came to it then counts for the broker as a whole.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from gateway.audit.answers.windows import time_text
from gateway.audit.batch.query import LogIntegrity
from gateway.audit.errors import AuditError
from gateway.audit.storage.retention import RetentionAdvice, advise_retention
from policies.storage import VolumeKey

MAX_WINDOWS: Final = 1_000_000  # some hundred megabytes for each volume
MAX_TOPICS: Final = 1000  # of each broker, the largest: the others are in the sums all the same
ACCEPTED_OUTCOMES: Final = ("accepted", "unacknowledged")
# Of a topic that a broker has all partitions of: with whole numbers sums depend on no order, and no engine.
WHOLE_SHARE: Final = 10**9


@dataclass(frozen=True, slots=True)
class VolumeOptions:
    """`window_ms`: of the sums over time. `keep_free`: bytes; None: each volume's own hard limit.
    `time_zone`: in which times are told.
    """

    window_ms: int
    from_ms: int | None = None
    to_ms: int | None = None
    keep_free: int | None = None
    time_zone: str = "UTC"


@dataclass(frozen=True, slots=True)
class WindowUsage:
    """One volume in one window. `free`: the least; None: not measured. `written`: bytes that came to its broker."""

    start_ms: int
    free: int | None
    written: int


@dataclass(frozen=True, slots=True)
class VolumeUsage:
    """One volume. Sizes in bytes; `is_only_volume`: its broker has no other, so what came to the broker came to it.

    `used_first`, `used_last`: at the first and at the last look. `limit`: free bytes that had to stay; None: no limit.
    `limit_reached_ms`: the first window with no more than that free; None: none. `topics`: bytes that came, and
    partitions with a replica there. `advice`: None where there is none.
    """

    place: VolumeKey
    total: int
    used_first: int
    used_last: int
    least_free: int
    limit: int | None
    limit_reached_ms: int | None
    is_only_volume: bool
    written: int
    topics: Mapping[str, tuple[int, int]]
    principals: Mapping[str, int]
    windows: tuple[WindowUsage, ...]
    advice: RetentionAdvice | None


@dataclass(frozen=True, slots=True)
class VolumeReport:
    """Volumes by broker and log dir. `unplaced`: accepted bytes of topics of which no record says where they are."""

    options: VolumeOptions
    sources: list[dict[str, Any]]
    volumes: tuple[VolumeUsage, ...]
    unplaced: int
    integrity: LogIntegrity


class VolumeLook(NamedTuple):
    """What a record notes of a volume: Unix ms, and bytes. `hard`: the free bytes below which nothing more is taken."""

    end_ms: int
    total: int
    available: int
    hard: int | None


class WindowLooks(NamedTuple):
    """The looks at a volume within a window: the least `available`, and the first and the last of them."""

    start_ms: int
    least: int
    first: VolumeLook
    last: VolumeLook


class VolumeCounts(NamedTuple):
    """What records say between the bounds. By broker, and then by window (Unix ms), topic or principal: the bytes that
    came, and with topics the partitions with a replica there. `unplaced`: VolumeReport's.
    """

    looks: Mapping[VolumeKey, list[WindowLooks]]  # in the order of time
    by_window: Mapping[int, Mapping[int, int]]
    by_topic: Mapping[int, Mapping[str, tuple[int, int]]]
    by_principal: Mapping[int, Mapping[str, int]]
    unplaced: int


def make_report(
    counts: VolumeCounts, wish: VolumeOptions, sources: list[dict[str, Any]], integrity: LogIntegrity
) -> VolumeReport:
    """What the records say of each volume.

    Raises:
        AuditError: it would be of more than MAX_WINDOWS windows, as by a clock that was off by decades.
    """
    brokers = [broker for broker, _ in counts.looks]
    volumes = tuple(
        _make_volume_usage(place, rows, counts, wish, is_only_volume=brokers.count(place[0]) == 1)
        for place, rows in sorted(counts.looks.items())
    )
    return VolumeReport(wish, sources, volumes, counts.unplaced, integrity)


def _make_volume_usage(
    place: VolumeKey, rows: list[WindowLooks], counts: VolumeCounts, wish: VolumeOptions, *, is_only_volume: bool
) -> VolumeUsage:
    broker = place[0]
    first, last = rows[0].first, rows[-1].last
    came, topics = counts.by_window.get(broker, {}), counts.by_topic.get(broker, {})
    free = {row.start_ms: row.least for row in rows}
    times = {*came, *free}
    count = (max(times) - min(times)) // wish.window_ms
    if count > MAX_WINDOWS:
        raise AuditError(
            f"--window: {count:,} windows lie between {time_text(min(times), wish.time_zone)} and"
            f" {time_text(max(times), wish.time_zone)}: give --from and --to, or a longer one"
        )
    steps = tuple(
        WindowUsage(start, free.get(start), came.get(start, 0))
        for start in range(min(times), max(times) + 1, wish.window_ms)
    )
    limit = last.hard if wish.keep_free is None else wish.keep_free
    used = first.total - first.available
    advice = None
    if is_only_volume and limit is not None and topics:
        advice = advise_retention([step.written for step in steps], wish.window_ms, last.total - limit - used, topics)
    return VolumeUsage(
        place,
        last.total,
        used,
        last.total - last.available,
        min(free.values()),
        limit,
        None if limit is None else min((at for at, least in free.items() if least <= limit), default=None),
        is_only_volume,
        sum(came.values()),
        topics,
        counts.by_principal.get(broker, {}),
        steps,
        advice,
    )
