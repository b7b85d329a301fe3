# The range of the usage topic by librdkafka: from the earliest offset, or from a time on, to the end as of now. The
# Java client's properties are translated, or refused where librdkafka has no such thing. Needs no Java and no Spark.
#
# librdkafka has no consumer without a group id. This one is neither joined nor committed to.

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from gateway.audit.errors import RECORDS_GONE, AuditError
from gateway.kafka.describe import NO_ANSWER_ERRORS, NO_TOPIC_ERRORS
from gateway.kafka.java_properties import InvalidPropertiesFile, translate_properties, use_java_names

ANSWER_TIMEOUT_S: Final = 15.0  # how long brokers may take to answer
READ_TIMEOUT_S: Final = 60.0  # for records that exist
ATTEMPT_S: Final = 1.0  # after which errors of connections are looked at
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

# How long before the first interval that is asked for reading begins. A record's timestamp is never before the start of
# its interval, but for clocks that are set back, and brokers' where the topic has log append time.
_LEADS_MS: Final = (3_600_000, 86_400_000)

_Answer = TypeVar("_Answer")


class UntranslatableProperty(AuditError):
    """Java's client has it, librdkafka hasn't."""


def describe_topic(bootstrap_servers: str, topic: str, offsets: Mapping[int, tuple[int, int]]) -> dict[str, Any]:
    """The source in a report. `offsets`: from (included) and to (excluded), by partition."""
    partitions = [
        {"partition": partition, "start_offset": start, "end_offset": end}
        for partition, (start, end) in sorted(offsets.items())
    ]
    return {"kind": "topic", "name": topic, "bootstrap_servers": bootstrap_servers, "partitions": partitions}


class TopicRange:
    """The usage topic. `properties`: the Java client's, without the prefix "kafka.". `offsets`: of each partition, the
    earliest and the end as of now.

    Raises:
        UntranslatableProperty: one of them.
        AuditError: no broker answers, no such topic, not allowed.
    """

    def __init__(self, bootstrap_servers: str, topic: str, properties: Mapping[str, str]) -> None:
        self._servers, self.topic = bootstrap_servers, topic
        try:
            self._properties = translate_properties(properties).properties
        except InvalidPropertiesFile as error:
            raise UntranslatableProperty(f"{error}; or --engine spark, which has Java's client") from None
        self._failures: dict[int, str] = {}  # of connections, by code
        with self._consumer_for_answers() as consumer:
            self.offsets = self._fetch_offsets(consumer)

    def find_part_starts(self, from_ms: int | None) -> list[dict[int, int]]:
        """Offsets, by partition, from which all records of intervals from `from_ms` (Unix ms) on are read, and a little
        more: what seems to be missing there may be behind the next ones. The last ones, alone without `from_ms`, are
        the earliest.

        Raises:
            AuditError: no broker answers.
        """
        earliest = {partition: start for partition, (start, _) in self.offsets.items()}
        found = self.find_starts([] if from_ms is None else [from_ms - lead for lead in _LEADS_MS])
        # Timestamps need not rise from one offset to the next.
        for later, earlier in pairwise(found):
            earlier |= {partition: min(start, later[partition]) for partition, start in earlier.items()}
        return [starts for starts, earlier in pairwise([*found, earliest]) if starts != earlier] + [earliest]

    def find_starts(self, times_ms: Sequence[int]) -> list[dict[int, int]]:
        """For each of these times (Unix ms) the first offset with a timestamp from then on, by partition; the end where
        there is none.

        Raises:
            AuditError: no broker answers.
        """
        if not times_ms:
            return []
        with self._consumer_for_answers() as consumer:
            return [self._find_start(consumer, at_ms) for at_ms in times_ms]

    def _find_start(self, consumer: Consumer, at_ms: int) -> dict[int, int]:
        wanted = [TopicPartition(self.topic, partition, max(at_ms, 0)) for partition in self.offsets]
        found = self._ask(consumer, lambda: consumer.offsets_for_times(wanted, timeout=ATTEMPT_S))
        starts = {}
        for place in found:
            if place.error is not None:
                raise KafkaException(place.error)
            first, end = self.offsets[place.partition]
            starts[place.partition] = end if place.offset < 0 else min(max(place.offset, first), end)
        return starts

    @contextmanager
    def _consumer_for_answers(self) -> Iterator[Consumer]:
        consumer = self.open_consumer()
        try:
            yield consumer
        except KafkaException as error:
            raise AuditError(self.explain_failure(error.args[0], ANSWER_TIMEOUT_S)) from None
        finally:
            consumer.close()

    def open_consumer(self) -> Consumer:
        """A consumer that has no partitions yet."""
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
        found = self._ask(consumer, lambda: consumer.list_topics(self.topic, timeout=ATTEMPT_S))
        about = found.topics[self.topic]
        if about.error is not None:
            raise KafkaException(about.error)

        def fetch(partition: int) -> tuple[int, int]:
            place = TopicPartition(self.topic, partition)
            bounds = self._ask(consumer, lambda: consumer.get_watermark_offsets(place, timeout=ATTEMPT_S))
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

    def explain_failure(self, error: KafkaError, timeout_s: float) -> str:
        """One line, without a secret: as brokers.fetch_offsets has it."""
        code = error.code()
        if code == KafkaError._AUTO_OFFSET_RESET or (code in NO_TOPIC_ERRORS and timeout_s == READ_TIMEOUT_S):
            return RECORDS_GONE
        if code in NO_TOPIC_ERRORS:
            return f"topic {self.topic} does not exist at {self._servers}"
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
