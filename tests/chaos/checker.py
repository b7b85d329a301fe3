# The judge: what lies in the logs against what producers were told, and the gateway's books against the logs. It asks
# the brokers and reads their files and the gateway's; no code of the gateway runs here, so no fault of that is shared.
#
# The books, of each topic, in bytes and in messages:
#
#   idempotent   log == accepted. What was appended and not answered comes again, and counts when it is answered. Where
#                its client gives it another epoch for that, which librdkafka does (`renumbered`), it is there twice.
#   plain        accepted <= log <= accepted + unanswered + maybe appended (errors 6, 7 and 20)
#
# with two exceptions, both of which must be called for by the fault: after a worker was killed the log may have more,
# up to what was appended in the time of which the record `lost` says that nobody knows; and a batch whose answer got
# lost between gateway and client is counted once more if it comes over another worker (docs/workers-and-fleet.md).
# Whatever the fault: numbers of intervals have no hole, each life has an end, spool and topic hold the same lines, and
# /metrics has what the spool has of the time of this control process.

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

Line = dict[str, Any]

_MAYBE = frozenset({"NOT_LEADER_OR_FOLLOWER", "REQUEST_TIMED_OUT", "NOT_ENOUGH_REPLICAS_AFTER_APPEND"})
_BASE = 61  # bytes of a batch before its first record (KIP-98)
_ANSWER_MS = 2000  # batches count when they are answered, up to so long after they were appended


class Amount(NamedTuple):
    """Bytes of batches, and records in them."""

    bytes: int = 0
    messages: int = 0

    def plus(self, other: Amount) -> Amount:
        return Amount(self.bytes + other.bytes, self.messages + other.messages)

    def within(self, least: Amount, most: Amount) -> bool:
        return least.bytes <= self.bytes <= most.bytes and least.messages <= self.messages <= most.messages


class Batch(NamedTuple):
    """A batch as it lies in a log; `appended_ms` needs a topic with LogAppendTime. `producer`: id and epoch."""

    amount: Amount
    appended_ms: int
    first_offset: int = 0
    producer: tuple[int, int] = (-1, -1)


def batches(log_dirs: Iterable[Path]) -> Iterator[Batch]:
    """The batches in these folders of partitions, read without Kafka; control batches are none of a producer's."""
    for folder in log_dirs:
        for path in sorted(folder.glob("*.log")):
            data, pos = path.read_bytes(), 0
            while pos + _BASE <= len(data):
                size = 12 + int.from_bytes(data[pos + 8 : pos + 12], "big")
                if size == 12 or pos + size > len(data):
                    break  # preallocated
                head = data[pos : pos + _BASE]
                if not int.from_bytes(head[21:23], "big") & 32:
                    records = int.from_bytes(head[57:61], "big")
                    producer = int.from_bytes(head[43:51], "big"), int.from_bytes(head[51:53], "big")
                    appended_ms, first = int.from_bytes(head[35:43], "big"), int.from_bytes(head[:8], "big")
                    yield Batch(Amount(size, records), appended_ms, first, producer)
                pos += size


def renumbered(numbers: Sequence[int], log: Sequence[Batch]) -> tuple[int, Amount]:
    """How many of a partition's numbers, as they lie in it from offset 0 on, are there once more under another epoch of
    their producer, and the batches in which these were appended before.

    A broker can't know such a batch for the one that it has. librdkafka makes them when a leader moves while batches
    are unanswered, with any broker: confluentinc/librdkafka#4953.
    """
    places: dict[int, list[int]] = defaultdict(list)
    for offset, number in enumerate(numbers):
        places[number].append(offset)
    starts = [batch.first_offset for batch in log]
    count, early = 0, set()
    for offsets in places.values():
        found = [log[bisect_right(starts, offset) - 1] for offset in offsets]
        if len(found) > 1 and len({batch.producer for batch in found}) == len(found):
            count += len(found) - 1
            early.update(found[:-1])
    return count, total(batch.amount for batch in early)


def total(found: Iterable[Amount]) -> Amount:
    """Their sum."""
    sum_of = Amount()
    for amount in found:
        sum_of = sum_of.plus(amount)
    return sum_of


# --- the usage log ----------------------------------------------------------------------------------------------------


@dataclass
class Books:
    """Usage records, each once. `faults`: what must not be in any usage log, whatever was done to the gateway."""

    lines: list[Line] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def lost(self) -> list[Line]:
        """The notes of workers that ended without a last interval."""
        return [line for line in self.lines if line["kind"] == "lost"]

    def amount(self, topic: str, *outcomes: str, reasons: Iterable[str] = (), since_ms: int = 0) -> Amount:
        """Of rows with these outcomes; `since_ms`: only of intervals that began then or later."""
        chosen = frozenset(reasons)
        return total(
            Amount(row["bytes"], row["messages"])
            for line in self.lines
            if line["kind"] == "interval" and line["start_ms"] >= since_ms
            for row in line["rows"]
            if row["topic"] == topic and row["outcome"] in outcomes and (not chosen or row["reason"] in chosen)
        )

    def maybe(self, topic: str) -> Amount:
        """What may be in the log though no answer said so."""
        return self.amount(topic, "unanswered", "unacknowledged").plus(self.amount(topic, "errored", reasons=_MAYBE))

    def unknown(self) -> list[tuple[int, int]]:
        """(from, to) in ms: what was appended then may have been a killed worker's, and not be known."""
        spans = []
        for note in self.lost:
            known = [
                line["end_ms"] for line in self.lines if line["boot"] == note["boot"] and line["kind"] == "interval"
            ]
            spans.append((max(known, default=0) - _ANSWER_MS, note["end_ms"]))
        return spans


def read_books(raw: Iterable[bytes]) -> Books:
    """Usage records as they lie in the spool or in the topic."""
    books = Books()
    seen: dict[tuple[Any, ...], bytes] = {}
    lives: dict[str, list[Line]] = defaultdict(list)
    for text in raw:
        line = json.loads(text)
        identity = (line["kind"], line["gateway"], line["boot"], line["worker"], line["seq"], line["part"])
        if identity in seen:
            if seen[identity] != text:
                books.faults.append(f"{identity} comes twice and differs")
            continue
        seen[identity] = text
        if not 0 <= line["start_ms"] <= line["end_ms"]:
            books.faults.append(f"seq {line['seq']}: an interval from {line['start_ms']} to {line['end_ms']}")
        books.lines.append(line)
        lives[line["boot"]].append(line)
    for boot, own in lives.items():
        books.faults += [f"boot {boot[:6]}: {fault}" for fault in _faults_of_life(own)]
    return books


def _faults_of_life(own: Sequence[Line]) -> Iterator[str]:
    intervals = [line for line in own if line["kind"] == "interval"]
    parts: dict[int, set[int]] = defaultdict(set)
    for line in intervals:
        parts[line["seq"]].add(line["part"])
        if line["parts"] != max(other["parts"] for other in intervals if other["seq"] == line["seq"]):
            yield f"seq {line['seq']} has parts of two kinds"
    if sorted(parts) != list(range(len(parts))):
        yield f"intervals are missing: {sorted(set(range(max(parts))) - parts.keys())[:10]}"
    for line in intervals:
        if line["part"] == 0 and parts[line["seq"]] != set(range(line["parts"])):
            yield f"seq {line['seq']}: parts {sorted(parts[line['seq']])} of {line['parts']}"
    ends = {(line["kind"], line["seq"]) for line in own if line["final"] or line["kind"] == "lost"}
    if len(ends) != 1 or max(parts, default=-1) not in {seq for _, seq in ends}:
        yield f"it ends with {max(parts, default=-1)}, and its ends are {sorted(ends)}"


# --- the books against the log ----------------------------------------------------------------------------------------


class Sums(NamedTuple):
    """Of one topic. `unknown`: appended while a killed worker's bytes were nobody's. `faults`: silently wrong."""

    log: Amount
    accepted: Amount
    maybe: Amount
    unknown: Amount
    faults: tuple[str, ...]

    @property
    def gap(self) -> int:
        """Bytes in the log that are not in the books as accepted; negative: counted once more."""
        return self.log.bytes - self.accepted.bytes


def compare(
    topic: str,
    log: Sequence[Batch],
    books: Books,
    *,
    idempotent: bool,
    kills: int = 0,
    again: Amount | None = None,
    early: Amount | None = None,
) -> Sums:
    """
    Args:
        early: what lies in the log under an epoch that its producer gave up before it was answered (`renumbered`).
        kills: workers that the fault killed: so many notes `lost` there must be, and no others.
        again: the fault loses answers on their way to clients: so much may be counted once more; None: nothing.
    """
    faults = []
    spans = books.unknown()
    if len(spans) != kills:
        faults.append(f"{len(spans)} records `lost`, {kills} workers were killed")
    unknown = total(each.amount for each in log if any(since <= each.appended_ms <= to for since, to in spans))
    grown, accepted, maybe = total(each.amount for each in log), books.amount(topic, "accepted"), books.maybe(topic)
    most = accepted.plus(unknown).plus((early or Amount()) if idempotent else maybe)
    extra = again or Amount()
    if not grown.within(Amount(accepted.bytes - extra.bytes, accepted.messages - extra.messages), most):
        faults.append(f"{topic}: log {grown}, accepted {accepted}, maybe {maybe}, unknown {unknown}")
    return Sums(grown, accepted, maybe, unknown, tuple(faults))


def compare_copies(spool: Sequence[bytes], topic: Sequence[bytes], *, deleted: bool) -> list[str]:
    """The usage topic has what the spool has; `deleted`: but for what came before somebody deleted it."""
    there, faults = set(topic), []
    if strange := [text for text in topic if text not in set(spool)]:
        faults.append(f"{len(strange)} usage records are in the topic and not in the spool")
    missing = [text for text in spool if text not in there]
    if missing and not deleted:
        faults.append(f"{len(missing)} of {len(spool)} usage records are not in the topic")
    if deleted and (len(missing) == len(spool) or missing != list(spool[: len(missing)])):
        faults.append("what is missing in the topic is not what came before it was deleted")
    return faults


def compare_metrics(topic: str, shown: Amount, books: Books, since_ms: int) -> list[str]:
    """/metrics counts what this control process heard: all of it, or (`since_ms`) at least what began since then."""
    least, most = books.amount(topic, "accepted", since_ms=since_ms), books.amount(topic, "accepted")
    if shown.within(least, most):
        return []
    return [f"{topic}: /metrics says {shown}, the spool {least if least == most else f'{least} to {most}'}"]


def compare_reading(seen: dict[str, list[int]], there: dict[str, list[int]]) -> list[str]:
    """What a consumer saw, by topic/partition, against the log: everything, nothing else; again is allowed."""
    faults = []
    for place in sorted(seen.keys() | there.keys()):
        missing = Counter(there.get(place, [])) - Counter(seen.get(place, []))
        strange = set(seen.get(place, [])) - set(there.get(place, []))
        if missing or strange:
            faults.append(f"{place}: the consumer missed {missing.total()} records and saw {len(strange)} others")
    return faults
