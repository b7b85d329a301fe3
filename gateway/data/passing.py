# The usual Produce requests and answers of one connection, by the run: requests whose topics are known here and within
# their limits, and answers that say that all their partitions are in the log. They decide what the gateway costs.
#
# Whatever else there is to a request or an answer, these stop before it, and whoever called looks at it step by step
# (requests.py, answers.py). So they refuse nothing, know no error and make no answer.
#
# This file is compiled where a C compiler is: passing_compiled.pxd says what its variables are in C, setup.py how it is
# built. It is plain Python all the same, and runs as such elsewhere; tests hold the two to each other.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.data import sums
from protocol import layouts, usual

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable

    from gateway.data.accounts import Charged as Charges
    from gateway.data.latencies import Meter as Latencies
    from gateway.data.ledger import Counts
    from policies.duplicates import Acknowledged
    from policies.limits.meter import FleetMeter
    from policies.quotas.lines import Lines
    from policies.thresholds.topic_meter import TopicMeter
    from protocol.pending import Entry
    from protocol.produce_request import Partition, Partitions, Parts
    from protocol.usual import Span
    from protocol.wire import Buffer

    # What requests that pass are noted in: the answers that are owed; the meters of the topics that were looked up, by
    # name and by id, and that of their broker; InFlight.keep.
    Charged = tuple[deque[Entry], dict[bytes, TopicMeter], dict[bytes, TopicMeter], FleetMeter, Callable[[Parts], bool]]
    # What answers are noted in: the answers that are owed; the rows of accepted bytes, by topic; what was acknowledged
    # before; Topics.name; Accounts.count_some; InFlight.forget; and where those that are measured are, with the
    # broker's node id.
    Counted = tuple[
        deque[Entry], dict[bytes, Counts], Acknowledged, Callable[[bytes, int], bytes],
        Callable[[Partitions, list[Span], list[int], Charges], None], Callable[[Parts], None], Latencies, int,
    ]  # fmt: skip

# Numbers of C where this is compiled, hence not imported by the names that they have elsewhere.
_PRODUCE = 3  # protocol.pending.PRODUCE
_TOPIC_IDS = 13  # protocol.api.PRODUCE_TOPIC_IDS
_MIN_REQUEST = 8  # protocol.framing.MIN_REQUEST
_MAX_PENDING = 1000  # gateway.data.in_flight.MAX_PENDING


def requests(
    buf: Buffer,
    pos: int,
    end: int,
    now: float,
    arrived: float,
    mask: int,
    client_id: bytes | None,
    quota: Lines | None,
    awaits: Callable[[Parts, int], bool] | None,
    max_bytes: int,
    most: int,
    charged: Charged,
) -> tuple[int, int]:
    """Charge and note the requests from `pos` on that pass as they are; the position of the first other one, and the
    number of these.

    `arrived`: since when they are here. `mask`: see Latencies. `client_id`, `quota`: of the connection; the caller
    looks at a request under another client id, and at those whose checksums are asked for (`awaits`, see Accounts;
    None: none is). `max_bytes`, `most`: the bytes and the partitions that a request may have.
    """
    entries, by_name, by_id, total, keep = charged
    passed = size = messages = 0
    meter = None  # of `last`, the topic of the last requests: their size and messages are added when another one comes
    last, last_version, room = b"", -1, 0.0
    try:
        while end - pos > 12:
            length, key, version, correlation = layouts.request_head(buf, pos)
            stop = pos + 4 + length
            if key or not _MIN_REQUEST <= length <= max_bytes or stop > end or len(entries) >= _MAX_PENDING:
                break
            skimmed = usual.request(buf, pos + 4, stop, most)
            if skimmed is None:
                break
            _, acks, named, _, parts = skimmed
            if not acks or named != client_id:
                break
            if awaits is not None and awaits(parts, version):
                break
            meters = by_name if version < _TOPIC_IDS else by_id
            is_full = False
            if len(parts) == 1:
                part = parts[0]
                topic = part[0]
                if topic != last or version != last_version:
                    if meter is not None:
                        _charge(meter, total, size, messages)
                        size = messages = 0
                    meter = meters.get(topic)
                    if meter is None:
                        break
                    last, last_version, room = topic, version, meter.free_to - meter.uncounted
                if size >= room or (quota is not None and not quota.passes(part[2], now)):
                    break
                size += part[2]
                messages += part[3]
            else:
                if meter is not None:
                    _charge(meter, total, size, messages)
                    meter, last_version = None, -1
                    size = messages = 0
                if not _take_all(parts, meters, total, quota, now):
                    break
                is_full = keep(parts)
            stamp = None if correlation & mask else (arrived, now, mask + 1)
            entries.append((correlation, _PRODUCE, version, parts, None, 0, quota, stamp))
            passed += 1
            pos = stop
            if is_full:
                break
    finally:
        if meter is not None:
            _charge(meter, total, size, messages)
    return pos, passed


def _charge(meter: TopicMeter, total: FleetMeter, size: int, messages: int) -> None:
    meter.uncounted += size
    meter.messages += messages
    total.uncounted += size


def _take_all(parts: Any, meters: dict[bytes, TopicMeter], total: FleetMeter, quota: Lines | None, now: float) -> bool:
    # Charge the meters of a request of several partitions, and its client's quota; False: nothing, since some topic has
    # to be looked at, or the quota asked.
    if not len(parts):
        return False
    size = 0
    charges = []
    for topic, bytes_, messages in sums.by_topic(parts):
        meter = meters.get(topic)
        if meter is None or meter.uncounted >= meter.free_to:
            return False
        charges.append((meter, bytes_, messages))
        size += bytes_
    if quota is not None and not quota.passes(size, now):
        return False
    for meter, bytes_, messages in charges:
        meter.uncounted += bytes_
        meter.messages += messages
    total.uncounted += size
    return True


def answers(
    buf: Buffer,
    pos: int,
    end: int,
    now: float,
    repeats: Callable[[Counts, Partition, bytes], None] | None,
    counted: Counted,
) -> int:
    """Count the answers from `pos` on that need nothing but that; the position of the first other one, or of the one
    before which the gateway's own answer is due. `repeats`: Accounts.count_repeats, where it has to be asked.
    """
    entries, rows, acknowledged, name_of, _, forget, latencies, node_id = counted
    counts = None  # of `last`, the topic of the last answers: their sums are added when another one comes
    last = b""
    all_bytes = all_messages = requests_ = 0
    try:
        while end - pos > 8 and entries:
            length, correlation = layouts.answer_start(buf, pos)
            stop = pos + 4 + length
            entry = entries[0]
            if stop > end or length < 4 or entry[0] != correlation or entry[1] != _PRODUCE:
                break
            _, _, version, parts, rejected, throttle_ms, charged, stamp = entry
            if rejected or throttle_ms:
                break
            if len(parts) == 1:
                topic, index, size, messages, pid, epoch, sequence, trailing = parts[0]
                offset = usual.written(buf, pos + 4, stop, version, topic, index)
                if offset < 0 or trailing:
                    break
                name = topic if version < _TOPIC_IDS else name_of(topic, version)
                if name != last or counts is None:
                    if counts is not None:
                        _count(counts, all_bytes, all_messages, requests_)
                        all_bytes = all_messages = requests_ = 0
                    counts, last = rows.get(name), name
                if counts is None or (pid >= 0 and acknowledged.seen(pid, epoch, name, index, sequence, offset)):
                    break  # one that was seen is seen again where it is looked at
                all_bytes += size
                all_messages += messages
                requests_ += 1
                if repeats is not None:
                    repeats(counts, parts[0], name)
            else:
                answered = usual.answer(buf, pos + 4, stop, version) if repeats is None else None
                if answered is None or not _count_all(parts, answered, version, charged, counted):
                    break
                forget(parts)
            if stamp is not None:
                latencies.answer(stamp, node_id, now)
            entries.popleft()
            pos = stop
    finally:
        if counts is not None:
            _count(counts, all_bytes, all_messages, requests_)
    return pos


def _count(counts: Counts, size: int, messages: int, requests_: int) -> None:
    counts[0] += size
    counts[1] += messages
    counts[2] += requests_


def _count_all(parts: Any, answered: Any, version: int, charged: Any, counted: Any) -> bool:
    # Count a request of several partitions, all of which were written; False: nothing was counted, as they were not, or
    # as a topic is new here.
    _, rows, acknowledged, name_of, count_some, *_ = counted
    offsets = sums.offsets(parts, answered)
    if offsets is None:
        return False
    topics = parts.topics
    if version >= _TOPIC_IDS:
        topics = [(name_of(topic, version), first, stop) for topic, first, stop in topics]
    met = set()
    for topic, _, _ in topics:
        counts = rows.get(topic)
        if counts is None or id(counts) in met:  # a request counts once in a row, which several topics may share
            return False
        if len(topics) > 1:
            met.add(id(counts))
    if len(offsets):
        again = acknowledged.seen_of(topics, parts.numbers, offsets)
        if again:
            count_some(parts, topics, again, charged)
            return True
    for place, (_, size, messages) in enumerate(sums.by_topic(parts)):
        _count(rows[topics[place][0]], size, messages, 1)
    return True
