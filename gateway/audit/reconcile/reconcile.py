# Whether the audit's sums agree with what the brokers' logs really hold: bytes with the growth of log dirs, messages
# with the growth of end offsets, between two moments or since topics exist. Pure: snapshots and sums in, verdicts out;
# brokers.py takes snapshots, local_sums.py and spark_sums.py add up the usage log.
#
# For each topic this must hold:
#     accepted <= growth <= accepted + what may have been appended unacknowledged (usage.may_be_appended)
# and exactly so: these are no estimates. Other causes that make a log grow or shrink are either taken into account or
# make the verdict rest on less, and are named:
#   - Intervals of about a second around a snapshot may count bytes on either side of it: they widen the range.
#   - A transaction's end writes a marker into each partition it wrote to: 78 bytes and one offset (KIP-98).
#   - Retention, compaction, DeleteRecords and tiered storage take bytes away, the broker's own compression changes
#     them: then end offsets alone are compared, which none of these touches.
#   - A topic made again has another id: what the one before held is not known any more.
#   - Growth beyond the range came past the gateway. Growth below it was acknowledged and is gone.

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from gateway.audit.batch import tables
from policies.definitions.policy_values import is_topic_name

MARKER_BYTES: Final = 78  # a control batch: 61 of its header, 17 of its one record
FILE_VERSION: Final = 1
_UNNAMED_PREFIX: Final = "topic-id:"
_KEEPS_COMPRESSION: Final = "producer"  # compression.type with which brokers keep what producers send

AGREES, DIFFERS, UNKNOWN = "agrees", "differs", "unknown"


class InvalidLogSnapshot(ValueError):
    """The file is not a valid snapshot, or is one of an unknown version; the text is one line."""


class UsageSum(NamedTuple):
    """Bytes as in the log (compressed, with the batches' headers), and messages (records)."""

    bytes: int = 0
    messages: int = 0

    def plus(self, other: UsageSum) -> UsageSum:
        """Both together."""
        return UsageSum(self.bytes + other.bytes, self.messages + other.messages)


ZERO_USAGE: Final = UsageSum()


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """The leader's log of one partition."""

    leader: int
    size: int  # bytes of its segments
    start: int  # earliest offset
    end: int  # the next message's offset
    transactional: bool = False  # a transaction has ended here, as far as the broker remembers


@dataclass(frozen=True, slots=True)
class ReconciledTopicLog:
    """A topic's logs, and the settings that decide whether bytes can be compared."""

    id: str
    compression: str
    cleanup: str
    remote: bool  # tiered storage
    partitions: Mapping[int, PartitionLog]


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """Logs of a cluster, looked at between two moments (Unix milliseconds) on the clock of the asking process."""

    cluster: str
    began_ms: int
    ended_ms: int
    topics: Mapping[str, ReconciledTopicLog]


@dataclass(frozen=True, slots=True)
class LogGrowth:
    """The additions to a topic's logs.

    `messages` and `bytes` are None where they are unknown. `least_bytes` were added at least.
    """

    messages: int | None
    bytes: int | None
    least_bytes: int | None = None
    transactional: bool = False
    was_recreated: bool = False  # the topic was deleted, or deleted and made again
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CountedUsage:
    """A topic in the usage log: sums over the intervals that lie surely between the two snapshots, and over
    those that touch one of them."""

    accepted: UsageSum = ZERO_USAGE
    maybe: UsageSum = ZERO_USAGE
    in_flight: UsageSum = ZERO_USAGE  # accepted or may have been, in intervals that touch a snapshot

    @property
    def upper_bound(self) -> UsageSum:
        """The most that the log can have grown by."""
        return self.accepted.plus(self.maybe).plus(self.in_flight)


class AdditionBounds(NamedTuple):
    """Which intervals of the usage log tell of additions from one snapshot to the other: starts and ends in Unix ms,
    None without a bound. An interval that lies not surely between the two counts as in flight.
    """

    certain_from: int | None  # the first start
    certain_to: int  # the last end
    possible_from: int | None  # the first end
    possible_to: int  # the last start

    def is_certain(self, start_ms: int, end_ms: int) -> bool | None:
        """Whether that interval lies surely between the snapshots; None: surely not."""
        if start_ms > self.possible_to or (self.possible_from is not None and end_ms < self.possible_from):
            return None
        return end_ms <= self.certain_to and (self.certain_from is None or start_ms >= self.certain_from)


def bound_additions(since: LogSnapshot | None, until: LogSnapshot, margin_ms: int) -> AdditionBounds:
    """An interval within `margin_ms` of a snapshot may have been counted on either side of it: an append comes before
    its acknowledgement, and clocks of two hosts differ.
    """
    certain_to, possible_to = until.began_ms - margin_ms, until.ended_ms + margin_ms
    if since is None:
        return AdditionBounds(None, certain_to, None, possible_to)
    return AdditionBounds(since.ended_ms + margin_ms, certain_to, since.began_ms - margin_ms, possible_to)


def make_counted(sums: Iterable[tuple[str, bool, UsageSum, UsageSum]]) -> dict[str, CountedUsage]:
    """By topic, of each topic's certain and other intervals: topic, AdditionBounds.is_certain, the accepted, and what
    may have been appended as well.
    """
    found: dict[str, CountedUsage] = {}
    for topic, is_certain, accepted, maybe in sums:
        known = found.get(topic, CountedUsage())
        if is_certain:
            found[topic] = CountedUsage(accepted, maybe, known.in_flight)
        else:
            found[topic] = CountedUsage(known.accepted, known.maybe, accepted.plus(maybe))
    return found


@dataclass(frozen=True, slots=True)
class TopicVerdict:
    """Of one topic."""

    topic: str
    verdict: str  # AGREES, DIFFERS, UNKNOWN
    counted: CountedUsage
    growth: LogGrowth
    markers: tuple[int, int] | None = None  # transaction markers: at least, at most; None: they explain nothing
    reasons: list[str] = field(default_factory=list)

    @property
    def is_quiet(self) -> bool:
        """Nothing happened in that topic."""
        return self.verdict == AGREES and not any(self.counted.upper_bound) and not self.growth.messages


# --- growth -----------------------------------------------------------------------------------------------------------


def measure_growth(since: ReconciledTopicLog | None, until: ReconciledTopicLog | None) -> LogGrowth:
    """The growth of a topic's logs from one look to the other; `since` None: from when it was made."""
    if until is None:
        # Requests with acks=0 are forwarded to any name, and may be all that was counted under it.
        what = "there is no such topic: it was deleted, or never existed" if since is None else "the topic is deleted"
        return LogGrowth(None, None, was_recreated=True, reasons=(f"{what}: its log's contents are not known",))
    if since is not None and since.id != until.id:
        whole = measure_growth(None, until)
        return LogGrowth(
            whole.messages,
            whole.bytes,
            whole.least_bytes,
            whole.transactional,
            was_recreated=True,
            reasons=("the topic was deleted and made again: only the log of the new one is known", *whole.reasons),
        )
    before = since.partitions if since is not None else {}
    pairs = [(before.get(number, _empty_partition(each)), each) for number, each in until.partitions.items()]
    messages = sum(new.end - old.end for old, new in pairs)
    size = sum(new.size - old.size for old, new in pairs)
    transactional = any(old.transactional or new.transactional for old, new in pairs)
    changed = _recompression_reasons(since, until)
    cut = [] if changed else _truncation_reasons(since, until, pairs)
    reasons = tuple(f"{reason}: messages only" for reason in [*changed, *cut])
    if changed:
        return LogGrowth(messages, None, None, transactional, reasons=reasons)
    return LogGrowth(messages, None if cut else size, size, transactional, reasons=reasons)


def _empty_partition(partition: PartitionLog) -> PartitionLog:
    # Before there was the partition; retention and DeleteRecords move its start away from 0.
    return PartitionLog(partition.leader, 0, 0, 0)


def _recompression_reasons(*looks: ReconciledTopicLog | None) -> list[str]:
    kinds = sorted({each.compression for each in looks if each is not None} - {_KEEPS_COMPRESSION})
    return [f"brokers compress anew (compression.type={kind})" for kind in kinds]


def _truncation_reasons(
    since: ReconciledTopicLog | None, until: ReconciledTopicLog, pairs: list[tuple[PartitionLog, PartitionLog]]
) -> list[str]:
    looks = [each for each in (since, until) if each is not None]
    found = []
    if any("compact" in each.cleanup for each in looks):
        found.append("compaction takes bytes away (cleanup.policy=compact)")
    if any(each.remote for each in looks):
        found.append("tiered storage takes bytes away (remote.storage.enable)")
    if any(old.start != new.start for old, new in pairs):
        found.append("logs have lost their beginnings (retention, DeleteRecords)")
    elif any(old.leader != new.leader and new.start for old, new in pairs):
        # Replicas of one log may begin in different places of what is deleted already.
        found.append("leaders have moved to replicas that may begin elsewhere")
    return found


# --- verdicts ---------------------------------------------------------------------------------------------------------


def judge_topic(topic: str, counted: CountedUsage, grown: LogGrowth, *, complete: bool = True) -> TopicVerdict:
    """Whether they agree. `complete`: nothing is known to be missing from the usage log."""
    reasons = list(grown.reasons)
    low, most = counted.accepted, counted.upper_bound
    over = _excess_usage(grown, most)
    if grown.messages is None:
        return TopicVerdict(topic, UNKNOWN, counted, grown, None, reasons)
    if grown.was_recreated:
        # The log that is gone may have held any part of it; the one that is there can't hold more than was counted.
        if _marker_range(grown, ZERO_USAGE, most) is None:
            return TopicVerdict(topic, DIFFERS, counted, grown, None, [*reasons, _bypass_text(over, complete)])
        return TopicVerdict(topic, UNKNOWN, counted, grown, None, reasons)
    if grown.messages < low.messages or (grown.bytes is not None and grown.bytes < low.bytes):
        gone = UsageSum(
            max(0, low.bytes - grown.bytes) if grown.bytes is not None else 0, low.messages - grown.messages
        )
        return TopicVerdict(topic, DIFFERS, counted, grown, None, [*reasons, _loss_text(gone)])
    markers = _marker_range(grown, low, most)
    if markers is not None:
        fewest, _ = markers
        if fewest and grown.bytes is None:
            reasons.append(
                f"{fewest:,} offsets are transaction markers, or were not produced through the gateway: without bytes"
                " that can't be decided"
            )
            return TopicVerdict(topic, UNKNOWN, counted, grown, markers, reasons)
        if fewest:
            reasons.append(f"{_range_text(markers)} transaction markers of {MARKER_BYTES} bytes")
        return TopicVerdict(topic, AGREES, counted, grown, markers if fewest else None, reasons)
    reasons.append(_bypass_text(over, complete))
    if not grown.transactional and over.messages > 0 and over.bytes == MARKER_BYTES * over.messages:
        reasons.append(
            f"{over.messages:,} transaction markers would be just as large, but no broker remembers a transaction there"
            " (for a day; Read on the topic must be allowed)"
        )
    return TopicVerdict(topic, DIFFERS, counted, grown, None, reasons)


def _excess_usage(grown: LogGrowth, most: UsageSum) -> UsageSum:
    size = grown.bytes if grown.bytes is not None else grown.least_bytes
    return UsageSum(0 if size is None else max(0, size - most.bytes), max(0, (grown.messages or 0) - most.messages))


def _marker_range(grown: LogGrowth, low: UsageSum, most: UsageSum) -> tuple[int, int] | None:
    """The fewest and the most transaction markers with which it fits; None: with no number of them."""
    assert grown.messages is not None
    fewest = max(0, grown.messages - most.messages)
    largest = grown.messages - low.messages if grown.transactional else 0
    if grown.bytes is not None:
        fewest = max(fewest, -((most.bytes - grown.bytes) // MARKER_BYTES))  # rounded up
        largest = min(largest, (grown.bytes - low.bytes) // MARKER_BYTES)
    elif grown.least_bytes is not None and grown.least_bytes - MARKER_BYTES * largest > most.bytes:
        return None
    return (fewest, largest) if fewest <= largest else None


def _range_text(markers: tuple[int, int]) -> str:
    fewest, most = markers
    return f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"


def _bypass_text(over: UsageSum, complete: bool) -> str:
    also = "" if complete else ", or are in the gaps of the usage log"
    return f"{_amount_text(over)} were not produced through the gateway{also}"


def _loss_text(gone: UsageSum) -> str:
    return (
        f"{_amount_text(gone)} were acknowledged and are not in the log: it was cut (unclean leader election,"
        " acks=1 and a"
        " crash), or the topic was made again (a snapshot for --since tells)"
    )


def _amount_text(amount: UsageSum) -> str:
    return " and ".join(f"{number:,} {name}" for name, number in amount._asdict().items() if number > 0)


def reconcile_topics(
    since: LogSnapshot | None, until: LogSnapshot, counted: Mapping[str, CountedUsage], *, complete: bool = True
) -> list[TopicVerdict]:
    """One verdict for each topic that is in a snapshot or in the usage log, sorted by name.

    Raises:
        InvalidLogSnapshot: they are of different clusters, or not in this order.
    """
    if since is not None and since.cluster != until.cluster:
        raise InvalidLogSnapshot(f"the snapshots are of different clusters ({since.cluster}, {until.cluster})")
    if since is not None and since.ended_ms > until.began_ms:
        raise InvalidLogSnapshot("the snapshot of --since is the later one")
    earlier = since.topics if since is not None else {}
    added = {name for name, each in counted.items() if any(each.upper_bound) and _may_have_log(name)}
    names = sorted(earlier.keys() | until.topics.keys() | added)
    return [
        judge_topic(
            name,
            counted.get(name, CountedUsage()),
            measure_growth(earlier.get(name), until.topics.get(name)),
            complete=complete,
        )
        for name in names
    ]


def _may_have_log(topic: str) -> bool:
    """Whether a log may have what was counted under that text. Requests with acks=0 are forwarded with any name in
    them, and gateways count a name that can't be under `<invalid>`: brokers append nothing of it.
    """
    return is_topic_name(topic) or topic.startswith(_UNNAMED_PREFIX)


def merge_topic_ids(counted: Mapping[str, CountedUsage], until: LogSnapshot) -> dict[str, CountedUsage]:
    """The same sums where the gateway did not learn a topic's name in time and counted under its id (Produce v13)."""
    names = {f"{_UNNAMED_PREFIX}{topic.id}": name for name, topic in until.topics.items()}
    found: dict[str, CountedUsage] = {}
    for topic, each in counted.items():
        name = names.get(topic, topic)
        known = found.get(name, CountedUsage())
        found[name] = CountedUsage(
            known.accepted.plus(each.accepted), known.maybe.plus(each.maybe), known.in_flight.plus(each.in_flight)
        )
    return found


# --- files ------------------------------------------------------------------------------------------------------------


def dump_snapshot(snapshot: LogSnapshot) -> str:
    """A snapshot as JSON."""
    return json.dumps({"version": FILE_VERSION} | asdict(snapshot), indent=1)


def load_snapshot(text: str) -> LogSnapshot:
    """The snapshot in that text.

    Raises:
        InvalidLogSnapshot: it is none.
    """
    try:
        values = json.loads(text)
        version = values["version"]
        if version != FILE_VERSION:
            raise InvalidLogSnapshot(f"a snapshot of version {version}, this program knows {FILE_VERSION}")
        topics = {name: _parse_topic_log(topic) for name, topic in values["topics"].items()}
        return LogSnapshot(str(values["cluster"]), int(values["began_ms"]), int(values["ended_ms"]), topics)
    except InvalidLogSnapshot:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidLogSnapshot(f"not a valid snapshot: {type(error).__name__}: {error}") from None


def _parse_topic_log(values: Mapping[str, Any]) -> ReconciledTopicLog:
    partitions = {int(number): PartitionLog(**each) for number, each in values["partitions"].items()}
    return ReconciledTopicLog(
        values["id"], values["compression"], values["cleanup"], bool(values["remote"]), partitions
    )


# --- what is shown ----------------------------------------------------------------------------------------------------


def verdicts_json(
    since: LogSnapshot | None, until: LogSnapshot, verdicts: list[TopicVerdict], complete: bool
) -> dict[str, Any]:
    """The answer in the shape that docs/audit.md describes."""
    return {
        "version": 1,
        "agrees": all(each.verdict == AGREES for each in verdicts),
        "usage_log_complete": complete,
        "cluster": until.cluster,
        "since_ms": None if since is None else [since.began_ms, since.ended_ms],
        "until_ms": [until.began_ms, until.ended_ms],
        "topics": [
            {
                "topic": each.topic,
                "verdict": each.verdict,
                "accepted": each.counted.accepted._asdict(),
                "maybe_appended": each.counted.maybe._asdict(),
                "in_flight": each.counted.in_flight._asdict(),
                "growth": {"bytes": each.growth.bytes, "messages": each.growth.messages},
                "markers": None if each.markers is None else list(each.markers),
                "reasons": each.reasons,
            }
            for each in verdicts
        ],
    }


def verdicts_text(verdicts: list[TopicVerdict], complete: bool) -> str:
    """A table for a terminal, a line for each reason, and the verdict."""
    shown = [each for each in verdicts if not each.is_quiet]
    head = [
        *("topic", "accepted bytes", "maybe appended bytes", "in-flight bytes", "growth bytes"),
        *("accepted messages", "growth messages", "verdict"),
    ]
    rows = [head, *map(_verdict_row, shown)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row, reasons in zip(rows, [(), *(each.reasons for each in shown)], strict=True):
        first, *numbers, last = row
        cells = [cell.rjust(width) for cell, width in zip(numbers, widths[1:-1], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells, last]))
        lines += [f"    {reason}" for reason in reasons]
    counts = {name: sum(each.verdict == name for each in verdicts) for name in (AGREES, DIFFERS, UNKNOWN)}
    if not complete:
        lines.append("the usage log is NOT COMPLETE: `produce-gateway audit` names the gaps")
    lines.append(f"{len(verdicts):,} topics: " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))
    return "\n".join(lines)


def _verdict_row(each: TopicVerdict) -> list[str]:
    counted, grown = each.counted, each.growth
    return [
        tables.escape_unprintable(each.topic),
        f"{counted.accepted.bytes:,}",
        f"{counted.maybe.bytes:,}",
        f"{counted.in_flight.bytes:,}",
        "?" if grown.bytes is None else f"{grown.bytes:,}",
        f"{counted.accepted.messages:,}",
        "?" if grown.messages is None else f"{grown.messages:,}",
        each.verdict,
    ]
