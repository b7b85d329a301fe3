# Metadata from the upstream cluster's brokers: who they are, which topics each leads, topic ids. Asks by librdkafka's
# AdminClient in a thread; knows no client connections and no listeners.

from __future__ import annotations

import logging
import struct
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import trio
from confluent_kafka import KafkaError, KafkaException

from gateway.kafka.client_files import RenewableClient
from gateway.kafka.describe import NO_ANSWER_ERRORS, NO_TOPIC_ERRORS, describe_topics, make_admin_client
from gateway.kafka.reach import explain_unreachable
from policies.definitions.policy_values import TopicId, TopicIds
from policies.engine import INTERNAL_TOPICS
from policies.storage import ReplicaShare, ReplicaSpread
from policies.text import one_line
from protocol.admin.topic_deletion import topic_id_text

log = logging.getLogger("gateway.cluster")

REQUEST_TIMEOUT_S: Final = 5.0
EXPLAIN_TIMEOUT_S: Final = 3.0
EXPLAIN_CHARS: Final = 600  # three bootstrap servers or so
DESCRIBE_AT_ONCE: Final = 500
DESCRIBE_AGAIN_S: Final = 60.0  # after a failure: older brokers and missing rights don't change by the second


_Placement = dict[str, list[tuple[int, ...]]]  # by topic, of each partition its leader (-1: none) and its replicas


class ClusterUnreachable(Exception):
    """No broker answered; the text says why."""


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """The last metadata: brokers by node id, topics by the node id of a leader, names by topic id.

    `places`: by node id, also of brokers that are away, the topics that have a partition there, hidden ones included:
    the broker leads it, or should by its assignment, where it is the first replica. `replicas`: likewise, the topics
    with any replica there; a partition that moves has one at either end. Empty where it isn't needed. `spread`:
    how much of each topic that is, and who leads it; None likewise. `topic_ids`: of the watched topics, as this look
    found them. `cluster_id`: Kafka's, "" if it tells none.
    """

    brokers: dict[int, tuple[str, int]] = field(default_factory=dict)
    leads: dict[int, tuple[str, ...]] = field(default_factory=dict)
    ids: dict[bytes, str] = field(default_factory=dict)
    places: dict[int, frozenset[str]] = field(default_factory=dict)
    replicas: dict[int, frozenset[str]] = field(default_factory=dict)
    spread: ReplicaSpread | None = None
    topic_ids: TopicIds = field(default_factory=dict)
    cluster_id: str = ""


class MetadataSource(Protocol):
    async def fetch_metadata(self) -> ClusterMetadata:
        """The cluster's present metadata.

        Raises:
            ClusterUnreachable: no broker answered.
        """

    async def fetch_topic_ids(self, topics: Collection[str]) -> TopicIds:
        """The present ids of these topics; none, if there are many of them or the cluster doesn't answer."""
        ...


class AdminSource:
    """Asks by confluent-kafka. `client`: librdkafka properties; `topic_ids`: learn them of all topics; `replicas`: tell
    where every replica is; `spread`: tell how topics are spread over brokers; `watched`: topics whose ids are learned
    at every look, of many some at each.

    `own_topics` are left out of the topics that brokers lead. Their ids are learned in any case, at every look, and
    kept for good: a client could name a protected topic by its id alone, and a topic that was made anew has another
    one.
    """

    def __init__(
        self,
        client: dict[str, Any],
        own_topics: Iterable[str] = (),
        *,
        topic_ids: bool = True,
        replicas: bool = False,
        spread: bool = False,
        watched: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._error = ""
        self._client = client
        self._is_explained = False  # why it doesn't answer
        self._admin = RenewableClient(client, lambda: make_admin_client({**client, "error_cb": self._on_error}))
        self._own_topics = frozenset(own_topics)
        self._hidden = self._own_topics.union(INTERNAL_TOPICS)
        self._ids: dict[str, bytes] = {}
        self._own_ids: dict[bytes, str] = {}
        self._learns_all = topic_ids
        self._describe_from = 0.0
        self._watched = watched
        self._next_watched = 0
        self._cluster_id = ""
        self._last_metadata: tuple[dict[int, tuple[str, int]], dict[bytes, str], _Placement, TopicIds] | None = None
        self._view = ClusterMetadata()  # of that
        self._with_replicas = replicas
        self._with_spread = spread

    async def fetch_metadata(self) -> ClusterMetadata:
        # Abandoned when cancelled: a cluster that doesn't answer must not hold up a stop.
        try:
            view = await trio.to_thread.run_sync(self._fetch_blocking, abandon_on_cancel=True)
        except ClusterUnreachable:
            if self._is_explained:
                raise
            self._is_explained = True
            found = await explain_unreachable(self._client, self._client["bootstrap.servers"], EXPLAIN_TIMEOUT_S)
            if not found:
                raise
            raise ClusterUnreachable(one_line(found, EXPLAIN_CHARS)) from None
        self._is_explained = False
        return view

    def _fetch_blocking(self) -> ClusterMetadata:
        self._admin.renew()
        admin = self._admin.client
        try:
            metadata = admin.list_topics(timeout=REQUEST_TIMEOUT_S)
        except KafkaException as error:
            admin.poll(0)  # serves error_cb, which knows the cause
            raise ClusterUnreachable(self._error or error.args[0].str()) from error
        brokers = {
            node_id: (str(broker.host), broker.port) for node_id, broker in metadata.brokers.items() if node_id >= 0
        }
        names = [name for name in metadata.topics if name not in self._hidden]
        self._cluster_id = metadata.cluster_id or ""
        watched = self._learn_ids(names, sorted(self._own_topics.intersection(metadata.topics)))
        ids = {topic_id: name for name, topic_id in self._ids.items()} | self._own_ids
        placement = {
            name: [(each.leader, *each.replicas) for each in topic.partitions.values()]
            for name, topic in metadata.topics.items()
        }
        # The same object where nothing has changed: that is nearly always so, and costs nothing more then.
        if (brokers, ids, placement, watched) != self._last_metadata or self._cluster_id != self._view.cluster_id:
            self._last_metadata = brokers, ids, placement, watched
            self._view = self._make_view(*self._last_metadata)
        return self._view

    def _make_view(
        self, brokers: dict[int, tuple[str, int]], ids: dict[bytes, str], placement: _Placement, watched: TopicIds
    ) -> ClusterMetadata:
        leads: dict[int, list[str]] = {node_id: [] for node_id in brokers}
        places: dict[int, set[str]] = defaultdict(set, {node_id: set() for node_id in brokers})
        replicas: dict[int, set[str]] = defaultdict(set)
        for name, partitions in placement.items():
            for node_id in {node_id for nodes in partitions for node_id in nodes[:2]}:
                places[node_id].add(name)
        placement = {name: placement[name] for name in sorted(placement.keys() - self._hidden)}
        for name, partitions in placement.items():
            for node_id in leads.keys() & {leader for leader, *_ in partitions}:
                leads[node_id].append(name)
            for node_id in {node_id for _, *nodes in partitions for node_id in nodes} if self._with_replicas else ():
                replicas[node_id].add(name)
        places.pop(-1, None)  # no leader
        return ClusterMetadata(
            brokers,
            {node_id: tuple(topics) for node_id, topics in leads.items()},
            ids,
            {node_id: frozenset(topics) for node_id, topics in places.items()},
            {node_id: frozenset(topics) for node_id, topics in replicas.items()},
            _make_spread(placement) if self._with_spread else None,
            watched,
            self._cluster_id,
        )

    def _on_error(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._error = error.str()

    async def fetch_topic_ids(self, topics: Collection[str]) -> TopicIds:
        if len(topics) > DESCRIBE_AT_ONCE or time.monotonic() < self._describe_from:
            return {}
        try:
            found = await trio.to_thread.run_sync(self._describe_topics, sorted(topics), abandon_on_cancel=True)
        except (KafkaException, TimeoutError) as error:
            log.debug("topic ids: %s", error)
            return {}
        return {name: self._make_topic_id(topic_id) for name, topic_id in found.items()}

    def _make_topic_id(self, topic_id: bytes) -> TopicId:
        return TopicId(self._cluster_id, topic_id_text(topic_id))

    def _describe_topics(self, topics: Sequence[str]) -> dict[str, bytes]:
        """Topic ids, without topics that don't exist, or whose broker doesn't know topic ids yet.

        Raises:
            KafkaException, TimeoutError: some are not known.
        """
        found = {}
        for name, answer in describe_topics(self._admin.client, topics, REQUEST_TIMEOUT_S).items():
            if isinstance(answer, KafkaException):
                if answer.args[0].code() not in NO_TOPIC_ERRORS:
                    raise answer
                continue  # deleted since the brokers named it
            topic_id = answer.topic_id
            high, low = topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits()
            if high or low:
                found[name] = struct.pack(">qq", high, low)
        return found

    def _learn_ids(self, names: list[str], own: list[str]) -> TopicIds:
        """Learn ids of topics that are new since the last time (workers would otherwise learn them from clients'
        metadata), and the present ids of the gateway's own topics and of watched ones. Returns the latter.
        """
        self._ids = {name: self._ids[name] for name in names if name in self._ids}
        unknown = [name for name in names if name not in self._ids][:DESCRIBE_AT_ONCE] if self._learns_all else []
        watched = self._choose_watched(set(self._watched()).intersection(names))
        asked = {*own, *unknown, *watched}
        if not asked or time.monotonic() < self._describe_from:
            return {}
        try:
            found = self._describe_topics(sorted(asked))
            self._own_ids |= {found[name]: name for name in own if name in found}
            self._ids |= {name: topic_id for name, topic_id in found.items() if name in self._ids or name in unknown}
            return {name: self._make_topic_id(found[name]) for name in watched if name in found}
        except KafkaException as error:
            log.debug("topic ids: %s", error)
            if error.args[0].code() not in NO_ANSWER_ERRORS:
                self._describe_from = time.monotonic() + DESCRIBE_AGAIN_S
        except TimeoutError:
            log.debug("topic ids: no answer")
        return {}

    def _choose_watched(self, watched: Collection[str]) -> list[str]:
        """The watched topics to ask for now."""
        first = self._next_watched if self._next_watched < len(watched) else 0
        self._next_watched = first + DESCRIBE_AT_ONCE
        return sorted(watched)[first : self._next_watched]


def _make_spread(placement: _Placement) -> ReplicaSpread:
    here: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    feeds: dict[int, set[int]] = defaultdict(set)
    for name, partitions in placement.items():
        for leader, *nodes in partitions:
            for node_id in nodes:
                here[node_id][name] += 1
                if leader >= 0:
                    feeds[node_id].add(leader)
    shares = {
        node_id: {name: ReplicaShare(count, len(placement[name])) for name, count in counts.items()}
        for node_id, counts in here.items()
    }
    return ReplicaSpread(shares, {node_id: frozenset(leaders) for node_id, leaders in feeds.items()})
