# Values of the usage topic by librdkafka, from the earliest offset to the end as of now: the range that job.read_topic
# takes. The Java client's properties are translated, or refused where librdkafka has no such thing.
#
# librdkafka has no consumer without a group id. This one is neither joined nor committed to.

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from gateway.audit.errors import RECORDS_GONE, AuditError
from gateway.audit.local.spool import ValueBatch
from gateway.kafka.describe import NO_ANSWER_ERRORS, NO_TOPIC_ERRORS
from gateway.kafka.java_properties import InvalidPropertiesFile, translate_properties, use_java_names

ANSWER_TIMEOUT_S: Final = 15.0  # how long brokers may take to answer
_READ_TIMEOUT_S: Final = 60.0  # for records that exist
_ATTEMPT_S: Final = 1.0  # after which errors of connections are looked at
_BATCH_VALUES: Final = 1000
_CONSUMER_SETTINGS: Final[dict[str, Any]] = {
    "group.id": "produce-gateway-audit",
    "log_level": 2,
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",  # else records that retention removes meanwhile would be left out without a word
    "isolation.level": "read_uncommitted",  # as Spark reads
    "check.crcs": True,
}
# librdkafka tries again by itself; if it is in vain, time runs out. The group's coordinator isn't needed.
_PASSING_ERRORS: Final = frozenset(
    {*NO_ANSWER_ERRORS, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError.GROUP_AUTHORIZATION_FAILED}
)

_Answer = TypeVar("_Answer")


class UntranslatableProperty(AuditError):
    """Java's client has it, librdkafka hasn't."""


class TopicSource:
    """The usage topic. `properties`: the Java client's, without the prefix "kafka.".

    Raises:
        UntranslatableProperty: one of them.
        AuditError: no broker answers, no such topic, not allowed.
    """

    def __init__(self, bootstrap_servers: str, topic: str, properties: Mapping[str, str]) -> None:
        self._servers, self._topic = bootstrap_servers, topic
        try:
            self._properties = translate_properties(properties).properties
        except InvalidPropertiesFile as error:
            raise UntranslatableProperty(f"{error}; or --engine spark, which has Java's client") from None
        self._failures: dict[int, str] = {}  # of connections, by code
        consumer = self._open_consumer()
        try:
            self._offsets = self._fetch_offsets(consumer)
        except KafkaException as error:
            raise AuditError(self._explain_failure(error.args[0], ANSWER_TIMEOUT_S)) from None
        finally:
            consumer.close()
        self.size = sum(end - start for start, end in self._offsets.values())  # records
        self.description: dict[str, Any] = {
            "kind": "topic",
            "name": topic,
            "bootstrap_servers": bootstrap_servers,
            "partitions": [
                {"partition": partition, "start_offset": start, "end_offset": end}
                for partition, (start, end) in sorted(self._offsets.items())
            ],
        }

    def read_batches(self) -> Iterator[ValueBatch]:
        """All values.

        Raises:
            AuditError: they can't be read to the end, or some have gone.
        """
        consumer = self._open_consumer()
        try:
            yield from self._read_all(consumer)
        except KafkaException as error:
            raise AuditError(self._explain_failure(error.args[0], _READ_TIMEOUT_S)) from None
        finally:
            consumer.close()

    def _open_consumer(self) -> Consumer:
        self._failures.clear()
        for name, place in self._properties.items():
            if name.endswith(".location"):
                try:
                    Path(place).open("rb").close()
                except OSError as error:
                    raise AuditError(f"{use_java_names(name)}: {place}: {error.strerror}") from None
        settings = {**self._properties, "bootstrap.servers": self._servers, **_CONSUMER_SETTINGS}
        try:
            return Consumer({**settings, "error_cb": self._note_failure})
        except KafkaException as error:
            raise AuditError(f"{self._servers}: {error.args[0].str()}") from None

    def _note_failure(self, error: KafkaError) -> None:
        self._failures[error.code()] = " ".join(error.str().split())

    def _fetch_offsets(self, consumer: Consumer) -> dict[int, tuple[int, int]]:
        found = self._ask(consumer, lambda: consumer.list_topics(self._topic, timeout=_ATTEMPT_S))
        about = found.topics[self._topic]
        if about.error is not None:
            raise KafkaException(about.error)

        def fetch(partition: int) -> tuple[int, int]:
            place = TopicPartition(self._topic, partition)
            bounds = self._ask(consumer, lambda: consumer.get_watermark_offsets(place, timeout=_ATTEMPT_S))
            if bounds is None:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            return bounds

        return {partition: fetch(partition) for partition in about.partitions}

    def _ask(self, consumer: Consumer, ask: Callable[[], _Answer]) -> _Answer:
        """The answer to a call that waits for a second at most, until ANSWER_TIMEOUT_S have passed."""
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while True:
            try:
                return ask()
            except KafkaException as error:
                consumer.poll(0)  # hands out what was wrong with connections
                is_hopeless = self._failures.keys() & {KafkaError._AUTHENTICATION, KafkaError._SSL}
                if error.args[0].code() not in NO_ANSWER_ERRORS or is_hopeless or time.monotonic() > deadline:
                    raise

    def _read_all(self, consumer: Consumer) -> Iterator[ValueBatch]:
        ends = {partition: end for partition, (start, end) in self._offsets.items() if end > start}
        consumer.assign([TopicPartition(self._topic, at, self._offsets[at][0]) for at in ends])
        came = time.monotonic()
        while ends:
            messages = [each for each in consumer.consume(_BATCH_VALUES, _ATTEMPT_S) if self._belongs(each, ends)]
            if messages:
                came = time.monotonic()
                yield self._make_batch(messages)
            elif time.monotonic() - came > _READ_TIMEOUT_S:
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
            return f"{self._topic}-{messages[number].partition()}@{messages[number].offset()}"

        values: list[Any] = [message.value() for message in messages]
        return ValueBatch(values, find_origin, len(values))

    def _explain_failure(self, error: KafkaError, timeout_s: float) -> str:
        """One line, without a secret: as brokers.fetch_offsets has it."""
        code = error.code()
        if code == KafkaError._AUTO_OFFSET_RESET or (code in NO_TOPIC_ERRORS and timeout_s == _READ_TIMEOUT_S):
            return RECORDS_GONE
        if code in NO_TOPIC_ERRORS:
            return f"topic {self._topic} does not exist at {self._servers}"
        if (why := self._failures.get(KafkaError._AUTHENTICATION)) is not None:
            return f"{self._servers} refuses our credentials ({why})"
        if (why := self._failures.get(KafkaError._SSL)) is not None:
            return (
                f"no TLS with {self._servers} ({why}): ssl.truststore.location has to hold the authority that signed"
                " the brokers' certificates"
            )
        if code in NO_ANSWER_ERRORS:
            return (
                f"no answer from {self._servers} within {timeout_s:g} s: is it running, does security.protocol"
                " match, and can its advertised listeners be reached from here?"
            )
        return f"{self._servers}: {error.name()}: {' '.join(error.str().split())}"
