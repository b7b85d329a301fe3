# Series of what was produced, by topic and by client. The bounds of their labels: a name that a client says becomes a
# label only once a broker vouched for it, cut and within a cap; the rest is `other`.

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator, Set
from typing import Final

from gateway.channel import UsageRow
from gateway.control.metrics.family import counter, gauge
from gateway.control.metrics.lines import CounterLines, join_labels
from policies.text import one_line
from policies.thresholds.broker_limits import BrokerRate, TopicRate
from policies.usage import DELAYED, NOTES

_PLACE: Final = ("broker", "topic")
_ROW: Final = (*_PLACE, "outcome", "reason")
PRODUCED: Final = (
    counter(
        "produce_bytes",
        "Bytes of record batches in Produce requests, by outcome; their sum is what producers offered.",
        _ROW,
    ),
    counter("produce_messages", "Records in Produce requests, by outcome.", _ROW),
    counter("produce_requests", "Produce requests with the topic, by outcome.", _ROW),
    counter(
        "produce_repeats_bytes",
        "Bytes whose previous attempt was rejected. Rejected bytes minus these were not sent again.",
        _PLACE,
    ),
    counter("produce_repeats_unknown_bytes", "Bytes that may repeat a rejected attempt.", _PLACE),
    counter(
        "policy_bytes",
        "Bytes that a policy delayed or, if only observed, would have rejected or delayed; `produce_bytes_total` "
        "has them too.",
        _ROW,
    ),
    counter("policy_requests", "The same, in Produce requests.", _ROW),
    gauge(
        "policy_enforced_clients_ratio",
        "Part of the clients for which the policy (`threshold`, `quota`, `group`) is "
        "[enforced](policies.md#from-observe-to-enforce-in-steps).",
        ("policy",),
    ),
    counter("throttle_seconds", "Time for which clients were throttled or held: `rejected` or `delayed`.", _ROW),
    counter(
        "client_bytes",
        "Bytes of record batches by client; `other` until a broker has accepted something from it.",
        ("principal", "client_id", "outcome"),
    ),
)
OTHER: Final = "other"
_OTHER_CLIENT: Final = join_labels(OTHER, OTHER)
_APPENDED_OUTCOMES: Final = frozenset({"accepted", "unacknowledged"})
LABEL_CHARS: Final = 256
MAX_WAITING: Final = 10_000  # rows of topics that metadata doesn't list yet


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

    def is_unknown(self, row: UsageRow) -> bool:
        """Whether it is too early to say that there is no such topic."""
        return row.outcome != "accepted" and row.topic not in self.known and row.topic not in self._named

    def topic_label(self, row: UsageRow) -> str:
        pair = (row.broker, row.topic)
        if pair not in self._pairs:
            if self.is_unknown(row) or len(self._pairs) >= self._most:
                return OTHER
            self._pairs.add(pair)
            self._named.add(row.topic)
        return row.topic

    def choose_busiest(self, brokers: Iterable[BrokerRate]) -> dict[int, list[TopicRate]]:
        """Of rates, which hold for now and take no place: the busiest vouched for, by broker."""
        chosen = {
            broker.node_id: [
                topic for topic in broker.topics if topic.topic in self.known or topic.topic in self._named
            ]
            for broker in brokers
        }
        if sum(map(len, chosen.values())) <= self._most:
            return chosen
        vouched = [(node_id, topic) for node_id, topics in chosen.items() for topic in topics]
        chosen = {node_id: [] for node_id in chosen}
        for node_id, topic in heapq.nlargest(self._most, vouched, key=lambda pair: pair[1].rate):
            chosen[node_id].append(topic)
        return chosen


class ProducedSeries:
    """Counts rows of intervals. `max_clients`: pairs of principal and client id with series of their own."""

    def __init__(self, topics: TopicLabels, max_clients: int) -> None:
        self._counters = {
            each.name: CounterLines(each, "d" if each.name == "throttle_seconds" else "q")
            for each in PRODUCED
            if each.kind == "counter"
        }
        self._topics = topics
        self._max_clients = max_clients
        self._waiting: list[tuple[int, UsageRow]] = []  # of topics that may be new, with the look at which they came
        self._refreshes = 0
        self._clients: dict[tuple[str, str], str] = {}  # as they are -> as labels
        self._shown: set[str] = set()  # labels of brokers and topics
        self._effects: Set[tuple[str, str]] = frozenset()

    def render_text(self) -> Iterator[bytes]:
        """The part of the exposition that is about PRODUCED's counters, in pieces. In any thread."""
        return itertools.chain.from_iterable(each.render_text() for each in self._counters.values())

    def expect_effects(self, effects: Set[tuple[str, str]]) -> None:
        """The outcomes and notes that the limits in force can lead to, each with its reason. From here on a topic shows
        them at 0 before the first one; those of a limit that has gone stay.
        """
        new = effects - self._effects
        self._effects |= new
        for place in self._shown if new else ():
            self._begin_at_zero(place, new)

    def add_rows(self, rows: Iterable[UsageRow]) -> None:
        for row in rows:
            if self._topics.is_unknown(row) and len(self._waiting) < MAX_WAITING:
                self._waiting.append((self._refreshes, row))
            else:
                self._add_row(row)

    def recheck_waiting(self) -> None:
        """The cluster has been asked once more: a topic that is new may be known by now. Its bytes meanwhile are
        counted under its name; a topic unknown for two looks is `other`.
        """
        self._refreshes += 1
        waiting, self._waiting = self._waiting, []
        for since, row in waiting:
            if self._topics.is_unknown(row) and self._refreshes - since < 2:
                self._waiting.append((since, row))
            else:
                self._add_row(row)

    def _add_row(self, row: UsageRow) -> None:
        topic = self._topics.topic_label(row)
        place = join_labels(broker_label(row.broker), topic)
        if row.outcome in _APPENDED_OUTCOMES and topic != OTHER and place not in self._shown:
            self._shown.add(place)
            self._begin_at_zero(place, self._effects)
        labels = join_labels(place, row.outcome, row.reason)
        counters = self._counters
        if row.outcome in (DELAYED, "rejected"):
            counters["throttle_seconds"].add_amount(labels, row.delay_ms / 1000)
        if row.outcome in NOTES:
            counters["policy_bytes"].add_amount(labels, row.bytes)
            counters["policy_requests"].add_amount(labels, row.requests)
            return
        counters["produce_bytes"].add_amount(labels, row.bytes)
        counters["produce_messages"].add_amount(labels, row.messages)
        counters["produce_requests"].add_amount(labels, row.requests)
        if row.repeats != 0 or row.outcome == "rejected":
            self._add_repeats(place, row.repeats or 0, row.bytes if row.repeats is None else 0)
        client = self._label_client(row, is_vouched=row.outcome == "accepted" or topic != OTHER)
        counters["client_bytes"].add_amount(join_labels(client, row.outcome), row.bytes)

    def _label_client(self, row: UsageRow, *, is_vouched: bool) -> str:
        """From the first bytes that get in, into a topic that there is: made-up names take no topic's place."""
        client = (row.principal, row.client_id)
        if client not in self._clients:
            if not is_vouched or row.outcome not in _APPENDED_OUTCOMES or len(self._clients) >= self._max_clients:
                return _OTHER_CLIENT
            self._clients[client] = join_labels(*(one_line(name, LABEL_CHARS) for name in client))
        return self._clients[client]

    def _begin_at_zero(self, place: str, effects: Iterable[tuple[str, str]]) -> None:
        # Prometheus sees no increase in the first value of a series, and an alert on lost bytes must not miss the first
        # ones. So bytes that limits in force can reject, delay or drop are there at 0 before. Not all else: messages
        # and requests are in no alert, and with every outcome and reason it would be 86 series. And not before a byte
        # got in: a cluster has thousands of topics without a producer at this gateway.
        for effect in effects:
            name = "policy_bytes" if effect[0] in NOTES else "produce_bytes"
            self._counters[name].add_amount(join_labels(place, *effect), 0)
            if effect[0] == "rejected":
                self._add_repeats(place, 0, 0)

    def _add_repeats(self, place: str, size: int, unknown: int) -> None:
        self._counters["produce_repeats_bytes"].add_amount(place, size)
        self._counters["produce_repeats_unknown_bytes"].add_amount(place, unknown)


def broker_label(node_id: int) -> str:
    return "unknown" if node_id < 0 else str(node_id)
