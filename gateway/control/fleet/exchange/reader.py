# Reads what gateways write to the topic, from where it ends when reading begins: older reports say nothing about now.
#
# Blocking calls of librdkafka happen in a thread, one at a time. Knows no message's content: that is peers.py's.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import trio
from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaException,
    Message,
    TopicPartition,
)

from gateway.control.fleet.exchange.health import ExchangeHealth
from gateway.kafka.describe import NO_TOPIC_ERRORS
from gateway.kafka.topic_consumer import IGNORED_READ_ERRORS, make_topic_consumer

OFFSET_S: Final = 0.5  # for the cluster to say where the topic ends
POLL_S: Final = 0.05
READING: Final = {
    "auto.offset.reset": "latest",
    "fetch.wait.max.ms": 100,  # of a fetch that brings nothing; what comes is answered at once
    "fetch.error.backoff.ms": 100,
    "queued.max.messages.kbytes": 16_384,
}
MAX_READ_MESSAGES: Final = 500  # messages


class ReportRecord(NamedTuple):
    """`published_ms`: when the cluster accepted it; None: not known."""

    data: bytes
    key: bytes | None
    published_ms: int | None


class ReportReader:
    """Reads nothing until it is told of a topic, by `renew_consumer` and `follow_partitions`."""

    def __init__(self, client: Mapping[str, Any], topic: str, health: ExchangeHealth) -> None:
        self._client = client
        self._topic = topic
        self._health = health
        self._consumer: Consumer | None = None
        self._partitions: frozenset[int] = frozenset()
        self._wanted_partitions: frozenset[int] | None = frozenset()  # partitions to begin with; None: it has
        self._is_stale = False  # the consumer

    @property
    def is_reading(self) -> bool:
        """Whether every message written from now on will be read."""
        return self._wanted_partitions is None

    def follow_partitions(self, partitions: frozenset[int]) -> None:
        """Read these partitions from their ends."""
        self._partitions = self._wanted_partitions = partitions

    def renew_consumer(self) -> None:
        """Read with another consumer from now on: the topic was recreated."""
        self._is_stale, self._wanted_partitions = True, self._partitions

    async def read_records(self) -> list[ReportRecord]:
        """At most MAX_READ_MESSAGES records; none after a while."""
        wanted = self._wanted_partitions
        if wanted is None:
            return self._convert_messages(await trio.to_thread.run_sync(self._poll_messages))
        if self._is_stale and not await self._replace_consumer():
            await trio.sleep(OFFSET_S)
        elif not wanted or not await trio.to_thread.run_sync(self._assign_ends, wanted):
            await trio.sleep(POLL_S)
        elif self._wanted_partitions == wanted and not self._is_stale:  # nothing else was asked for meanwhile
            self._wanted_partitions = None
        return []

    def close(self) -> None:
        """Blocks; call it in a thread."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    async def _replace_consumer(self) -> bool:
        self._is_stale = False
        try:
            await trio.to_thread.run_sync(self._open_consumer)
        except KafkaException as error:  # a certificate is gone just now
            self._is_stale = True
            self._health.record_failure(str(error))
        return not self._is_stale

    def _open_consumer(self) -> None:
        self.close()
        self._consumer = make_topic_consumer(
            self._client, "produce-gateway-resource-usage", self._health.on_error, READING
        )

    def _assign_ends(self, partitions: frozenset[int]) -> bool:
        """False: no broker reports the ends."""
        assert self._consumer is not None
        ends = [TopicPartition(self._topic, partition) for partition in sorted(partitions)]
        try:
            for end in ends:
                end.offset = self._consumer.get_watermark_offsets(end, OFFSET_S)[1]
        except KafkaException:  # the topic is looked after elsewhere
            return False
        self._consumer.assign(ends)
        return True

    def _poll_messages(self) -> list[Message]:
        assert self._consumer is not None
        found: list[Message] = []
        message = self._consumer.poll(POLL_S)
        while message is not None:
            found.append(message)
            message = self._consumer.poll(0) if len(found) < MAX_READ_MESSAGES else None
        return found

    def _convert_messages(self, messages: Sequence[Message]) -> list[ReportRecord]:
        found = []
        for message in messages:
            error = message.error()
            if error is None:
                found.append(_make_record(message))
            elif error.code() in NO_TOPIC_ERRORS:
                self._health.topic_missing.set()
            elif error.code() not in IGNORED_READ_ERRORS:
                self._health.record_kafka_error(error, "can't be read")
        return found


def _make_record(message: Message) -> ReportRecord:
    value, key = message.value() or b"", message.key()
    kind, stamp = message.timestamp()
    return ReportRecord(
        value.encode() if isinstance(value, str) else value,
        key.encode() if isinstance(key, str) else key,
        stamp if kind == TIMESTAMP_LOG_APPEND_TIME else None,
    )
