# The usual requests and answers of one connection, by the run: Produce requests whose topics are known here and within
# their limits, and answers that say that all their partitions are in the log; Fetch requests, where the shortcut takes
# them and nobody's are limited; and answers that stream through. They decide what the gateway costs.
#
# Whatever else there is to a request or an answer, these stop before it, and whoever called looks at it step by step
# (requests.py, answers.py). So they refuse nothing, know no error and make no answer.
#
# This file is compiled where a C compiler is: passing_compiled.pxd says what its variables are in C, setup.py how it is
# built. It is plain Python all the same, and runs as such elsewhere; tests hold the two to each other.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.channel import API_REQUESTS
from gateway.data import in_flight, sums
from protocol import layouts, stream, usual

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.data.accounts import Charged
    from gateway.data.in_flight import InFlight, Owed
    from gateway.data.ledger import Counts, Ledger
    from policies.duplicates import Acknowledged
    from policies.limits.meter import FleetMeter
    from policies.quotas.lines import Lines
    from policies.thresholds.topic_meter import TopicMeter
    from protocol.produce_request import Partition, Partitions, Parts
    from protocol.stream import EndpointHider
    from protocol.usual import Span
    from protocol.wire import Buffer

# Numbers of C where this is compiled, hence not imported by the names that they have elsewhere.
_PASS = 0  # gateway.data.pending.PASS
_STREAM = 1  # gateway.data.pending.STREAM
_PRODUCE = 3  # gateway.data.pending.PRODUCE
_FETCH_KEY = 1  # protocol.api.FETCH
_TOPIC_IDS = 13  # protocol.api.PRODUCE_TOPIC_IDS
_MIN_REQUEST = 8  # protocol.framing.MIN_REQUEST
_MAX_PENDING = 1000  # gateway.data.in_flight.MAX_PENDING

_FETCHES = f"{API_REQUESTS}{_FETCH_KEY}"  # the counter of Fetch requests


class Terms:
    """On which requests of one connection pass as they are, and where they are noted.

    Attributes:
        in_flight: the answers that are owed.
        by_name, by_id: the meters of the topics that were looked up. `total`: that of their broker.
        awaits: Accounts.awaits.
        counted: what answers are noted in.
        mask: see Latencies.
        client_id, quota: of the connection; a request under another client id does not pass.
        max_bytes, most: the bytes and the partitions that a Produce request may have.
        fetches: for each version of Fetch what its answer is owed, pending.PASS or STREAM. No other one passes.
        fetch_bytes: that a Fetch request may have.
    """

    __slots__ = (
        "awaits", "by_id", "by_name", "client_id", "counted", "fetch_bytes", "fetches", "in_flight", "mask",
        "max_bytes", "most", "quota", "total",
    )  # fmt: skip

    def __init__(
        self, in_flight: InFlight, by_name: dict[bytes, TopicMeter], by_id: dict[bytes, TopicMeter], total: FleetMeter,
        awaits: Callable[[Parts, int], bool], counted: Counted,
    ) -> None:  # fmt: skip
        self.in_flight = in_flight
        self.by_name = by_name
        self.by_id = by_id
        self.total = total
        self.awaits = awaits
        self.counted = counted
        self.mask = self.max_bytes = self.most = self.fetch_bytes = 0
        self.client_id: bytes | None = None
        self.quota: Lines | None = None
        self.fetches: tuple[int, ...] = ()

    def set(self, mask: int, client_id: bytes | None, quota: Lines | None, max_bytes: int, most: int) -> None:
        """They are these from here on. No Fetch request passes: the request before it may hold it up."""
        self.mask, self.client_id, self.quota, self.max_bytes, self.most = mask, client_id, quota, max_bytes, most
        self.fetches = ()

    def set_fetches(self, owed: tuple[int, ...], most: int) -> None:
        """These pass as well."""
        self.fetches, self.fetch_bytes = owed, most


class Counted:
    """What the answers of one connection are noted in.

    Attributes:
        in_flight: the answers that are owed.
        rows: those of accepted bytes, by topic. `acknowledged`: what was acknowledged before.
        name_of: Topics.name. `count_repeats`, `count_some`: of Accounts.
        ledger, node_id: where those that are measured are noted, and of which broker.
        walker: of the answer that streams through, the first part of which has passed; None: there is none.
    """

    __slots__ = (
        "acknowledged", "count_repeats", "count_some", "in_flight", "ledger", "name_of", "node_id", "rows", "walker",
    )  # fmt: skip

    def __init__(
        self, in_flight: InFlight, rows: dict[bytes, Counts], acknowledged: Acknowledged,
        name_of: Callable[[bytes, int], bytes], count_repeats: Callable[[Counts, Partition, bytes], None],
        count_some: Callable[[Partitions, list[Span], list[int], Charged], None], ledger: Ledger, node_id: int,
    ) -> None:  # fmt: skip
        self.in_flight = in_flight
        self.rows = rows
        self.acknowledged = acknowledged
        self.name_of = name_of
        self.count_repeats = count_repeats
        self.count_some = count_some
        self.ledger = ledger
        self.node_id = node_id
        self.walker: EndpointHider | None = None

    def begin(self, kind: int, key: int, version: int, size: int) -> None:
        """An answer of so many bytes begins to stream through. `kind`: pending.PASS or STREAM."""
        if kind == _STREAM:
            self.walker = stream.EndpointHider(key, version, size)
        else:
            self.walker = stream.nothing_to_hide(size)


def requests(buf: Buffer, pos: int, end: int, now: float, arrived: float, asks: bool, terms: Terms) -> tuple[int, int]:
    """Charge and note the requests from `pos` on that pass as they are; the position of the first other one, and the
    number of these.

    `arrived`: since when they are here. `asks`: the checksums of some may be needed, see Accounts.awaits; the caller
    looks at these.
    """
    flight, client_id, quota = terms.in_flight, terms.client_id, terms.quota
    passed = size = messages = 0
    meter = None  # of `last`, the topic of the last requests: their size and messages are added when another one comes
    last, last_version, room = b"", -1, 0.0
    try:
        while end - pos > 12:
            length, key, version, correlation = layouts.request_head(buf, pos)
            stop = pos + 4 + length
            if key:
                if key != _FETCH_KEY or stop > end or not _take_fetch(length, version, correlation, terms):
                    break
                passed += 1
                pos = stop
                continue
            if not _MIN_REQUEST <= length <= terms.max_bytes or stop > end or len(flight) >= _MAX_PENDING:
                break
            (
                same, acks, client_at, client_size, _, _, topic_at, topic_size, index, bytes_, records, producer, epoch,
                sequence, trailing,
            ) = usual.single(buf, pos + 4, stop)  # fmt: skip
            if same < 0:  # none, or several
                if meter is not None:
                    _charge(meter, terms.total, size, messages)
                    meter, last_version = None, -1
                    size = messages = 0
                if not _take_several(buf, pos + 4, stop, version, correlation, now, arrived, asks, terms):
                    break
                passed += 1
                pos = stop
                if flight.is_waiting:
                    break
                continue
            if not acks or not layouts.is_name(buf, client_at, client_size, client_id):
                break
            if version != last_version or topic_size != len(last) or not layouts.has(buf, topic_at, last):
                if meter is not None:
                    _charge(meter, terms.total, size, messages)
                    size = messages = 0
                topic = layouts.name(buf, topic_at, topic_size)
                meter = (terms.by_name if version < _TOPIC_IDS else terms.by_id).get(topic)
                if meter is None:
                    break
                last, last_version, room = topic, version, meter.free_to - meter.uncounted
            if asks and _awaits(terms, version, last, index, bytes_, records, producer, epoch, sequence, trailing):
                break
            if size >= room or (quota is not None and not quota.passes(length, now)):
                break
            flight.note(
                correlation, version, last, index, bytes_, records, producer, epoch, sequence, trailing, quota,
                None if correlation & terms.mask else (arrived, now, terms.mask + 1),
            )  # fmt: skip
            size += bytes_
            messages += records
            passed += 1
            pos = stop
    finally:
        if meter is not None:
            _charge(meter, terms.total, size, messages)
    return pos, passed


def _take_fetch(length: int, version: int, correlation: int, terms: Terms) -> bool:
    # Note a Fetch request of so many bytes; False: nothing, since it has to be looked at.
    if not _MIN_REQUEST <= length <= terms.fetch_bytes or not 0 <= version < len(terms.fetches):
        return False
    if len(terms.in_flight) >= _MAX_PENDING:
        return False
    kind = terms.fetches[version]
    if kind == _PASS:
        terms.in_flight.append((correlation, _PASS))
    else:
        terms.in_flight.append((correlation, _STREAM, version, _FETCH_KEY))
    terms.counted.ledger.count(_FETCHES)
    return True


def _awaits(
    terms: Terms, version: int, topic: bytes, index: int, size: int, messages: int, producer: int, epoch: int,
    sequence: int, trailing: int,
) -> bool:  # fmt: skip
    part = (topic, index, size, messages, producer, epoch, sequence, trailing)
    return terms.awaits([part], version)


def _take_several(
    buf: Buffer, start: int, end: int, version: int, correlation: int, now: float, arrived: float, asks: bool,
    terms: Terms,
) -> bool:  # fmt: skip
    # Charge and note a request that has not just one partition; False: nothing, since it has to be looked at.
    skimmed = usual.several(buf, start, end, terms.most)
    if skimmed is None:
        return False
    _, acks, named, _, parts = skimmed
    if not acks or named != terms.client_id or not len(parts) or (asks and terms.awaits(parts, version)):
        return False
    meters = terms.by_name if version < _TOPIC_IDS else terms.by_id
    if not _charge_all(parts, meters, terms.total, terms.quota, end - start, now):
        return False
    terms.in_flight.keep(parts)
    stamp = None if correlation & terms.mask else (arrived, now, terms.mask + 1)
    terms.in_flight.append((correlation, _PRODUCE, version, parts, None, 0, terms.quota, stamp))
    return True


def _charge(meter: TopicMeter, total: FleetMeter, size: int, messages: int) -> None:
    meter.uncounted += size
    meter.messages += messages
    total.uncounted += size


def _charge_all(
    parts: Any, meters: dict[bytes, TopicMeter], total: FleetMeter, quota: Lines | None, length: int, now: float
) -> bool:
    # Charge the meters of a request of several partitions, and its client's quota for all of its `length` bytes; False:
    # nothing, since some topic has to be looked at, or the quota asked.
    size = 0
    charges = []
    for topic, bytes_, messages in sums.by_topic(parts):
        meter = meters.get(topic)
        if meter is None or meter.uncounted >= meter.free_to:
            return False
        charges.append((meter, bytes_, messages))
        size += bytes_
    if quota is not None and not quota.passes(length, now):
        return False
    for meter, bytes_, messages in charges:
        meter.uncounted += bytes_
        meter.messages += messages
    total.uncounted += size
    return True


def answers(buf: bytearray, pos: int, end: int, now: float, asks: bool, counted: Counted) -> int:
    """Count the answers from `pos` on that need nothing but that, and pass what is here of those that stream through;
    the position of the first other one, of the one before which the gateway's own answer is due, or of bytes that have
    to come again with more behind them (EndpointHider.feed). `asks`: Accounts.count_repeats has to be told of each.
    """
    if counted.walker is not None:
        pos = _pass_on(buf, pos, end, counted)
        if counted.walker is not None:
            return pos
    flight = counted.in_flight
    counts = None  # of `last`, the topic of the last answers: their sums are added when another one comes
    last = b""
    size = messages = requests_ = 0
    try:
        while end - pos >= 8:
            owed = flight.oldest
            if owed is None:
                break
            length, correlation = layouts.answer_start(buf, pos)
            stop = pos + 4 + length
            if length < 4 or owed.correlation != correlation:
                break
            if owed.kind == _PASS or owed.kind == _STREAM:
                _begin(owed, length, counted)
                pos = _pass_on(buf, pos + 4, end, counted)
                if counted.walker is not None:
                    break
                continue
            if stop > end or owed.kind != _PRODUCE:
                break
            if owed.entry is not None:
                if asks or not _take_all(buf, pos + 4, stop, now, owed, counted):
                    break
                flight.drop()
                pos = stop
                continue
            offset = usual.written(buf, pos + 4, stop, owed.version, owed.topic, owed.index)
            if offset < 0 or owed.trailing:
                break
            name = owed.topic if owed.version < _TOPIC_IDS else counted.name_of(owed.topic, owed.version)
            if name != last or counts is None:
                if counts is not None:
                    _count(counts, size, messages, requests_)
                    size = messages = requests_ = 0
                counts, last = counted.rows.get(name), name
                if counts is None:
                    break
            if owed.producer >= 0 and counted.acknowledged.seen(
                owed.producer, owed.epoch, name, owed.index, owed.sequence, offset
            ):
                break  # one that was seen is seen again where it is looked at
            size += owed.size
            messages += owed.messages
            requests_ += 1
            if asks:
                counted.count_repeats(counts, in_flight.partition(owed), name)
            if owed.stamp is not None:
                counted.ledger.latencies.answer(owed.stamp, counted.node_id, now)
            flight.drop()
            pos = stop
    finally:
        if counts is not None:
            _count(counts, size, messages, requests_)
    return pos


def _begin(owed: Owed, size: int, counted: Counted) -> None:
    assert owed.entry is not None
    if owed.kind == _PASS:
        counted.begin(_PASS, -1, 0, size)
    else:
        _, _, version, key = owed.entry
        counted.begin(_STREAM, key, version, size)


def _pass_on(buf: bytearray, pos: int, end: int, counted: Counted) -> int:
    # Pass what is here of the answer that streams through; behind it nothing does.
    walker = counted.walker
    assert walker is not None
    stop = min(end, pos + walker.left)
    stop -= walker.feed(buf, pos, stop)
    if not walker.left:
        if walker.lost:
            counted.ledger.count("answers_not_followed")
        counted.walker = None
        counted.in_flight.drop()
    return stop


def _take_all(buf: Buffer, start: int, end: int, now: float, owed: Owed, counted: Counted) -> bool:
    # Count the answer to a request of several partitions; False: nothing, since it has to be looked at.
    assert owed.entry is not None
    _, _, version, parts, rejected, throttle_ms, charged, stamp = owed.entry
    if rejected or throttle_ms:
        return False
    answered = usual.answer(buf, start, end, version)
    if answered is None or not _count_all(parts, answered, version, charged, counted):
        return False
    counted.in_flight.forget(parts)
    if stamp is not None:
        counted.ledger.latencies.answer(stamp, counted.node_id, now)
    return True


def _count(counts: Counts, size: int, messages: int, requests_: int) -> None:
    counts[0] += size
    counts[1] += messages
    counts[2] += requests_


def _count_all(parts: Any, answered: Any, version: int, charged: Any, counted: Counted) -> bool:
    # Count a request of several partitions, all of which were written; False: nothing was counted, as they were not, or
    # as a topic is new here.
    rows = counted.rows
    offsets = sums.offsets(parts, answered)
    if offsets is None:
        return False
    topics = parts.topics
    if version >= _TOPIC_IDS:
        topics = [(counted.name_of(topic, version), first, stop) for topic, first, stop in topics]
    met = set()
    for topic, _, _ in topics:
        counts = rows.get(topic)
        if counts is None or id(counts) in met:  # a request counts once in a row, which several topics may share
            return False
        if len(topics) > 1:
            met.add(id(counts))
    if len(offsets):
        again = counted.acknowledged.seen_of(topics, parts.numbers, offsets)
        if again:
            counted.count_some(parts, topics, again, charged)
            return True
    for place, (_, size, messages) in enumerate(sums.by_topic(parts)):
        _count(rows[topics[place][0]], size, messages, 1)
    return True
