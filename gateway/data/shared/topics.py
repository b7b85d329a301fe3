# Topics as the requests of one connection name them, and their meters.

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING

from policies.meters.broker_meters import OTHER_TOPICS
from protocol import api

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.data.shared.worker_state import WorkerState
    from policies.meters.broker_meters import BrokerMeters
    from policies.meters.topic_meter import TopicMeter
    from protocol.produce.produce_request import PartitionBatch

_TOPIC_PATTERN = re.compile(
    rb"[a-zA-Z0-9._-]{1,249}"
)  # org.apache.kafka.common.internals.Topic: no broker takes another
_UNNAMED_PREFIX = b"topic-id:"  # before an id whose name is unknown
_COUNTED_PATTERN = re.compile(rb"%s|topic-id:[\w-]{22}" % _TOPIC_PATTERN.pattern)
INVALID_TOPIC = "<invalid>"  # all others are counted under this: no topic has such a name
MAX_REFUSED_IDS = 8  # of one connection that are remembered: each is compared with each partition


class ConnectionTopics:
    """The topics of one connection, all on one broker.

    `by_name` and `by_id` are for the hot path: they map the topic as requests name it (name, or id from v13 on) to its
    meter. They have only topics that every client may produce to, so these pass without a further check.
    `refused_ids`: ids under which batches were rejected, as their names were not known; with what stood in for these.
    """

    __slots__ = ("_broker", "_world", "by_id", "by_name", "refused_ids")

    def __init__(self, world: WorkerState, broker: BrokerMeters) -> None:
        self._world = world
        self._broker = broker
        self.by_name: dict[bytes, TopicMeter] = {}
        self.by_id: dict[bytes, TopicMeter] = {}
        self.refused_ids: dict[bytes, bytes] = {}

    def reset_meters(self) -> None:
        """Meters may have gone: look them up again."""
        self.by_name.clear()
        self.by_id.clear()

    def resolve_name(self, topic: bytes, version: int) -> bytes:
        """The topic's name, given its name or id in the request."""
        if version < api.PRODUCE_TOPIC_IDS:
            return topic
        return self._world.cluster.topic_ids.get(topic) or _name_for_id(topic)

    def list_names(self, topic: bytes, version: int, *, possible: bool = False) -> list[bytes]:
        """All that `resolve_name` may have given for that topic, by its name or its id: an id's name becomes known
        later. `possible`: with the refused ids whose names are not known yet.
        """
        name = self.resolve_name(topic, version)
        if version >= api.PRODUCE_TOPIC_IDS:
            return [name, _name_for_id(topic)]
        if not self.refused_ids:
            return [name]
        name_of = self._world.cluster.topic_ids.get
        return [
            name,
            *(other for each, other in self.refused_ids.items() if name_of(each, name if possible else b"") == name),
        ]

    def find_unnamed(self, parts: Iterable[PartitionBatch]) -> frozenset[bytes]:
        """Topic ids in a request (v13 on) whose names are not known yet."""
        known = self._world.cluster.topic_ids
        return frozenset(part[0] for part in parts if part[0] not in known)

    def find_unnamed_refused(self) -> frozenset[bytes]:
        """Refused ids whose names are not known yet."""
        known = self._world.cluster.topic_ids
        return frozenset(each for each in self.refused_ids if each not in known)

    def record_refused_id(self, topic_id: bytes) -> None:
        """A batch was rejected under this id, whose name is not known."""
        if topic_id not in self.refused_ids and len(self.refused_ids) >= MAX_REFUSED_IDS:
            del self.refused_ids[next(iter(self.refused_ids))]
        self.refused_ids[topic_id] = _name_for_id(topic_id)

    def find_meter(self, topic: bytes, version: int) -> TopicMeter:
        """The meter of a topic that every client may produce to."""
        meters = self.by_id if version >= api.PRODUCE_TOPIC_IDS else self.by_name  # an id may look like a name
        meter = meters.get(topic)
        if meter is None:
            name = self.resolve_name(topic, version)
            assert name not in self._world.protected_topics, "the hot path would let the next request pass"
            if not is_valid_name(name):
                name = OTHER_TOPICS
            meter = self._broker.topics.get(name) or self._broker.add_topic(name)
            if meter.is_confirmed:  # names that clients make up must not fill a connection's memory
                meters[topic] = meter
        return meter


def is_valid_name(name: bytes) -> bool:
    """Whether a topic may have that name."""
    return _TOPIC_PATTERN.fullmatch(name) is not None


def is_counted_name(name: bytes) -> bool:
    """Whether a topic is counted under this text: a possible topic name, or the id of an unknown topic."""
    return _COUNTED_PATTERN.fullmatch(name) is not None


def shown_name(name: bytes) -> str:
    """The text under which a topic is counted and shown."""
    return name.decode("ascii") if is_counted_name(name) else INVALID_TOPIC


def _name_for_id(topic_id: bytes) -> bytes:
    """Stands in for an unknown name: the id as Kafka prints it."""
    return _UNNAMED_PREFIX + urlsafe_b64encode(topic_id).rstrip(b"=")
