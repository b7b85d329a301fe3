# Series of what was produced, by topic and by client. The bounds of their labels: a name that a client says becomes a
# label only once a broker vouched for it, cut and within a cap; the rest is `other`.

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client import Counter

from gateway.channel import Row
from gateway.control.metrics.family import Family
from policies.engine import BrokerRate, TopicRate
from policies.text import one_line
from policies.usage import DELAYED, NOTES, OUTCOMES, REASONS

_PLACE: Final = ("broker", "topic")
_ROW: Final = (*_PLACE, "outcome", "reason")
PRODUCED: Final = (
    Family(
        "produce_bytes",
        "counter",
        _ROW,
        "Bytes of record batches in Produce requests, by outcome. The sum over all outcomes is the bytes that "
        "producers offered.",
    ),
    Family("produce_messages", "counter", _ROW, "Records in Produce requests, by outcome."),
    Family(
        "produce_requests", "counter", _ROW, "Produce requests with at least one partition of the topic, by outcome."
    ),
    Family(
        "produce_repeats_bytes",
        "counter",
        _PLACE,
        "Bytes whose previous attempt was rejected. Rejected bytes minus these were not sent again: [audit](audit.md).",
    ),
    Family(
        "produce_repeats_unknown_bytes",
        "counter",
        _PLACE,
        "Bytes for which the gateway can't tell whether they repeat a rejected attempt.",
    ),
    Family(
        "policy_bytes",
        "counter",
        _ROW,
        "Bytes that a policy delayed or, where it is only observed (`mode: observe`, or a client that "
        "`enforce_percent` leaves out), would have rejected or delayed. `produce_bytes` counts the same bytes under "
        "their outcome.",
    ),
    Family(
        "policy_requests",
        "counter",
        _ROW,
        "Produce requests that a policy delayed or, where it is only observed, would have rejected or delayed.",
    ),
    Family(
        "policy_enforced_clients_ratio",
        "gauge",
        ("policy",),
        "The part of the clients for which the policy (threshold, quota or group) is enforced: "
        "[`enforce_percent`](policies.md#from-observe-to-enforce-in-steps) as a ratio, 0 in `mode: observe`.",
    ),
    Family(
        "throttle_seconds",
        "counter",
        _ROW,
        "Time for which the gateway throttled or held clients, by outcome: rejected or delayed.",
    ),
    Family(
        "client_bytes",
        "counter",
        ("principal", "client_id", "outcome"),
        "Bytes of record batches by client. A client has series of its own once a broker has accepted something from "
        "it; before that, and beyond `limits.max_client_metrics`, it is counted under `other`.",
    ),
)
OTHER: Final = "other"
# Rows of these outcomes are shown at 0 for each topic, but for reasons that no topic with series of its own can have.
NO_SERIES: Final = frozenset({"protected-topic", "unknown-topic-id"})
SHOWN: Final = tuple(
    (outcome, reason)
    for outcome in OUTCOMES
    for reason in ([r for r in REASONS[outcome] if r not in NO_SERIES] if outcome in REASONS else [""])
)
_APPENDED: Final = frozenset({"accepted", "unacknowledged"})
LABEL_CHARS: Final = 256
MAX_WAITING: Final = 10_000  # rows of topics that metadata doesn't list yet
SHOWN_NOTES: Final = tuple((note, reason) for note in NOTES for reason in REASONS[note])


class TopicLabels:
    """The one gate for series with a topic's name: pairs of broker and topic that metadata lists, or that a broker has
    accepted something for, as far as there is room. A pair that has got through stays: counters don't go back.

    `known`: the pairs that metadata lists, of all brokers.
    """

    def __init__(self, most: int) -> None:
        self.known: frozenset[str] = frozenset()
        self._most = most
        self._pairs: set[tuple[int, str]] = set()
        self._named: set[str] = set()  # their topics

    def is_unknown(self, row: Row) -> bool:
        """Whether it is too early to say that there is no such topic."""
        return row.outcome != "accepted" and row.topic not in self.known and row.topic not in self._named

    def label(self, row: Row) -> str:
        pair = (row.broker, row.topic)
        if pair not in self._pairs:
            if self.is_unknown(row) or len(self._pairs) >= self._most:
                return OTHER
            self._pairs.add(pair)
            self._named.add(row.topic)
        return row.topic

    def choose(self, brokers: Iterable[BrokerRate]) -> dict[int, list[TopicRate]]:
        """Of rates, which hold for now and take no place: the busiest vouched for, by broker."""
        vouched = (
            (broker.node_id, topic)
            for broker in brokers
            for topic in broker.topics
            if topic.topic in self.known or topic.topic in self._named
        )
        chosen: dict[int, list[TopicRate]] = defaultdict(list)
        for node_id, topic in heapq.nlargest(self._most, vouched, key=lambda pair: pair[1].rate):
            chosen[node_id].append(topic)
        return chosen


class ProducedSeries:
    """Counts rows of intervals.

    Args:
        counters: by name; those that are used have the labels of PRODUCED.
        max_clients: pairs of principal and client id with series of their own.
    """

    def __init__(self, counters: Mapping[str, Counter], topics: TopicLabels, max_clients: int) -> None:
        self._counters = counters
        self._topics = topics
        self._max_clients = max_clients
        self._waiting: list[tuple[int, Row]] = []  # of topics that may be new, with the look at which they came
        self._looks = 0
        self._clients: dict[tuple[str, str], tuple[str, str]] = {}  # as they are -> as labels
        self._shown: set[tuple[int, str]] = set()

    def add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            if self._topics.is_unknown(row) and len(self._waiting) < MAX_WAITING:
                self._waiting.append((self._looks, row))
            else:
                self._add(row)

    def look_again(self) -> None:
        """The cluster has been asked once more: a topic that is new may be known by now. Its bytes meanwhile are
        counted under its name; a topic unknown for two looks is `other`.
        """
        self._looks += 1
        waiting, self._waiting = self._waiting, []
        for since, row in waiting:
            if self._topics.is_unknown(row) and self._looks - since < 2:
                self._waiting.append((since, row))
            else:
                self._add(row)

    def _add(self, row: Row) -> None:
        topic = self._topics.label(row)
        if row.outcome in _APPENDED and topic != OTHER:
            self._show_topic(row.broker, topic)
        if row.outcome in (DELAYED, "rejected"):
            labels = (broker_label(row.broker), topic, row.outcome, row.reason)
            self._counters["throttle_seconds"].labels(*labels).inc(row.delay_ms / 1000)
        if row.outcome in NOTES:
            self._add_note(row.broker, topic, row.outcome, row.reason, row.bytes, row.requests)
            return
        self._add_row(row.broker, topic, row.outcome, row.reason, row.bytes, row.messages, row.requests)
        self._add_repeats(row.broker, topic, row.repeats or 0, row.bytes if row.repeats is None else 0)
        client = self._label_client(row, is_vouched=row.outcome == "accepted" or topic != OTHER)
        self._counters["client_bytes"].labels(*client, row.outcome).inc(row.bytes)

    def _label_client(self, row: Row, *, is_vouched: bool) -> tuple[str, str]:
        """From the first bytes that get in, into a topic that there is: made-up names take no topic's place."""
        client = (row.principal, row.client_id)
        if client not in self._clients:
            if not is_vouched or row.outcome not in _APPENDED or len(self._clients) >= self._max_clients:
                return OTHER, OTHER
            self._clients[client] = one_line(row.principal, LABEL_CHARS), one_line(row.client_id, LABEL_CHARS)
        return self._clients[client]

    def _show_topic(self, broker: int, topic: str) -> None:
        # With the first byte that gets in a topic has all it can have, at 0, so that a later rejection is an increase.
        # Not before: it is 86 series, and a cluster has thousands of topics without a producer at this gateway.
        if (broker, topic) in self._shown:
            return
        self._shown.add((broker, topic))
        self._add_repeats(broker, topic, 0, 0)
        for outcome, reason in SHOWN:
            self._add_row(broker, topic, outcome, reason, 0, 0, 0)
        for note, reason in SHOWN_NOTES:
            self._add_note(broker, topic, note, reason, 0, 0)
        for outcome, reason in (*SHOWN, *SHOWN_NOTES):
            if outcome in (DELAYED, "rejected"):
                self._counters["throttle_seconds"].labels(broker_label(broker), topic, outcome, reason)

    def _add_row(
        self, broker: int, topic: str, outcome: str, reason: str, size: int, messages: int, requests: int
    ) -> None:
        labels = (broker_label(broker), topic, outcome, reason)
        self._counters["produce_bytes"].labels(*labels).inc(size)
        self._counters["produce_messages"].labels(*labels).inc(messages)
        self._counters["produce_requests"].labels(*labels).inc(requests)

    def _add_repeats(self, broker: int, topic: str, size: int, unknown: int) -> None:
        self._counters["produce_repeats_bytes"].labels(broker_label(broker), topic).inc(size)
        self._counters["produce_repeats_unknown_bytes"].labels(broker_label(broker), topic).inc(unknown)

    def _add_note(self, broker: int, topic: str, note: str, reason: str, size: int, requests: int) -> None:
        labels = (broker_label(broker), topic, note, reason)
        self._counters["policy_bytes"].labels(*labels).inc(size)
        self._counters["policy_requests"].labels(*labels).inc(requests)


def broker_label(node_id: int) -> str:
    return "unknown" if node_id < 0 else str(node_id)
