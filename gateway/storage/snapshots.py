# The volume topic as the gateway reads it: every partition from the beginning, then on, without a group's offsets, so
# that each start sees the last snapshot of every broker that compaction has kept. Also how the topic is made.
#
# Driven by one thread at a time through `poll`, which never waits longer than it was told: the topic is looked up in
# the background. It may not exist yet, get partitions, be deleted and made again (then everything is read anew; what
# was read before stays with the caller and ages). A record that is no snapshot is left out, so the broker's last valid
# one ages as well; each kind of fault is logged once, all are counted.
#
# Knows no policy: whether a snapshot is fresh enough is policies/storage/'s.

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, TopicPartition

from gateway.kafka.client_files import RenewableClient
from gateway.kafka.describe import NO_TOPIC_ERRORS
from gateway.kafka.internal_topic import (
    RETRY_S,
    EssentialConfig,
    InternalTopic,
    TopicAbsent,
    TopicLookup,
    TopicPresent,
    TopicSpec,
    TopicUnreachable,
    TroubleLog,
    error_reason,
)
from gateway.kafka.topic_consumer import IGNORED_READ_ERRORS, make_topic_consumer
from gateway.storage.snapshot import InvalidVolumeSnapshot, decode_snapshot, parse_broker_key
from policies.storage import VolumeSnapshot

log = logging.getLogger("gateway.storage")

READING: Final = {"auto.offset.reset": "earliest", "enable.partition.eof": True}
POLL_S: Final = 0.1  # while metadata is under way
MAX_RECORDS: Final = 1000  # of one poll
MAX_FAULT_KINDS: Final = 100  # of invalid records that are logged
TOPIC_SPEC: Final = TopicSpec(
    # A broker writes some three thousand snapshots a day, and compaction leaves a segment alone until it is closed.
    {"cleanup.policy": "compact", "segment.ms": "600000", "min.cleanable.dirty.ratio": "0.1"},
    EssentialConfig("cleanup.policy", ("compact", "compact,delete", "delete,compact"), "it grows, or forgets brokers"),
)


def volume_topic(properties: Mapping[str, Any], name: str, replication: int | None = None) -> InternalTopic:
    """The topic that agents write and gateways read."""
    return InternalTopic({"log_level": 2, **properties}, name, TOPIC_SPEC, replication)


class SnapshotReader:
    """Reads `topic`. `properties`: librdkafka's, `bootstrap.servers` among them.

    Attributes:
        connected: the cluster answered the last time.
        caught_up: the end of every partition has been reached once.
        invalid_records: records that were no snapshots, so far.
    """

    def __init__(self, properties: Mapping[str, Any], topic: str) -> None:
        quiet = {"log_level": 2, "reconnect.backoff.max.ms": 2000, **properties}
        self._topic = InternalTopic({**quiet, "error_cb": self._on_error}, topic, TOPIC_SPEC)
        self._troubles = TroubleLog(log, "volume snapshots")
        self._consumer = RenewableClient(
            properties, lambda: make_topic_consumer(quiet, "produce-gateway-volumes", self._on_error, READING)
        )
        self._topic_id = ""
        self._is_used = False  # the consumer has read a topic
        self._partitions: set[int] = set()
        self._behind: set[int] = set()  # partitions whose end has not been reached
        self._next_offsets: dict[int, int] = {}  # by partition; the consumer knows none until it has got a record
        self._fault_kinds: set[str] = set()
        self.connected = False
        self.caught_up = False
        self.invalid_records = 0

    def poll_snapshots(self, timeout_s: float) -> list[tuple[int, VolumeSnapshot | None]]:
        """Snapshots that came, in order, by broker id; None takes the broker's back. Empty after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        found: list[tuple[int, VolumeSnapshot | None]] = []
        while True:
            if (seen := self._topic.poll_lookup()) is not None:
                self._on_topic_found(seen)
            consumer, left = self._consumer.client, max(0.0, deadline - time.monotonic())
            message = consumer.poll(min(left, POLL_S) if self._topic.is_lookup_pending else left)
            records = 0
            while message is not None:
                self._handle_message(message, found)
                records += 1  # also those that are no snapshots, or a stream of them would hold up all others
                message = consumer.poll(0) if records < MAX_RECORDS else None
            if found or time.monotonic() >= deadline:
                return found

    def close(self) -> None:
        self._consumer.client.close()
        self.connected = False

    # --- records ------------------------------------------------------------------------------------------------------

    def _handle_message(self, message: Message, found: list[tuple[int, VolumeSnapshot | None]]) -> None:
        error = message.error()
        if error is not None:
            self._handle_error(error, message.partition())
            return
        self.connected = True
        self._note_reading()
        self._next_offsets[message.partition() or 0] = (message.offset() or 0) + 1
        key, value = message.key(), message.value()
        key = key.encode() if isinstance(key, str) else key
        try:
            if value is None:
                found.append((parse_broker_key(key), None))
            else:
                snapshot = decode_snapshot(value.encode() if isinstance(value, str) else value, key or b"")
                found.append((snapshot.broker_id, snapshot))
        except InvalidVolumeSnapshot as fault:
            self.invalid_records += 1
            if fault.kind not in self._fault_kinds and len(self._fault_kinds) < MAX_FAULT_KINDS:
                self._fault_kinds.add(fault.kind)
                where = f"{self._topic.name}, partition {message.partition()} offset {message.offset()}"
                log.warning(
                    "volume snapshots: %s is not a valid snapshot: %s (more of this kind are only counted)",
                    where,
                    fault,
                )

    def _handle_error(self, error: KafkaError, partition: int | None) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            self._note_reading()
            self._behind.discard(-1 if partition is None else partition)
            if self._partitions and not self._behind:
                self.caught_up = True
        elif error.code() in NO_TOPIC_ERRORS:
            self._topic.schedule_lookup()
        elif error.code() not in IGNORED_READ_ERRORS:
            self._report_problem(error.name(), f"can't be read ({error.str()})")

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.connected = False
        self._topic.record_error(error)

    # --- partitions ---------------------------------------------------------------------------------------------------

    def _on_topic_found(self, found: TopicLookup) -> None:
        self.connected = not isinstance(found, TopicUnreachable)
        if isinstance(found, TopicPresent):
            try:
                self._follow_partitions(found)
            except KafkaException as error:  # a certificate is gone just now
                self._topic.schedule_lookup(RETRY_S)
                self._report_problem("down", f"can't be read ({error_reason(error.args[0])})")
                return
            self._renew_consumer()
            if self._troubles.kind in ("absent", "down"):  # other trouble ends with what is read
                self._note_reading()
        elif isinstance(found, TopicAbsent):
            self._report_problem("absent", "does not exist; waiting for it")
            if self._partitions:
                self._consumer.client.unassign()
                self._topic_id, self._partitions, self._behind, self._next_offsets = "", set(), set(), {}
        else:
            self._report_problem("down", f"can't be looked up ({found.why})")

    def _follow_partitions(self, found: TopicPresent) -> None:
        """
        Raises:
            KafkaException: librdkafka refuses another consumer; nothing has changed.
        """
        topic_id, partitions = found
        if topic_id != self._topic_id or not self._partitions <= partitions:
            if self._is_used:
                former = self._consumer.client
                self._consumer.replace()
                former.close()
            if self._topic_id:
                log.warning("volume snapshots: topic %s was recreated; reading it from the beginning", self._topic.name)
            self._topic_id, self._is_used = topic_id, True
            self._partitions, self._behind, self._next_offsets = set(partitions), set(partitions), {}
            self._consumer.client.assign(self._from_beginning(partitions))
        elif fresh := partitions - self._partitions:
            self._partitions |= fresh
            self._behind |= fresh
            self._consumer.client.incremental_assign(self._from_beginning(fresh))

    def _renew_consumer(self) -> None:
        """Go on with another consumer where the files of this one have changed. It must not read again what was read:
        for a moment, old snapshots would be a broker's last.
        """
        former = self._consumer.client
        if self._consumer.renew():
            former.close()
            places = self._from_beginning(self._partitions)
            for place in places:
                place.offset = self._next_offsets.get(place.partition, OFFSET_BEGINNING)
            self._consumer.client.assign(places)

    def _from_beginning(self, partitions: Iterable[int]) -> list[TopicPartition]:
        return [TopicPartition(self._topic.name, partition, OFFSET_BEGINNING) for partition in sorted(partitions)]

    def _note_reading(self) -> None:
        self._troubles.clear_trouble(f"topic {self._topic.name} is read now")

    def _report_problem(self, kind: str, text: str) -> None:
        self._troubles.report_trouble(kind, f"topic {self._topic.name} {text}")
