# Values of the usage topic by librdkafka, in parts: the newest first.

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from gateway.audit.errors import AuditError
from gateway.audit.local.spool import ValueBatch
from gateway.audit.topic_range import READ_TIMEOUT_S, TopicRange, describe_topic
from gateway.kafka.describe import NO_ANSWER_ERRORS

_BATCH_VALUES: Final = 1000
_FILL_S: Final = 0.05  # how long a batch is waited for to be full: the last one of a range never is
# librdkafka tries again by itself; if it is in vain, time runs out. The group's coordinator isn't needed.
_PASSING_ERRORS: Final = frozenset(
    {*NO_ANSWER_ERRORS, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError.GROUP_AUTHORIZATION_FAILED}
)


class TopicSource(TopicRange):
    """The usage topic, to be read. With `from_ms` (Unix ms) its first part has all records of intervals from then on,
    and a little more; the last part reaches back to the earliest offset.
    """

    def __init__(
        self, bootstrap_servers: str, topic: str, properties: Mapping[str, str], from_ms: int | None = None
    ) -> None:
        """Raises as TopicRange does."""
        super().__init__(bootstrap_servers, topic, properties)
        ends = {partition: end for partition, (_, end) in self.offsets.items()}
        self._parts = [
            {partition: (start, before[partition]) for partition, start in starts.items()}
            for before, starts in pairwise([ends, *self.find_part_starts(from_ms)])
        ]
        self._parts_begun = 0
        self.sizes = [sum(end - start for start, end in part.values()) for part in self._parts]  # records

    @property
    def description(self) -> dict[str, Any]:
        """The source in a report, as far as it has been read."""
        starts = self._parts[max(self._parts_begun - 1, 0)]
        read = {partition: (starts[partition][0], end) for partition, (_, end) in self.offsets.items()}
        return describe_topic(self._access.servers, self.topic, read)

    def read_batches(self, part: int = 0) -> Iterator[ValueBatch]:
        """All values of a part.

        Raises:
            AuditError: they can't be read to the end, or some have gone.
        """
        self._parts_begun = max(self._parts_begun, part + 1)
        consumer = self.open_consumer()
        try:
            yield from self._read_range(consumer, self._parts[part])
        except KafkaException as error:
            raise AuditError(self.explain_failure(error.args[0], is_reading=True)) from None
        finally:
            consumer.close()

    def _read_range(self, consumer: Consumer, offsets: Mapping[int, tuple[int, int]]) -> Iterator[ValueBatch]:
        ends = {partition: end for partition, (start, end) in offsets.items() if end > start}
        consumer.assign([TopicPartition(self.topic, at, offsets[at][0]) for at in ends])
        came = time.monotonic()
        while ends:
            messages = [each for each in consumer.consume(_BATCH_VALUES, _FILL_S) if self._belongs(each, ends)]
            if messages:
                came = time.monotonic()
                yield self._make_batch(messages)
            elif time.monotonic() - came > READ_TIMEOUT_S:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def _belongs(self, message: Message, ends: dict[int, int]) -> bool:
        """Whether it is a record of the range. Of a partition that has been read to its end, none is any more."""
        error = message.error()
        if error is not None and error.code() in _PASSING_ERRORS:
            return False
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        end = ends.get(partition, 0)
        # Its last offsets may have no record: compaction, or the marker of a transaction.
        if offset >= end - 1 if error is None else offset >= end:
            ends.pop(partition, None)
        return error is None and offset < end

    def _make_batch(self, messages: list[Message]) -> ValueBatch:
        def find_origin(number: int) -> str:
            return f"{self.topic}-{messages[number].partition()}@{messages[number].offset()}"

        values: list[Any] = [message.value() for message in messages]
        return ValueBatch(values, find_origin, len(values))
