# The volume topic as the gateway reads it: every partition from the beginning, then on, without a group's offsets, so
# that each start sees the last snapshot of every broker that compaction has kept. Also how the topic is made.
#
# Driven by one thread at a time through `poll`, which never waits longer than it was told: metadata is asked for in the
# background. The topic may not exist yet, get partitions, be deleted and made again (told by its id; then everything is
# read anew; what was read before stays with the caller and ages). A record that is no snapshot is left out, so the
# broker's last valid one ages as well; each kind of fault is logged once, all are counted.
#
# librdkafka has no consumer without a group id. This one is never joined nor committed to, but its coordinator is
# looked up; where that is forbidden, reading goes on without it.
# Knows no policy: whether a snapshot is fresh enough is policies/storage.py's.

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from gateway.describe import describe_topic, find_controller
from gateway.storage.snapshot import InvalidSnapshot, broker_of, decode
from policies.storage import Snapshot

log = logging.getLogger("gateway.storage")

DEFAULT_TOPIC: Final = "__produce_gateway_volumes"
METADATA_S: Final = 5.0  # how soon new partitions and a new topic of the same name are seen
RETRY_S: Final = 1.0
REQUEST_TIMEOUT_S: Final = 5.0
CREATE_TIMEOUT_S: Final = 15.0
POLL_S: Final = 0.1  # while metadata is under way
MAX_RECORDS: Final = 1000  # of one poll
MAX_KINDS: Final = 100  # of invalid records that are logged
NO_TOPIC: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
)
# A broker writes some three thousand snapshots a day, and compaction leaves a segment alone until it is closed.
TOPIC_CONFIG: Final = {"cleanup.policy": "compact", "segment.ms": "600000", "min.cleanable.dirty.ratio": "0.1"}


class TopicError(Exception):
    """The volume topic can't be had; one line, why."""


class SnapshotReader:
    """Reads `topic`. `properties`: librdkafka's, `bootstrap.servers` among them.

    Attributes:
        connected: the cluster answered the last time.
        caught_up: the end of every partition has been reached once.
        invalid: records that were no snapshots, so far.
    """

    def __init__(self, properties: Mapping[str, Any], topic: str) -> None:
        quiet = {"log_level": 2, "reconnect.backoff.max.ms": 2000, **properties}
        self._topic = topic
        self._admin = AdminClient(quiet)
        self._consumer = Consumer(
            {
                "group.id": "produce-gateway-volumes",
                **quiet,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "error_cb": self._on_error,
            }
        )
        self._topic_id: object = None
        self._partitions: set[int] = set()
        self._behind: set[int] = set()  # partitions whose end has not been reached
        self._asked: Future[Any] | None = None
        self._ask_at = 0.0
        self._last_error = ""
        self._troubles: set[str] = set()  # what was logged and isn't over
        self._kinds: set[str] = set()
        self.connected = False
        self.caught_up = False
        self.invalid = 0

    def poll(self, timeout_s: float) -> list[tuple[int, Snapshot | None]]:
        """Snapshots that came, in order, by broker id; None takes the broker's back. Empty after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        found: list[tuple[int, Snapshot | None]] = []
        while True:
            self._refresh()
            left = max(0.0, deadline - time.monotonic())
            message = self._consumer.poll(left if self._asked is None else min(left, POLL_S))
            while message is not None:
                self._take(message, found)
                message = self._consumer.poll(0) if len(found) < MAX_RECORDS else None
            if found or time.monotonic() >= deadline:
                return found

    def close(self) -> None:
        self._consumer.close()
        self.connected = False

    # --- records ------------------------------------------------------------------------------------------------------

    def _take(self, message: Message, found: list[tuple[int, Snapshot | None]]) -> None:
        error = message.error()
        if error is not None:
            self._take_error(error, message.partition())
            return
        self.connected = True
        key, value = message.key(), message.value()
        key = key.encode() if isinstance(key, str) else key
        try:
            if value is None:
                found.append((broker_of(key), None))
            else:
                snapshot = decode(value.encode() if isinstance(value, str) else value, key or b"")
                found.append((snapshot.broker_id, snapshot))
        except InvalidSnapshot as fault:
            self.invalid += 1
            if fault.kind not in self._kinds and len(self._kinds) < MAX_KINDS:
                self._kinds.add(fault.kind)
                where = f"{self._topic}, partition {message.partition()} offset {message.offset()}"
                log.warning(
                    "volume snapshots: %s is no snapshot: %s (more of this kind are only counted)", where, fault
                )

    def _take_error(self, error: KafkaError, partition: int | None) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            self._behind.discard(-1 if partition is None else partition)
            if self._partitions and not self._behind:
                self.caught_up = True
        elif error.code() in NO_TOPIC:
            self._ask_at = 0.0
        elif error.code() not in (KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError._ALL_BROKERS_DOWN):
            self._complain(error.name(), f"can't be read ({error.str()})")

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.connected = False
            self._ask_at = min(self._ask_at, time.monotonic() + RETRY_S)
        else:
            self._last_error = error.str()

    # --- partitions ---------------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        now = time.monotonic()
        if self._asked is None:
            if now >= self._ask_at:
                topics = TopicCollection([self._topic])
                self._asked = self._admin.describe_topics(topics, request_timeout=REQUEST_TIMEOUT_S)[self._topic]
            return
        if not self._asked.done():
            return
        asked, self._asked, self._ask_at = self._asked, None, now + METADATA_S
        try:
            described = asked.result()
        except KafkaException as exception:
            self._ask_at = now + RETRY_S
            self._note_failure(exception.args[0])
            if exception.args[0].code() not in NO_TOPIC:
                find_controller(self._admin, REQUEST_TIMEOUT_S)
            return
        self.connected = True
        self._follow(str(described.topic_id), {partition.id for partition in described.partitions})
        if self._troubles:
            log.info("volume snapshots: topic %s is read now", self._topic)
            self._troubles.clear()

    def _note_failure(self, error: KafkaError) -> None:
        if error.code() in NO_TOPIC:
            self.connected = True
            self._complain("absent", "does not exist; waiting for it")
            if self._partitions:
                self._consumer.unassign()
                self._topic_id, self._partitions, self._behind = None, set(), set()
        else:
            self.connected = False
            self._complain("down", f"can't be looked up ({self._last_error or error.str()})")

    def _follow(self, topic_id: str, partitions: set[int]) -> None:
        if topic_id != self._topic_id or not self._partitions <= partitions:
            if self._topic_id is not None:
                log.warning("volume snapshots: topic %s was made anew; reading it from the beginning", self._topic)
            self._topic_id = topic_id
            self._partitions, self._behind = set(partitions), set(partitions)
            self._consumer.assign(self._from_beginning(partitions))
        elif fresh := partitions - self._partitions:
            self._partitions |= fresh
            self._behind |= fresh
            self._consumer.incremental_assign(self._from_beginning(fresh))

    def _from_beginning(self, partitions: Iterable[int]) -> list[TopicPartition]:
        return [TopicPartition(self._topic, partition, OFFSET_BEGINNING) for partition in sorted(partitions)]

    def _complain(self, kind: str, text: str) -> None:
        if kind not in self._troubles:
            self._troubles.add(kind)
            log.warning("volume snapshots: topic %s %s", self._topic, text)


def ensure_topic(properties: Mapping[str, Any], topic: str, replication: int | None = None) -> str:
    """Create the topic, compacted, if there is none; blocks for up to 30 s.

    `replication`: copies; None = 3, or the number of brokers where that is less.

    Returns:
        What is wrong with a topic that exists already: one line, "" for nothing.

    Raises:
        TopicError: there is no topic after this.
    """
    admin = AdminClient({"log_level": 2, **properties})
    try:
        try:
            describe_topic(admin, topic, REQUEST_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() not in NO_TOPIC:
                raise
            copies = replication or min(3, len(admin.list_topics(timeout=REQUEST_TIMEOUT_S).brokers))
            _create(admin, topic, copies)
    except KafkaException as error:
        raise TopicError(f"topic {topic} can't be had: {error.args[0].str()}") from error
    except TimeoutError as error:
        raise TopicError(f"topic {topic} can't be had: no answer") from error
    return _judge(admin, topic)


def _create(admin: AdminClient, topic: str, copies: int) -> None:
    config = TOPIC_CONFIG | ({"min.insync.replicas": "2"} if copies >= 3 else {})
    try:
        _result(admin.create_topics([NewTopic(topic, 1, copies, config=config)])[topic])
        log.info("topic %s created: compacted, replication factor %d", topic, copies)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:  # another agent was quicker
            raise


def _judge(admin: AdminClient, topic: str) -> str:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    try:
        entries = _result(admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)[resource])
    except (KafkaException, TimeoutError) as error:
        log.debug("configuration of topic %s: %s", topic, error)  # no right to see it: not worth a complaint
        return ""
    policy = str(entries["cleanup.policy"].value)
    if "compact" in policy.split(","):
        return ""
    return (
        f"topic {topic} is not compacted (cleanup.policy={policy}), so it grows, or forgets brokers:"
        f" kafka-configs.sh --alter --topic {topic} --add-config cleanup.policy=compact"
    )


def _result(future: Future[Any]) -> Any:
    return future.result(timeout=CREATE_TIMEOUT_S)
